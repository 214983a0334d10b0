//! Processes of the launcher: fork(2), the end of a program with its parent, and the senders of signals.
#![allow(unsafe_code, reason = "the standard library has no safe function for these")]

use std::{io, os::unix::process::CommandExt as _, process::Command};

use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

/// Copies the calling process. Returns the child's id, or `None` in the child.
///
/// The caller has no other thread: in the child that thread's locks would stay locked.
///
/// # Errors
/// Those of fork(2).
pub(super) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: both processes return from here with memory of their own; see above for threads.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        id => Ok(Pid::from_raw(id)),
    }
}

/// Has the kernel kill the program when the calling thread has ended.
pub(super) fn end_with_parent(command: &mut Command) {
    let parent = getpid();
    let arrange = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have ended before.
        if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    };
    // SAFETY: the closure runs in the child of a fork, and only makes system calls: it takes no lock and allocates
    // nothing.
    unsafe { command.pre_exec(arrange) };
}

/// The sender of a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// The kernel, on behalf of a terminal for example.
    Kernel,
    /// A process that called kill(2) or the like.
    Process(Pid),
    /// A process of another namespace.
    Unknown,
}

/// The signal and its sender.
pub(super) fn origin(info: &libc::siginfo_t) -> Option<(Signal, Origin)> {
    let signal = Signal::from_named_raw(info.si_signo)?;
    let origin = match info.si_code {
        libc::SI_USER | libc::SI_QUEUE | libc::SI_TKILL => {
            // SAFETY: the kernel fills the sender in for these codes.
            Pid::from_raw(unsafe { info.si_pid() }).map_or(Origin::Unknown, Origin::Process)
        }
        _ => Origin::Kernel,
    };
    Some((signal, origin))
}
