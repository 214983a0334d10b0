//! Network namespaces of a run.
//!
//! ```text
//! "bridge"  this process's own    TAPs of nodes, ports of br0; or a TAP with a kernel socket
//! "left"    \  peers: kernel TCP, libfabric, UCX, iperf3
//! "right"   /  10.79.1.1 -- veth -- 10.79.1.2
//! ```
//!
//! They have no names, and each exists while a process uses it or this process holds its descriptor, so that every exit
//! removes them. Programs enter through `flue bench join`, which requests SIGKILL for them when this process exits.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, BufRead, BufReader},
    net::{IpAddr, Ipv4Addr},
    os::{
        fd::{AsFd, AsRawFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

use clap::Args;
use flue_network::{NamespaceOf, NetError, Netlink, VethEnd, namespace, plumb, sysctl};
use flue_report::failure::Failure;
use ipnet::IpNet;
use rustix::{
    process::{Pid, Signal, getppid, set_parent_process_death_signal},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

/// Name of the bridge.
pub(super) const BRIDGE: &str = "br0";
/// Prefix length of all addresses below.
pub(super) const PREFIX_LEN: u8 = 24;
/// Client and server: nodes on the bridge.
pub(super) const NODES: [IpAddr; 2] = [v4(77, 1), v4(77, 2)];
/// A node, and the kernel on its TAP.
pub(super) const NODE_AND_KERNEL: [IpAddr; 2] = [v4(78, 2), v4(78, 1)];
/// Client and server: kernel sockets on the veth pair.
pub(super) const KERNELS: [IpAddr; 2] = [v4(79, 1), v4(79, 2)];
/// The ends of the veth pair.
pub(super) const VETH: [&str; 2] = ["left0", "right0"];

const fn v4(net: u8, host: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, net, 1, host))
}

/// Namespace of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Namespace {
    /// Namespace of the TAPs.
    Bridge,
    /// Namespace of the peers' clients.
    Left,
    /// Namespace of the peers' servers.
    Right,
}

/// Namespaces of a run.
#[derive(Debug)]
pub(super) struct Namespaces {
    left: File,
    right: File,
    /// Congestion control of kernel sockets in them; `None`: /proc/sys is not writable.
    pub(super) congestion_control: Option<&'static str>,
    /// Names of the namespaces in /proc.
    pub(super) names: Vec<String>,
    /// Path of this program, valid even if its file was replaced.
    program: PathBuf,
}

impl Namespaces {
    /// Creates the namespaces, and moves this process into one. Call it before the process has a second thread.
    pub(super) fn make(mtu_bytes: u16) -> Result<Self, Failure> {
        namespace::enter()?;
        let mut netlink = Netlink::open()?;
        let congestion_control = set_up_tcp()?;
        netlink.set_up("lo")?;
        plumb::make_bridge(&mut netlink, BRIDGE, mtu_bytes)?;
        plumb::bypass_packet_filter()?;
        let program = PathBuf::from(format!("/proc/{}/exe", std::process::id()));
        let [left, right] = [Holder::start(&program)?, Holder::start(&program)?];
        let end = |index: usize, holder: &Holder| VethEnd {
            name: VETH[index],
            namespace: Some(NamespaceOf { pid: holder.pid() }),
        };
        netlink.create_veth(end(0, &left), end(1, &right), mtu_bytes)?;
        let [left, right] = [left.release()?, right.release()?];
        for (index, file) in [&left, &right].into_iter().enumerate() {
            inside(file, || set_up_end(index))?;
        }
        for (index, file) in [&left, &right].into_iter().enumerate() {
            inside(file, || {
                Ok(Netlink::open()?.wait_forwarding(VETH[index], plumb::FORWARDING_LIMIT)?)
            })?;
        }
        let own = File::open("/proc/self/ns/net").map_err(failed("open a namespace"))?;
        let names = [&own, &left, &right].map(name_of).into();
        Ok(Self { left, right, congestion_control, names, program })
    }

    /// Returns the path of this program, for starting it again.
    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// Returns a command that runs `program` in a namespace and is killed when this process exits.
    pub(super) fn command(&self, namespace: Namespace, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["bench", "join", "--parent"]).arg(std::process::id().to_string());
        let file = match namespace {
            Namespace::Bridge => None,
            Namespace::Left => Some(&self.left),
            Namespace::Right => Some(&self.right),
        };
        if let Some(file) = file {
            let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
            command.args(["--namespace", &path]);
        }
        // The last line of a panic must be its message.
        command.arg("--").arg(program).env("RUST_BACKTRACE", "0");
        command
    }
}

