//! `flue up`: starts the keeper of a playground, and prints the commands that use it.

use std::{
    env,
    ffi::OsString,
    fmt::{self, Write as _},
    fs::{self, File},
    io::{self, Read as _},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{self, Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use clap::Args;
use flue_adapter::{MTU_DEFAULT_BYTES, MTU_RANGE_BYTES};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, WaitOptions, kill_process},
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use super::{
    OWN_PROGRAM, Place, PlaygroundArgs, STATE_VARIABLE, down, enter, keeper, selection,
    state::{self, BRIDGE, NodeState, State},
};
use crate::{
    cmd::run::{
        launcher::{catch_signals, end_as, on_signals, wait},
        not_started,
        process::end_with_parent,
    },
    environment,
    failure::Failure,
    options::OutputArgs,
    report::Console,
};

/// Time limit for the keeper to create the nodes.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Start of the names of playgrounds for one command. If this process is killed, the state remains.
const COMMAND_PREFIX: &str = "command-";
/// Most nodes of a playground.
const NODES_MAX: u8 = 16;

/// Start nodes on this machine, each in a network namespace
///
/// Creates N network namespaces that are connected by a bridge, without root by a user namespace. In each, kernel
/// sockets have an address, and commands can have a TAP node with another one. "flue enter" runs commands in a node.
/// "flue down" removes the nodes.
///
/// With a command after "--", the nodes exist while the command runs, in node 1, and the exit status is that of the
/// command. In it, "flue enter 2 -- COMMAND" uses another node.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  flue up
  flue enter 1 -- flue rping -s --transport kernel &
  flue enter 2 -- flue rping -c -a 10.77.1.1 -C 3 --transport kernel
  flue down

  # nodes for the time of a command
  flue up 3 -- ip -br addr")]
pub struct UpArgs {
    /// Number of nodes: 2..=16
    #[arg(value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u8).range(2..=i64::from(NODES_MAX)))]
    pub nodes: u8,

    /// Run this command in node 1, then remove the nodes
    #[arg(last = true, value_name = "COMMAND", value_hint = clap::ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,

    /// MTU of the links, bytes: 1280..=65521
    #[arg(long, value_name = "BYTES", default_value_t = MTU_DEFAULT_BYTES,
          value_parser = clap::value_parser!(u16).range(MTU_RANGE_BYTES))]
    pub mtu: u16,

    /// The playground.
    #[command(flatten)]
    pub playground: PlaygroundArgs,

    /// Output format.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Runs `flue up`. With a command it returns only on error.
///
/// # Errors
/// A playground of this name is up, namespaces are forbidden, or the command cannot be started.
pub fn run(args: &UpArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let is_lasting = args.command.is_empty();
    let place = match args.playground.name {
        // The playground of one command has no other user.
        None if !is_lasting => Place::named(&format!("{COMMAND_PREFIX}{}", process::id())),
        _ => args.playground.place(),
    };
    let Place { name, path } = &place;
    state::sweep(COMMAND_PREFIX);
    let lock = state::claim(path, name)?;
    let started = start(args, name, lock);
    let state = started.inspect_err(|_| {
        // A keeper that failed has ended. Its state has no lock, and would be replaced by the next.
        let _ = fs::remove_file(path);
    })?;
    if !is_lasting {
        return run_command(&args.command, &place);
    }
    console.print(Overview { state: &state, program: &shown_program() });
    if let Err(failure) = environment::check_tun() {
        console.remark(format_args!("TAP nodes cannot be used: {}", failure.message));
    }
    console.result(&state);
    Ok(())
}

/// Starts the keeper, and waits until the nodes exist.
fn start(args: &UpArgs, name: &str, lock: File) -> Result<State, Failure> {
    let failed = |error: io::Error| Failure::work(format!("start the keeper: {error}"));
    let mut command = Command::new(OWN_PROGRAM);
    command.arg0("flue").args([keeper::COMMAND, "--name", name]);
    command.args(["--nodes", &args.nodes.to_string(), "--mtu", &args.mtu.to_string()]);
    if !args.command.is_empty() {
        command.arg("--end-with-parent");
    }
    command.stdin(Stdio::from(lock)).stdout(Stdio::piped());
    let mut keeper = command.spawn().map_err(failed)?;
    // The command has a duplicate of the lock.
    drop(command);
    let report = read_report(&mut keeper);
    if report.is_err() {
        // It has not reported in time, or has ended.
        let _ = keeper.kill();
        let _ = keeper.wait();
    }
    report?
}

fn read_report(keeper: &mut Child) -> Result<keeper::Report, Failure> {
    let mut output = keeper.stdout.take().ok_or_else(|| Failure::work("keeper: no output"))?;
    let line = read_line(&mut output, START_LIMIT)
        .map_err(|error| Failure::work(format!("report of the keeper: {error}")))?;
    if line.is_empty() {
        return Err(Failure::work("report of the keeper: none: the process has ended"));
    }
    serde_json::from_str(&line)
        .map_err(|error| Failure::work(format!("report of the keeper: {error}")))
}

