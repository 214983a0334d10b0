//! `flue enter`: executes a command, or a shell, in a node of a playground.
//!
//! The command is executed by exec(2), so it has process id, exit status, signals and standard streams of its own. It
//! gets a mount namespace, in which /sys shows the links of the node, as `ip netns exec` does.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs::File,
    io::Write as _,
    os::{fd::AsRawFd as _, unix::process::CommandExt as _},
    path::Path,
    process::Command,
};

use clap::Args;
use rustix::fs::{MemfdFlags, memfd_create};

use super::{
    Place, PlaygroundArgs, STATE_VARIABLE, selection,
    state::{self, BRIDGE, Found, NodeState, Running},
};
use crate::{
    cmd::run::{launcher::has_ended, not_started},
    control::socket_path,
    failure::Failure,
    namespace,
};

/// Number of the node.
const NODE_VARIABLE: &str = "FLUE_NODE";
/// Address of kernel sockets.
const ADDRESS_VARIABLE: &str = "FLUE_ADDR";
/// Addresses of kernel sockets of the other nodes, separated by spaces.
const PEERS_VARIABLE: &str = "FLUE_PEERS";
/// Value of `--addr` for a TAP node.
const TAP_ADDRESS_VARIABLE: &str = "FLUE_TAP_ADDR";
/// Value of `--bridge` for a TAP node.
const BRIDGE_VARIABLE: &str = "FLUE_BRIDGE";
/// Shell of a user without SHELL.
const SHELL_DEFAULT: &str = "/bin/sh";

/// Run a command, or a shell, in a node of "flue up"
///
/// The command has the network of the node, and is root in it. Files and processes are those of the machine. Its
/// environment has FLUE_NODE (number), FLUE_ADDR (address of kernel sockets), FLUE_PEERS (those of the other nodes),
/// FLUE_TAP_ADDR and FLUE_BRIDGE (values of --addr and --bridge for a TAP node).
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  flue up
  flue enter 1
  flue enter 1 -- ip -br addr
  flue enter 1 -- flue run -- ib_write_bw -R &")]
pub struct EnterArgs {
    /// Number of the node, from 1 on
    #[arg(value_name = "NODE", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub node: u8,

    /// The command and its arguments [default: the shell of the user]
    #[arg(
        trailing_var_arg = true,
        value_name = "COMMAND",
        value_hint = clap::ValueHint::CommandWithArguments
    )]
    pub command: Vec<OsString>,

    /// The playground.
    #[command(flatten)]
    pub playground: PlaygroundArgs,
}

/// Executes the command. Returns only on error. The process must have a single thread.
///
/// # Errors
/// The playground has no such node, or the command cannot be started.
pub fn run(args: &EnterArgs) -> Result<(), Failure> {
    let place = args.playground.place();
    let running = find(&place)?;
    let name = &place.name;
    let nodes = &running.state.nodes;
    let node = nodes.iter().find(|node| node.node == args.node).ok_or_else(|| {
        Failure::usage(format!(
            "node {}: not found: playground {name} has nodes 1..={}",
            args.node,
            nodes.len()
        ))
    })?;
    // The keeper's directory is outside of the node, and may be that of another variable there.
    let directory = socket_path::directory();
    join(&running, node)?;
    if let Err(error) = namespace::show_own_links() {
        tracing::debug!(%error, "/sys shows the links of the machine");
    }
    let (mut command, prompt) = match args.command.split_first() {
        Some((program, arguments)) => {
            let mut command = Command::new(program);
            command.args(arguments);
            (command, None)
        }
        None => shell(args.node)?,
    };
    command.env(STATE_VARIABLE, &place.path);
    set_environment(&mut command, &running, node, &directory);
    let error = command.exec();
    drop(prompt);
    Err(not_started(command.get_program(), &error))
}

/// Returns the running playground of a name.
///
/// # Errors
/// It is not up.
pub(super) fn find(place: &Place) -> Result<Running, Failure> {
    let Place { name, path } = place;
    match state::find(path)? {
        Found::Running(running) => Ok(running),
        Found::Changing => Err(state::changing(name)),
        Found::Absent | Found::Ended(_) => Err(Failure::work(format!("playground {name}: not up"))
            .with_hint(format!("start it with \"flue up{}\"", selection(name)))),
    }
}

/// Moves the process to the namespaces of a node.
fn join(running: &Running, node: &NodeState) -> Result<(), Failure> {
    let open = |path: &Path| {
        File::open(path).map_err(|error| Failure::work(format!("{}: {error}", path.display())))
    };
    let keeper = format!("/proc/{}/ns/user", running.state.keeper);
    let user = running.state.in_user_namespace.then(|| open(Path::new(&keeper))).transpose()?;
    let network = open(&node.namespace)?;
    // If the keeper has ended, its id may be that of another process.
    if has_ended(&running.keeper) {
        return Err(Failure::work(format!(
            "playground {}: its keeper has ended",
            running.state.name
        )));
    }
    Ok(namespace::join(user.as_ref(), &network)?)
}

fn set_environment(command: &mut Command, running: &Running, node: &NodeState, directory: &Path) {
    let others = running.state.nodes.iter().filter(|other| other.node != node.node);
    let peers: Vec<_> = others.map(|other| other.address.to_string()).collect();
    command
        .env(NODE_VARIABLE, node.node.to_string())
        .env(ADDRESS_VARIABLE, node.address.to_string())
        .env(PEERS_VARIABLE, peers.join(" "))
        .env(TAP_ADDRESS_VARIABLE, node.tap_address.to_string())
        .env(BRIDGE_VARIABLE, BRIDGE);
    if let Some(path) = path_with_own_program() {
        command.env("PATH", path);
    }
    // A user who is root in the node has the control sockets of the user, not those of root.
    if socket_path::directory() != directory {
        command.env("XDG_RUNTIME_DIR", directory);
    }
}

/// Returns a PATH in which the program is found, if the present one does not have it.
fn path_with_own_program() -> Option<OsString> {
    let own = env::current_exe().ok()?;
    let path = env::var_os("PATH").unwrap_or_default();
    let name = own.file_name()?;
    if env::split_paths(&path).any(|directory| directory.join(name).is_file()) {
        return None;
    }
    env::join_paths(env::split_paths(&path).chain([own.parent()?.into()])).ok()
}

/// Returns the shell of the user, whose prompt has the number of the node. The file is its start-up file.
fn shell(node: u8) -> Result<(Command, Option<File>), Failure> {
    let shell = env::var_os("SHELL").filter(|shell| !shell.is_empty());
    let shell = shell.unwrap_or_else(|| SHELL_DEFAULT.into());
    let mut command = Command::new(&shell);
    let mark = format!("(node {node}) ");
    if Path::new(&shell).file_name() != Some(OsStr::new("bash")) {
        command.env("PS1", format!("{mark}$ "));
        return Ok((command, None));
    }
    // The start-up files of bash set the prompt, so it is changed after them.
    let failed =
        |error: std::io::Error| Failure::work(format!("start-up file of the shell: {error}"));
    let file = memfd_create("flue-bashrc", MemfdFlags::empty()).map_err(|it| failed(it.into()))?;
    let mut file = File::from(file);
    let descriptor = file.as_raw_fd();
    writeln!(
        file,
        "exec {descriptor}<&-\n\
         for file in /etc/bash.bashrc ~/.bashrc; do [ -r \"$file\" ] && . \"$file\"; done\n\
         unset file\nPS1=\"{mark}$PS1\""
    )
    .map_err(failed)?;
    command.arg("--rcfile").arg(format!("/proc/self/fd/{descriptor}"));
    Ok((command, Some(file)))
}
