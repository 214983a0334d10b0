//! Transparent parent processes of a program.
//!
//! The process started by the caller is the front. It stops, continues and ends as the program does, so that its caller
//! observes the program's state. Its child, the monitor, is the parent of the program. A stopped process cannot react
//! to the program's continuation, and a killed process cannot react at all. So the monitor, in a process group of its
//! own, stops and continues the front, and cleans up after the front was killed.
//!
//! Signals are forwarded by the front to the monitor and by the monitor to the program. A terminal sends its signals to
//! the program as well; these are not forwarded.
//!
//! The standard streams belong to the program. After the program has exited, its remaining connections are reset
//! ([`Launch::reset_left`]), then the TAP is closed. If the front is killed, the monitor kills the program and all
//! processes that inherited the node, and resets their connections. If the monitor is killed, the kernel kills the
//! program.

use std::{
    fs::{self, File},
    io::{self, PipeReader, PipeWriter, Read as _, Write as _},
    os::fd::{AsFd as _, OwnedFd},
    path::PathBuf,
    process::{self, Command},
    sync::Arc,
    thread,
};

use flue_adapter::launched::Launch;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{
        Pid, PidfdFlags, Resource, Rlimit, Signal, WaitOptions, WaitStatus, getpid, kill_process,
        pidfd_open, pidfd_send_signal, setpgid, setrlimit, waitpid,
    },
};
use signal_hook::{
    consts::{
        SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH,
    },
    iterator::{SignalsInfo, exfiltrator::raw::WithRawSiginfo},
    low_level::emulate_default_handler,
};

use super::{process as own, usage::Usage};
use crate::{
    failure::Failure,
    sandbox::{Policy, SandboxArgs},
};

/// Signals forwarded to the program.
const SIGNALS: [i32; 10] =
    [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGTSTP, SIGCONT, SIGWINCH];
/// Signals that a terminal sends to its whole foreground process group.
const TERMINAL_SIGNALS: [i32; 4] = [SIGINT, SIGQUIT, SIGTSTP, SIGWINCH];

/// Starts the program, and exits with its status. Returns only on error. `files`: directory that is removed afterwards.
///
/// # Errors
/// The program cannot be started, or signals cannot be caught.
pub(super) fn run(
    command: Command,
    launch: Option<Launch>,
    usage: Option<&Usage>,
    files: Option<PathBuf>,
    sandbox: SandboxArgs,
) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::work(format!("start the program: {error}"));
    let front = pidfd_open(getpid(), PidfdFlags::empty()).map_err(|error| failed(error.into()))?;
    let (ready, catching) = io::pipe().map_err(failed)?;
    let (ended, ending) = io::pipe().map_err(failed)?;
    match own::fork().map_err(failed)? {
        None => {
            drop((catching, ended));
            monitor(command, launch, front, ready, ending, sandbox)
        }
        Some(monitor) => {
            drop((ready, ending));
            follow(monitor, launch.as_ref(), usage, files, catching, ended, sandbox)
        }
    }
}

/// Runs the front: waits for the monitor, which ends as the program does.
fn follow(
    monitor: Pid,
    launch: Option<&Launch>,
    usage: Option<&Usage>,
    files: Option<PathBuf>,
    catching: PipeWriter,
    mut ended: PipeReader,
    sandbox: SandboxArgs,
) -> Result<(), Failure> {
    let forward = move |signal| {
        // The monitor may have exited already.
        let _ = kill_process(monitor, signal);
    };
    let signals = catch_signals(&SIGNALS)?;
    close_standard_streams();
    sandbox.enter(Policy::Launcher);
    on_signals(signals, forward)?;
    drop(catching);
    let status = wait(monitor, WaitOptions::empty())?;
    // A killed monitor has not waited for the program, which the kernel kills.
    let is_killed = ended.read(&mut [0]).is_ok_and(|count| count == 0);
    if let Some(Err(failure)) = launch.filter(|_| is_killed).map(Launch::kill_users) {
        tracing::warn!(%failure, "killing processes of the program failed");
    }
    if let Some(Err(failure)) = launch.map(Launch::reset_left) {
        tracing::warn!(%failure, "resetting connections of the program failed");
    }
    if let Some(Err(error)) = files.map(fs::remove_dir_all) {
        tracing::warn!(%error, "removing files of the device failed");
    }
    if let Some(usage) = usage {
        usage.print();
    }
    end_as(status)
}

