//! The parent of a program on a node: as if it were not there.
//!
//! It hands signals on, stops and goes on with the program, and ends as the program has ended: with its status, or by
//! its signal. Standard streams are the program's. When the program is gone, the connections that it has left are reset
//! ([`Launch::reset_left`]); only then the TAP goes.
//!
//! What a terminal sends, it sends to the program as well: such signals are not handed on while this process group is
//! in the foreground of its terminal. SIGKILL and SIGSTOP cannot be handed on: a launcher that is killed leaves the
//! program as it is, and nobody resets its connections then.

use std::{
    fs::File,
    io,
    process::{self, Command},
    thread,
};

use flue_node::launched::Launch;
use rustix::{
    process::{
        Pid, Resource, Rlimit, Signal, WaitOptions, WaitStatus, getpgrp, getpid, kill_process,
        setrlimit, waitpid,
    },
    termios::tcgetpgrp,
};
use signal_hook::{
    consts::{
        SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH,
    },
    iterator::Signals,
    low_level::emulate_default_handler,
};

use crate::failure::Failure;

/// Signals that are the program's.
const SIGNALS: [i32; 10] =
    [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGTSTP, SIGCONT, SIGWINCH];
/// Those that a terminal sends to its whole foreground process group.
const OF_TERMINAL: [i32; 4] = [SIGINT, SIGQUIT, SIGTSTP, SIGWINCH];

/// Starts the program, and ends with it. Does not return then.
///
/// # Errors
/// The program does not start, or signals cannot be caught.
pub(super) fn run(mut command: Command, launch: &Launch) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::work(format!("catch signals: {error}"));
    // From here on no signal ends this process before the program.
    let mut signals = Signals::new(SIGNALS).map_err(failed)?;
    let child = command.spawn().map_err(|error| {
        Failure::lacking(format!("{}: {error}", command.get_program().display()))
    })?;
    let pid = Pid::from_child(&child);
    let hand_on = move || {
        for signal in signals.forever() {
            let is_told = OF_TERMINAL.contains(&signal) && is_in_foreground();
            if let Some(signal) = Signal::from_named_raw(signal).filter(|_| !is_told) {
                // One that has ended needs none.
                let _ = kill_process(pid, signal);
            }
        }
    };
    thread::Builder::new().name("flue-signals".into()).spawn(hand_on).map_err(failed)?;
    let_go_of_streams();
    let status = wait(pid)?;
    let reset = launch.reset_left();
    if let Err(failure) = reset {
        tracing::warn!(%failure, "connections of the program");
    }
    end_as(status)
}

/// Whether what the terminal sends comes here and to the program.
fn is_in_foreground() -> bool {
    File::open("/dev/tty").is_ok_and(|tty| tcgetpgrp(tty) == Ok(getpgrp()))
}

/// Standard input and output are the program's alone: the reader of its output sees the end when the program has closed
/// it.
fn let_go_of_streams() {
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

/// Waits for the program's end; stops when it stops.
fn wait(pid: Pid) -> Result<WaitStatus, Failure> {
    loop {
        match waitpid(Some(pid), WaitOptions::UNTRACED) {
            Ok(Some((_, status))) if status.stopped() => {
                let _ = kill_process(getpid(), Signal::STOP);
                // Somebody has us go on.
                let _ = kill_process(pid, Signal::CONT);
            }
            Ok(Some((_, status))) => return Ok(status),
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Failure::work(format!("waiting for the program: {error}"))),
        }
    }
}

fn end_as(status: WaitStatus) -> ! {
    if let Some(signal) = status.terminating_signal() {
        // The program has written its memory out, if it is to be.
        let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
        if signal == Signal::KILL.as_raw() {
            let _ = kill_process(getpid(), Signal::KILL);
        }
        let _ = emulate_default_handler(signal);
        process::exit(128 + signal);
    }
    process::exit(status.exit_status().unwrap_or(1))
}
