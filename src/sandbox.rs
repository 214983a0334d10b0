//! Sandbox of a process that runs a node or supervises a program: it gives up rights that it no longer needs.
//!
//! [`enter`] is called after devices, files and the control socket are open, and before the first thread: each thread
//! inherits the rights of the one that started it. A restriction that the kernel does not support is skipped, and
//! logged with `-v`. Nothing here fails a command.
//!
//! The order is fixed: without `no_new_privs`, the kernel accepts Landlock and seccomp only from a process with
//! CAP_SYS_ADMIN, and the filter permits none of the other calls.

mod files;
mod filter;

use std::{fmt, path::Path};

use clap::Args;
use flue_adapter::{Switch, Transport};
use rustix::{
    io::Errno,
    thread::{
        CapabilitySet, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
        remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
    },
};

pub use self::files::kernel_support as landlock_support;
pub use self::filter::kernel_support as seccomp_support;

/// The option of commands that enter a sandbox.
#[derive(Args, Clone, Copy, Debug)]
pub struct SandboxArgs {
    /// Drop capabilities, system calls and file access after the start
    ///
    /// Restrictions that the kernel does not support are skipped; -v logs them, and "flue doctor" lists those that it
    /// supports. Use off for debuggers and profilers that run in the process.
    #[arg(
        long,
        value_enum,
        value_name = "SWITCH",
        default_value = "on",
        help_heading = "Process options"
    )]
    pub sandbox: Switch,
}

impl SandboxArgs {
    /// Enters the sandbox of `policy`, unless the option is off. Call it before the first thread is started.
    pub fn enter(self, policy: Policy<'_>) {
        if self.sandbox == Switch::On {
            enter(policy);
        }
    }
}

/// Needs of a process after its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy<'a> {
    /// Node on a TAP: its open descriptors, and the removal of its control socket, if it has one.
    Node {
        /// Path of the control socket.
        control: Option<&'a Path>,
    },
    /// As [`Policy::Node`], with IP sockets, also on privileged ports.
    Sockets {
        /// Path of the control socket.
        control: Option<&'a Path>,
    },
    /// Parent of a program: reads /proc, signals and waits for processes of any user, removes files.
    Launcher,
}

impl<'a> Policy<'a> {
    /// Returns the policy of a node whose control socket is `control`.
    pub fn of(transport: Transport, control: Option<&'a Path>) -> Self {
        match transport {
            Transport::Tap => Self::Node { control },
            Transport::Kernel => Self::Sockets { control },
        }
    }

    /// Returns the capabilities that the process keeps if it has them.
    fn capabilities(self) -> CapabilitySet {
        match self {
            Self::Node { .. } => CapabilitySet::empty(),
            Self::Sockets { .. } => CapabilitySet::NET_BIND_SERVICE,
            // A program of root may change its user.
            Self::Launcher => CapabilitySet::KILL | CapabilitySet::SYS_PTRACE,
        }
    }
}

/// Restricts the calling thread, and those that it starts afterwards, to the needs of `policy`.
pub fn enter(policy: Policy<'_>) {
    report("no_new_privs", set_no_new_privs(true));
    report("landlock", files::restrict(policy));
    report("capabilities", drop_capabilities(policy.capabilities()));
    report("seccomp", filter::apply(policy));
}

fn report<E: fmt::Display>(restriction: &str, entered: Result<(), E>) {
    match entered {
        Ok(()) => tracing::debug!(restriction, "sandbox: entered"),
        Err(error) => tracing::info!(restriction, %error, "sandbox: not restricted"),
    }
}

/// Drops all capabilities except `kept`, also from the sets that an executed program would obtain.
fn drop_capabilities(kept: CapabilitySet) -> Result<(), Errno> {
    let mut sets = capabilities(None)?;
    if sets.effective.contains(CapabilitySet::SETPCAP) {
        let dropped = CapabilitySet::all().difference(kept).iter();
        // The kernel has fewer capabilities than the set has bits.
        for capability in dropped.filter(|it| capability_is_in_bounding_set(*it) == Ok(true)) {
            remove_capability_from_bounding_set(capability)?;
        }
    }
    clear_ambient_capability_set()?;
    sets.permitted &= kept;
    sets.effective &= kept;
    sets.inheritable = CapabilitySet::empty();
    set_capabilities(None, sets)
}