/// Sets the TCP defaults of the calling thread's namespace, and returns the congestion control.
fn set_up_tcp() -> Result<Option<&'static str>, NetError> {
    // Otherwise a connection inherits the slow-start threshold and reordering of the previous contestant.
    sysctl::write(&["ipv4", "tcp_no_metrics_save"], "1")?;
    // The machine's default may use pacing, and the pacing timers would be measured. CUBIC may not be permitted in a
    // namespace.
    for name in ["cubic", "reno"] {
        match sysctl::write(&["ipv4", "tcp_congestion_control"], name) {
            Ok(sysctl::Applied::Yes) => return Ok(Some(name)),
            Ok(sysctl::Applied::NotAvailable) => {}
            Err(error) if name == "reno" => return Err(error),
            Err(_) => {}
        }
    }
    Ok(None)
}

fn set_up_end(index: usize) -> Result<(), Failure> {
    let name = VETH[index];
    let mut netlink = Netlink::open()?;
    set_up_tcp()?;
    netlink.set_up("lo")?;
    sysctl::disable_ipv6(name)?;
    let prefix = IpNet::new(KERNELS[index], PREFIX_LEN)
        .map_err(|error| Failure::work(format!("address of {name}: {error}")))?;
    netlink.add_address(name, prefix)?;
    Ok(netlink.set_up(name)?)
}

/// Runs `work` on a thread inside the namespace.
fn inside<T: Send>(
    namespace: &File,
    work: impl FnOnce() -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    thread::scope(|scope| {
        let inside = scope.spawn(|| {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), kind)
                .map_err(|error| Failure::work(format!("enter a namespace: {error}")))?;
            work()
        });
        inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn name_of(namespace: &File) -> String {
    let path = format!("/proc/self/fd/{}", namespace.as_raw_fd());
    std::fs::read_link(path).map_or_else(|_| "?".into(), |link| link.display().to_string())
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::work(format!("{what}: {error}"))
}

/// Process that keeps a new namespace alive: `flue bench hold`.
struct Holder {
    child: std::process::Child,
}

impl Holder {
    fn start(program: &Path) -> Result<Self, Failure> {
        let mut command = Command::new(program);
        command.args(["bench", "hold"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn().map_err(failed("start flue bench hold"))?;
        let mut holder = Self { child };
        let mut line = String::new();
        if let Some(output) = holder.child.stdout.take() {
            BufReader::new(output).read_line(&mut line).map_err(failed("flue bench hold"))?;
        }
        if line == HELD {
            Ok(holder)
        } else {
            Err(Failure::lacking("network namespace of the peers: flue bench hold failed"))
        }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Opens the namespace, so that this process keeps it alive.
    fn release(self) -> Result<File, Failure> {
        File::open(format!("/proc/{}/ns/net", self.pid())).map_err(failed("open a namespace"))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It exits when its input ends.
        let _ = self.child.wait();
    }
}

const HELD: &str = "held\n";

/// Hold a new network namespace until standard input ends.
pub(super) fn hold() -> Result<(), Failure> {
    namespace::enter_below()?;
    print!("{HELD}");
    io::Write::flush(&mut io::stdout()).map_err(failed("standard output"))?;
    io::copy(&mut io::stdin(), &mut io::sink()).map_err(failed("standard input"))?;
    Ok(())
}

/// Run a program in a namespace; it is killed when its parent dies
#[derive(Args, Clone, Debug)]
pub struct JoinArgs {
    /// Process that must be the parent [default: any]
    #[arg(long, value_name = "PID")]
    parent: Option<i32>,

    /// Network namespace to enter [default: stay]
    #[arg(long, value_name = "PATH")]
    namespace: Option<PathBuf>,

    /// The program and its arguments
    #[arg(last = true, required = true)]
    program: Vec<std::ffi::OsString>,
}

impl JoinArgs {
    /// Executes the program.
    pub(super) fn run(&self) -> Result<(), Failure> {
        set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|error| Failure::lacking(format!("PR_SET_PDEATHSIG: {error}")))?;
        // The parent may have exited before the call.
        if self.parent.is_some_and(|parent| getppid() != Pid::from_raw(parent)) {
            return Err(Failure::work("parent process: exited"));
        }
        if let Some(path) = &self.namespace {
            let failed = |why: String| Failure::work(format!("enter {}: {why}", path.display()));
            let file = File::open(path).map_err(|error| failed(error.to_string()))?;
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(|error| failed(error.to_string()))?;
            // UCX searches /sys for interfaces. Without permission UCX reports the error.
            let _ = namespace::show_own_links();
        }
        let Some((program, arguments)) = self.program.split_first() else {
            return Err(Failure::usage("PROGRAM: missing"));
        };
        let error = Command::new(program).args(arguments).exec();
        Err(Failure::lacking(format!("{}: {error}", Path::new(program).display())))
    }
}
