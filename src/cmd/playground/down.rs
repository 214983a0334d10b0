//! `flue down`: ends the programs in the nodes of a playground, and its keeper.

use std::path::Path;

use clap::Args;
use rustix::process::{Signal, pidfd_send_signal};
use serde::Serialize;

use super::{
    Place, PlaygroundArgs,
    programs::{self, KILL_LIMIT, TERM_LIMIT},
    selection,
    state::{self, Found, Running, State},
};
use crate::{failure::Failure, options::OutputArgs, report::Console};

/// Remove the nodes of "flue up"
///
/// Ends the programs in the nodes, by SIGTERM and SIGHUP, and after 2 s by SIGKILL. The namespaces and their links then
/// end. Without nodes the command does nothing and succeeds.
#[derive(Args, Clone, Debug)]
pub struct DownArgs {
    /// The playground.
    #[command(flatten)]
    pub playground: PlaygroundArgs,

    /// Output format.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// The `result` object of the JSON document.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Removed {
    /// Nodes removed.
    pub nodes: usize,
    /// Programs that were ended.
    pub programs: usize,
}

/// Runs `flue down`.
///
/// # Errors
/// The state cannot be read, or the keeper does not end.
pub fn run(args: &DownArgs, console: &mut Console<'_>) -> Result<(), Failure> {
    let Place { name, path } = args.playground.place();
    match state::find(&path)? {
        Found::Absent => console.step(format_args!("playground {name}: not up")),
        Found::Ended(lock) => {
            state::remove(&path, lock)?;
            console.step(format_args!("playground {name}: removed the state of an ended keeper"));
        }
        Found::Changing => return Err(state::changing(&name)),
        Found::Running(running) => {
            let removed = end(&running, &path)?;
            let Removed { nodes, programs } = removed;
            console.step(format_args!(
                "playground {name}: {nodes} nodes and {programs} programs ended"
            ));
            console.result(&removed);
            return Ok(());
        }
    }
    console.result(&Removed::default());
    Ok(())
}

/// Ends the programs and the keeper of a playground, and removes its state.
///
/// # Errors
/// The keeper does not end, or the state cannot be removed.
pub fn end(running: &Running, path: &Path) -> Result<Removed, Failure> {
    let Running { state: State { name, nodes, keeper: pid, .. }, keeper } = running;
    let programs = programs::end(&running.state);
    // Fails if the keeper has ended.
    let _ = pidfd_send_signal(keeper, Signal::TERM);
    if !programs::wait(&[keeper], TERM_LIMIT) {
        let _ = pidfd_send_signal(keeper, Signal::KILL);
        if !programs::wait(&[keeper], KILL_LIMIT) {
            return Err(Failure::work(format!(
                "playground {name}: keeper (process {pid}) does not end: repeat \"flue down{}\"",
                selection(name)
            )));
        }
    }
    // Another command may have removed it, and started a playground of the same name.
    if let Found::Ended(lock) = state::find(path)? {
        state::remove(path, lock)?;
    }
    Ok(Removed { nodes: nodes.len(), programs })
}
