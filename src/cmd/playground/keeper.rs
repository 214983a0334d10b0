//! Keeper of a playground: a process that creates the namespaces and holds them open until a signal ends it.
//!
//! Only `flue up` starts it (hidden command [`COMMAND`]). Its standard input is the locked state file, its standard
//! output a pipe to `flue up`, on which it reports one line: the state, or the failure. It has a single thread, which
//! is in the namespace of the switch first, and in that of each node in turn. An open descriptor keeps a namespace.
//!
//! The keeper's death releases everything: the namespaces without a process, and with that of the switch its veth
//! pairs.

use std::{
    env,
    fs::File,
    io::{self, Write as _},
    os::fd::AsRawFd as _,
    process,
};

use clap::Args;
use offload_engine::state::MacAddress;
use rustix::process::{set_parent_process_death_signal, setsid};

use super::state::{BRIDGE, NodeState, State};
use crate::{
    cmd::lab::children::kill_with_parent,
    failure::Failure,
    namespace::{self, EntryMethod},
    net::{NamespaceOf, Netlink, VethEnd, plumb, sysctl},
};

/// Hidden command that runs the keeper.
pub const COMMAND: &str = "playground-keeper";
/// Veth end of a node.
const PORT: &str = "eth0";
/// Bridge in the namespace of the switch.
const SWITCH: &str = "switch0";

/// Arguments of the keeper.
#[derive(Args, Clone, Debug)]
pub struct KeeperArgs {
    /// Name of the playground.
    #[arg(long)]
    pub name: String,

    /// Number of nodes.
    #[arg(long)]
    pub nodes: u8,

    /// MTU, bytes.
    #[arg(long)]
    pub mtu: u16,

    /// End with the process that started it.
    #[arg(long)]
    pub end_with_parent: bool,
}

/// Report of the keeper to `flue up`.
pub type Report = Result<State, Failure>;

/// Runs the keeper. The process must have a single thread.
///
/// # Errors
/// The report cannot be written: `flue up` has ended.
pub fn run(args: &KeeperArgs) -> Result<(), Failure> {
    let made = make(args);
    let (report, namespaces) = match made {
        Ok((state, namespaces)) => (Ok(state), namespaces),
        Err(failure) => (Err(failure), Vec::new()),
    };
    if !args.end_with_parent {
        // Before the report, after which `flue up` may end. If it has ended already, the report fails.
        set_parent_process_death_signal(None)
            .map_err(|errno| Failure::work(format!("keeper: {errno}")))?;
    }
    let line = serde_json::to_string(&report)
        .map_err(|error| Failure::work(format!("report of the keeper: {error}")))?;
    writeln!(io::stdout(), "{line}")
        .and_then(|()| io::stdout().flush())
        .map_err(|error| Failure::work(format!("report of the keeper: {error}")))?;
    if report.is_ok() {
        leave_terminal().map_err(|error| Failure::work(format!("keeper: {error}")))?;
        wait_for_signal(&namespaces)
    }
    Ok(())
}

/// Waits, with the namespaces open, until a signal ends the process.
fn wait_for_signal(_namespaces: &[File]) -> ! {
    loop {
        rustix::event::pause();
    }
}

/// Closes output and error, for the reader of the report and for programs that wait for the end of the output of
/// `flue up`.
fn leave_terminal() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Creates the namespaces, and writes the state.
fn make(args: &KeeperArgs) -> Result<(State, Vec<File>), Failure> {
    let failed =
        |what: &'static str| move |error: io::Error| Failure::work(format!("{what}: {error}"));
    // Signals of the terminal are not for the keeper. Its working directory must not keep a mount busy.
    setsid().map_err(|errno| failed("keeper: session")(errno.into()))?;
    env::set_current_dir("/").map_err(failed("keeper: working directory"))?;
    let entered = namespace::enter()?;
    // Until the state is written, only `flue up` can end the keeper. A change of credentials would clear the signal.
    kill_with_parent().map_err(failed("keeper: parent-death signal"))?;
    let mut switch = Netlink::open()?;
    // Ports of the switch are created while the process is in the namespace of a node.
    sysctl::write(&["ipv6", "conf", "default", "disable_ipv6"], "1")?;
    plumb::bypass_packet_filter()?;
    plumb::make_bridge(&mut switch, SWITCH, args.mtu)?;
    let mut state = State {
        name: args.name.clone(),
        keeper: process::id(),
        in_user_namespace: entered == EntryMethod::UserNamespace,
        nodes: Vec::new(),
    };
    // An open socket would keep the namespace of the switch, but is closed when the links exist.
    let mut namespaces = vec![namespace::current().map_err(failed("namespace of the switch"))?];
    for number in 1..=args.nodes {
        namespace::enter_below()?;
        let namespace = namespace::current().map_err(failed("namespace of a node"))?;
        let node = NodeState::new(number, state.keeper, namespace.as_raw_fd());
        make_node(&mut switch, &node, args.mtu)
            .map_err(|failure| failure.at(&format!("node {number}")))?;
        state.nodes.push(node);
        namespaces.push(namespace);
    }
    let text =
        serde_json::to_string(&state).map_err(|error| Failure::work(format!("state: {error}")))?;
    rustix::io::write(rustix::stdio::stdin(), text.as_bytes())
        .map_err(|errno| failed("state of the playground")(errno.into()))?;
    Ok((state, namespaces))
}

/// Sets up the links of a node, in whose namespace the process is, and connects it to the switch.
fn make_node(switch: &mut Netlink, node: &NodeState, mtu_bytes: u16) -> Result<(), Failure> {
    let mut own = Netlink::open()?;
    own.set_up("lo")?;
    plumb::bypass_packet_filter()?;
    plumb::make_bridge(&mut own, BRIDGE, mtu_bytes)?;
    // Otherwise the address would change when a TAP becomes a port, and peers would use the former one.
    let mac = MacAddress::derived(format!("playground|{}", node.address).as_bytes());
    own.set_mac(BRIDGE, mac.0)?;
    own.add_address(BRIDGE, node.prefix().into())?;
    let port = format!("node{}", node.node);
    let namespace = Some(NamespaceOf { pid: process::id() });
    switch.create_veth(
        VethEnd { name: &port, namespace: None },
        VethEnd { name: PORT, namespace },
        mtu_bytes,
    )?;
    plumb::make_port(&mut own, PORT, BRIDGE)?;
    plumb::make_port(switch, &port, SWITCH)?;
    own.wait_forwarding(PORT, plumb::FORWARDING_LIMIT)?;
    Ok(())
}
