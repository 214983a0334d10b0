//! Programs in the nodes of a playground: processes whose network namespace is that of a node.

use std::{
    collections::HashSet,
    fs, io,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::Path,
    process,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use super::state::State;

/// Time limit for programs to end after SIGTERM, before SIGKILL. Nodes use it to close their connections.
pub(super) const TERM_LIMIT: Duration = Duration::from_secs(2);
/// Time limit for a process to end after SIGKILL.
pub(super) const KILL_LIMIT: Duration = Duration::from_secs(5);
/// Rounds until no process is left, if they start others.
const ROUNDS_MAX: usize = 8;

type Identity = (u64, u64);

/// Ends the programs in the nodes, and returns their number.
pub(super) fn end(state: &State) -> usize {
    let identity = |path: &Path| fs::metadata(path).map(|it| (it.dev(), it.ino()));
    let nodes: Vec<Identity> =
        state.nodes.iter().filter_map(|node| identity(&node.namespace).ok()).collect();
    let mut ended = HashSet::new();
    for round in 0..ROUNDS_MAX {
        let programs = inside(&nodes, state.keeper).unwrap_or_default();
        if programs.is_empty() {
            break;
        }
        let processes: Vec<&OwnedFd> = programs.iter().map(|(_, process)| process).collect();
        if round == 0 {
            // An interactive shell ends by SIGHUP only. A stopped process handles signals after SIGCONT.
            for signal in [Signal::HUP, Signal::TERM, Signal::CONT] {
                send(&processes, signal);
            }
            wait(&processes, TERM_LIMIT);
        }
        send(&processes, Signal::KILL);
        wait(&processes, KILL_LIMIT);
        ended.extend(programs.iter().map(|(pid, _)| *pid));
    }
    ended.len()
}

fn send(processes: &[&OwnedFd], signal: Signal) {
    for process in processes {
        // Fails if the process has ended.
        let _ = pidfd_send_signal(process, signal);
    }
}

/// Returns the processes in these network namespaces, except the keeper and the calling process.
fn inside(nodes: &[Identity], keeper: u32) -> io::Result<Vec<(u32, OwnedFd)>> {
    let is_inside = |pid: u32| {
        let found = fs::metadata(format!("/proc/{pid}/ns/net"));
        found.is_ok_and(|it| nodes.contains(&(it.dev(), it.ino())))
    };
    let mut programs = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if pid == keeper || pid == process::id() || !is_inside(pid) {
            continue;
        }
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let process = raw.and_then(|raw| pidfd_open(raw, PidfdFlags::empty()).ok());
        // Check again: the id may have been given to another process before the descriptor was opened.
        if let Some(process) = process.filter(|_| is_inside(pid)) {
            programs.push((pid, process));
        }
    }
    Ok(programs)
}

/// Waits until the processes have ended. Returns false at the limit.
pub(super) fn wait(processes: &[&OwnedFd], limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    processes.iter().all(|process| {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok(timeout) = Timespec::try_from(left) else { return false };
            match poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout)) {
                Ok(count) => return count > 0,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    })
}
