//! `flue capture`: starts and stops a capture of a running node, over its control socket.
//!
//! This process creates the file, with the rights of its user, and passes the descriptor to the node. Nodes reply
//! within [`client::LIMIT`].

use std::{
    io,
    path::{Path, PathBuf},
};

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::{
    control::{
        client::{self, Nodes},
        message::CaptureReport,
        socket_path,
    },
    failure::Failure,
    options::OutputArgs,
    report::Console,
};

/// Maximum number of default names that are tried.
const NAMES_MAX: u32 = 1000;

/// Start or stop a capture of a running node
///
/// The capture has all frames of a node on a TAP, in pcapng. On kernel sockets, frames are synthesized around the data,
/// as by "flue run --pcap". Wireshark decodes the connections whose start is in the capture. A full disk ends the
/// capture, not the traffic.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = "Examples:
  flue capture start --node flue0
  flue capture start --node flue1 flue1.pcapng
  flue capture stop")]
pub struct CaptureArgs {
    /// Start a capture, or stop it and write its file
    #[arg(value_name = "start|stop", hide_possible_values = true)]
    pub action: Action,

    /// File, which must not exist [default: flue-NODE-PID.pcapng]
    ///
    /// Its mode is 0600. With several queues, the others have name.1.pcapng and so on.
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,

    /// Query this node: socket, process id, TAP or program [default: all]
    ///
    /// By default all nodes of the user are queried.
    #[arg(long, value_name = "PATH|PID|TAP|PROGRAM")]
    pub node: Option<String>,

    /// Output format.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Action on the capture of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Action {
    /// Start.
    Start,
    /// Stop.
    Stop,
}

/// Capture of a node in the document.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct Captured {
    /// Control socket of the node.
    control: PathBuf,
    #[serde(flatten)]
    report: CaptureReport,
}

/// Runs `flue capture`.
///
/// # Errors
/// No node is running, several nodes are selected for a start, no capture is running, or the file cannot be created.
pub fn run(args: &CaptureArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    if args.action == Action::Stop && args.file.is_some() {
        return Err(Failure::usage("FILE: not supported with stop: the start has it"));
    }
    let (sockets, place) = client::find(&Nodes::parse(args.node.as_deref()))?;
    if sockets.is_empty() {
        let place = place.display();
        return Err(Failure::work(format!("no running node: no control socket in {place}")));
    }
    let captures = match args.action {
        Action::Start => vec![start_one(&sockets, args.file.as_deref())?],
        Action::Stop => stop_all(&sockets)?,
    };
    for Captured { report, .. } in &captures {
        console.print(describe(report));
    }
    let failed = captures.iter().find(|it| it.report.error.is_some());
    let failed = failed.map(|it| Failure::work(describe(&it.report)));
    console.result(&serde_json::json!({ "captures": captures }));
    failed.map_or(Ok(()), Err)
}

fn start_one(sockets: &[PathBuf], file: Option<&Path>) -> Result<Captured, Failure> {
    let [control] = sockets else {
        let names = sockets.iter().map(|path| name(path)).collect::<Vec<_>>().join(", ");
        let problem = format!("{} nodes are running, expected one: {names}", sockets.len());
        return Err(Failure::usage(problem).with_hint("select a node with --node"));
    };
    let report = start(control, file)?;
    Ok(Captured { control: control.clone(), report })
}

/// Starts a capture of the node at `control`; without a file, to one with a default name in the working directory.
pub(super) fn start(control: &Path, file: Option<&Path>) -> Result<CaptureReport, Failure> {
    let failed = |error: io::Error| Failure::work(format!("capture: working directory: {error}"));
    let path = match file {
        Some(file) => std::path::absolute(file).map_err(failed)?,
        None => {
            let directory = std::env::current_dir().map_err(failed)?;
            default_file(&directory, &name(control))
        }
    };
    Ok(client::capture(control, Some(path))?)
}

/// Stops the captures of all nodes that have one.
fn stop_all(sockets: &[PathBuf]) -> Result<Vec<Captured>, Failure> {
    let (mut captures, mut problem) = (Vec::new(), None);
    for control in sockets {
        match client::capture(control, None) {
            Ok(report) => captures.push(Captured { control: control.clone(), report }),
            Err(error) => problem = Some(error),
        }
    }
    match problem.filter(|_| captures.is_empty()) {
        Some(error) => Err(error.into()),
        None => Ok(captures),
    }
}

/// Returns TAP and process id of a node, from the name of its control socket.
fn name(control: &Path) -> String {
    match socket_path::parse(control) {
        Some((tap, pid)) => format!("{tap}-{pid}"),
        None => "node".into(),
    }
}

/// Returns the first name in the directory that no file has.
fn default_file(directory: &Path, node: &str) -> PathBuf {
    let numbered = (1..NAMES_MAX).map(|number| format!("flue-{node}.{number}.pcapng"));
    let names = std::iter::once(format!("flue-{node}.pcapng")).chain(numbered);
    let mut paths = names.map(|name| directory.join(name));
    let free = paths.find(|path| path.symlink_metadata().is_err());
    // A file that exists is refused.
    free.unwrap_or_else(|| directory.join(format!("flue-{node}.pcapng")))
}

/// Returns the text of a capture's state.
pub(super) fn describe(report: &CaptureReport) -> String {
    let CaptureReport { path, is_running, frames, error } = report;
    let path = path.display();
    match (error, is_running) {
        (Some(error), _) => format!("capture {path}: ended after {frames} frames: {error}"),
        (None, true) => format!("capture {path}: started"),
        (None, false) => format!("capture {path}: {frames} frames"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_file_does_not_exist() {
        let directory = std::env::temp_dir().join(format!("flue-names-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        for expected in ["flue-flue0-71.pcapng", "flue-flue0-71.1.pcapng", "flue-flue0-71.2.pcapng"]
        {
            let path = default_file(&directory, &name(Path::new("/run/flue0-71.sock")));
            assert_eq!(path, directory.join(expected));
            // A dangling link is a file too.
            std::os::unix::fs::symlink("absent", path).unwrap();
        }
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn start_needs_one_node() {
        let sockets = ["/run/a-1.sock", "/run/kernel-2.sock"].map(PathBuf::from);
        let failure = start_one(&sockets, None).unwrap_err();
        assert_eq!(failure.message, "2 nodes are running, expected one: a-1, kernel-2");
        assert_eq!(failure.exit_status(), 2);
    }
}