/// Reads until the end of the first line, or of the output.
fn read_line(output: &mut ChildStdout, limit: Duration) -> io::Result<String> {
    let deadline = Instant::now() + limit;
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut [PollFd::new(output, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        let mut chunk = [0; 4096];
        match output.read(&mut chunk)? {
            0 => break,
            length => line.extend_from_slice(&chunk[..length]),
        }
    }
    String::from_utf8(line).map_err(io::Error::other)
}

/// Runs a command in node 1, removes the nodes, and ends with its status.
fn run_command(command: &[OsString], place: &Place) -> Result<(), Failure> {
    let running = enter::find(place)?;
    // From this point no signal ends this process before the nodes are removed.
    let signals = catch_signals(&[SIGHUP, SIGINT, SIGQUIT, SIGTERM])?;
    let mut inside = Command::new(OWN_PROGRAM);
    inside.arg0("flue").args(["enter", "1", "--"]).env(STATE_VARIABLE, &place.path).args(command);
    end_with_parent(&mut inside);
    let ended = inside.spawn().map_err(|error| not_started(inside.get_program(), &error)).and_then(
        |child| {
            let pid = Pid::from_child(&child);
            let forward = move |signal| {
                // Fails if the command has ended.
                let _ = kill_process(pid, signal);
            };
            on_signals(signals, forward)?;
            wait(pid, WaitOptions::empty())
        },
    );
    down::end(&running, &place.path)?;
    end_as(ended?)
}

/// Returns the name of the program for commands that the user copies: its path, if PATH does not have it.
fn shown_program() -> String {
    let own = env::current_exe().unwrap_or_else(|_| "flue".into());
    let path = env::var_os("PATH").unwrap_or_default();
    let canonical = |file: PathBuf| fs::canonicalize(file).ok();
    let in_path = env::split_paths(&path).find_map(|directory| canonical(directory.join("flue")));
    match in_path.is_some() && in_path == canonical(own.clone()) {
        true => "flue".into(),
        false => own.display().to_string(),
    }
}

/// Text that `flue up` prints: the addresses, and commands to copy.
struct Overview<'a> {
    state: &'a State,
    program: &'a str,
}

impl fmt::Display for Overview<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { state: State { name, nodes, .. }, program } = self;
        let selection = selection(name);
        let [one, two, ..] = &nodes[..] else { return Ok(()) };
        let (server, client) = ("rping -s", "rping -c -C 3 -v");
        // A node has the directory of the program in its PATH.
        let inside = Path::new(program).file_name().unwrap_or_default().display();
        let on = |node: &NodeState, rest: String| {
            format!("  {program} enter{selection} {} -- {inside} {rest}\n", node.node)
        };
        let tap =
            |node: &NodeState| format!("--tap tap0 --addr {} --bridge {BRIDGE}", node.tap_address);
        let mut text = format!("{} nodes are up\n\n", nodes.len());
        writeln!(text, "  node  kernel sockets  TAP node (--addr)")?;
        for NodeState { node, address, tap_address, .. } in nodes {
            writeln!(text, "  {node:<4}  {address:<14}  {tap_address}")?;
        }
        text += "\nPing on kernel sockets: server, then client in another terminal\n";
        text += &on(one, format!("{server} --transport kernel"));
        text += &on(two, format!("{client} -a {} --transport kernel", one.address));
        text += "\nPing on TAP nodes\n";
        text += &on(one, format!("{server} {}", tap(one)));
        text += &on(two, format!("{client} -a {} {}", one.tap_address.address(), tap(two)));
        write!(text, "\nShell in a node:   {program} enter{selection} 1")?;
        write!(text, "\nRemove the nodes:  {program} down{selection}")?;
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overview_has_a_row_for_each_node_and_commands_with_its_addresses() {
        let nodes = (1..=3).map(|number| NodeState::new(number, 7, 3)).collect();
        let state = State { name: "ci".into(), keeper: 7, in_user_namespace: false, nodes };
        let text = Overview { state: &state, program: "flue" }.to_string();
        for line in [
            "  3     10.77.1.3       10.77.1.103/24",
            "  flue enter --name ci 1 -- flue rping -s --transport kernel",
            "  flue enter --name ci 2 -- flue rping -c -C 3 -v -a 10.77.1.101 --tap tap0 --addr 10.77.1.102/24 \
             --bridge br0",
            "Remove the nodes:  flue down --name ci",
        ] {
            assert!(text.lines().any(|it| it == line), "{line}: {text}");
        }
    }
}