/// Runs the monitor: starts the program, and stops and continues the front with it.
fn monitor(
    mut command: Command,
    launch: Option<Launch>,
    front: OwnedFd,
    mut ready: PipeReader,
    mut ending: PipeWriter,
    sandbox: SandboxArgs,
) -> Result<(), Failure> {
    let failed = |error: rustix::io::Errno| Failure::work(format!("start the program: {error}"));
    // From this point no signal ends this process before the program.
    let signals = catch_signals(&SIGNALS)?;
    // The front closes its end of the pipe after it catches signals too, or has exited.
    let _ = ready.read(&mut [0]);
    drop(ready);
    own::end_with_parent(&mut command);
    let program =
        command.spawn().map_err(|error| super::not_started(command.get_program(), &error))?;
    // The program is in the process group of the front.
    setpgid(None, None).map_err(failed)?;
    let pid = Pid::from_child(&program);
    let program = Arc::new(pidfd_open(pid, PidfdFlags::empty()).map_err(failed)?);
    let forward = {
        let program = program.clone();
        move |signal| {
            let _ = pidfd_send_signal(&program, signal);
        }
    };
    // The program has its own rights already.
    close_standard_streams();
    sandbox.enter(Policy::Launcher);
    on_signals(signals, forward)?;
    let front = Arc::new(front);
    let launch = Arc::new(launch);
    let guard = {
        let (front, launch) = (front.clone(), launch.clone());
        move || {
            wait_for_end(&front);
            let _ = pidfd_send_signal(&program, Signal::KILL);
            if let Some(Err(failure)) = launch.as_ref().as_ref().map(Launch::kill_users) {
                tracing::warn!(%failure, "killing processes of the program failed");
            }
        }
    };
    let guard = thread::Builder::new().name("flue-guard".into()).spawn(guard);
    let guard = guard.map_err(|error| Failure::work(format!("start a thread: {error}")))?;
    let mut is_stopped = false;
    let status = loop {
        let status = wait(pid, WaitOptions::UNTRACED | WaitOptions::CONTINUED)?;
        if !status.stopped() && !status.continued() {
            break status;
        }
        is_stopped = status.stopped();
        // Fails only if the front has exited.
        let _ = pidfd_send_signal(&front, if is_stopped { Signal::STOP } else { Signal::CONT });
    };
    // Fails only if the front has exited, as does the signal.
    let _ = ending.write_all(&[0]);
    if is_stopped {
        let _ = pidfd_send_signal(&front, Signal::CONT);
    }
    if has_ended(&front) {
        let _ = guard.join();
        if let Some(Err(failure)) = launch.as_ref().as_ref().map(Launch::reset_left) {
            tracing::warn!(%failure, "resetting connections of the program failed");
        }
    }
    end_as(status)
}

/// Catches signals from here on. They are handled by [`on_signals`].
///
/// # Errors
/// A handler cannot be installed.
pub(crate) fn catch_signals(signals: &[i32]) -> Result<SignalsInfo<WithRawSiginfo>, Failure> {
    SignalsInfo::new(signals).map_err(|error| Failure::work(format!("catch signals: {error}")))
}

/// Calls `forward` for each signal that was not sent by the terminal, on a thread of its own.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn on_signals(
    mut signals: SignalsInfo<WithRawSiginfo>,
    forward: impl Fn(Signal) + Send + 'static,
) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::work(format!("catch signals: {error}"));
    let read = move || {
        for info in signals.forever() {
            let is_sent =
                TERMINAL_SIGNALS.contains(&info.si_signo) && info.si_code == libc::SI_KERNEL;
            if let Some(signal) = Signal::from_named_raw(info.si_signo).filter(|_| !is_sent) {
                forward(signal);
            }
        }
    };
    thread::Builder::new().name("flue-signals".into()).spawn(read).map_err(failed)?;
    Ok(())
}

/// Closes standard input and output, which belong to the program: the reader of its output receives the end of file
/// once the program has closed it.
fn close_standard_streams() {
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

/// Waits for a state change of a child.
///
/// # Errors
/// The process is not a child.
pub(crate) fn wait(pid: Pid, options: WaitOptions) -> Result<WaitStatus, Failure> {
    loop {
        match waitpid(Some(pid), options) {
            Ok(Some((_, status))) => return Ok(status),
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Failure::work(format!("wait for the program: {error}"))),
        }
    }
}

/// Waits for the exit of a process that is not a child.
fn wait_for_end(process: &OwnedFd) {
    while poll(&mut [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)], None)
        == Err(rustix::io::Errno::INTR)
    {}
}

/// Returns true if the process has exited.
pub(crate) fn has_ended(process: &OwnedFd) -> bool {
    let mut ended = [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)];
    poll(&mut ended, Some(&Timespec::default())).is_ok_and(|count| count > 0)
}

/// Ends this process with the exit status of a child, or by the same signal.
pub(crate) fn end_as(status: WaitStatus) -> ! {
    if let Some(signal) = status.terminating_signal() {
        // The program has written its core dump, if enabled.
        let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
        if signal == Signal::KILL.as_raw() {
            let _ = kill_process(getpid(), Signal::KILL);
        }
        let _ = emulate_default_handler(signal);
        process::exit(128 + signal);
    }
    process::exit(status.exit_status().unwrap_or(1))
}
