//! Child processes: start, wait with a deadline, clean up.
//!
//! Output is written to memfds, so that no program blocks on a full pipe. Each program has its own process group:
//! Ctrl-C reaches only this process, and a program is killed together with its children, also on drop.
//!
//! Limits: the last [`OUTPUT_BYTES_MAX`] of a program's output are read. A starting server is checked every
//! [`READY_CHECK_INTERVAL`], and immediately when it exits or a signal arrives.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::{
        fd::OwnedFd,
        unix::{
            fs::FileExt,
            net::UnixStream,
            process::{CommandExt, ExitStatusExt},
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use flue_adapter::control::client;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{MemfdFlags, memfd_create},
    io::Errno,
    process::{
        Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid,
    },
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    low_level::pipe,
};

/// Most bytes read of a program's output.
const OUTPUT_BYTES_MAX: u64 = 16 << 20;
/// Interval between readiness checks of a server.
const READY_CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// Time limit of a reply from a control socket.
const CONTROL_LIMIT: Duration = Duration::from_secs(1);

/// Reason why a job has no result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// SIGINT, SIGTERM or SIGHUP: the run ends.
    Interrupted(i32),
    /// This job failed.
    Failed(String),
}

impl Fault {
    /// Returns a converter for I/O errors of `what`.
    pub(super) fn of(what: &str) -> impl Fn(io::Error) -> Self + '_ {
        move |error| Self::Failed(format!("{what}: {error}"))
    }
}

/// Handler of SIGINT, SIGTERM and SIGHUP: they end waits instead of the process.
#[derive(Debug)]
pub(super) struct Signals {
    wake: UnixStream,
    number: Arc<AtomicUsize>,
}

impl Signals {
    /// Installs the handler.
    pub(super) fn catch() -> io::Result<Self> {
        let (wake, writer) = UnixStream::pair()?;
        let number = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // In this order: after the wake-up the number is set.
            let value = usize::try_from(signal).unwrap_or_default();
            signal_hook::flag::register_usize(signal, number.clone(), value)?;
            pipe::register(signal, writer.try_clone()?)?;
        }
        Ok(Self { wake, number })
    }

    /// Returns the received signal.
    pub(super) fn received(&self) -> Option<i32> {
        match self.number.load(Ordering::SeqCst) {
            0 => None,
            signal => i32::try_from(signal).ok(),
        }
    }

    /// Returns an error after a signal was received.
    pub(super) fn check(&self) -> Result<(), Fault> {
        self.received().map_or(Ok(()), |signal| Err(Fault::Interrupted(signal)))
    }
}

/// Exited program.
#[derive(Clone, Debug)]
pub(super) struct ExitedProgram {
    /// Exit status.
    pub(super) status: ExitStatus,
    /// Standard output.
    pub(super) out: String,
    /// Standard error.
    pub(super) err: String,
    /// User and system time of the program and the children it has waited for, seconds.
    pub(super) cpu_seconds: Option<(f64, f64)>,
}

impl ExitedProgram {
    /// Returns the last line of standard error, or of standard output if that is empty.
    pub(super) fn last_output(&self) -> &str {
        last_line(&self.err).or_else(|| last_line(&self.out)).unwrap_or("no output")
    }

    /// Returns exit status and last line of output.
    pub(super) fn describe(&self) -> String {
        let how = match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit status {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => self.status.to_string(),
        };
        format!("{how}: {}", self.last_output())
    }
}

/// Returns the last nonempty line, except the "note:" after a panic and the help after a usage error.
fn last_line(text: &str) -> Option<&str> {
    let is_message = |line: &&str| !line.is_empty() && !line.starts_with("note: ");
    let usage_error = text.lines().find(|line| line.starts_with("error: "));
    usage_error.or_else(|| text.lines().rev().map(str::trim).find(is_message))
}

/// Readiness condition of a server.
#[derive(Clone, Debug)]
pub(super) enum Ready {
    /// Its output contains this text.
    Output(&'static str),
    /// A kernel socket listens on this port in its network namespace.
    Listening(u16),
    /// The node with this control socket has a listener.
    NodeListening(PathBuf),
}

/// Running program.
#[derive(Debug)]
pub(super) struct Running {
    name: String,
    child: Child,
    handle: OwnedFd,
    out: File,
    err: File,
    is_over: bool,
}

impl Running {
    /// Starts `command`; errors contain `name`.
    pub(super) fn start(name: &str, mut command: Command) -> Result<Self, Fault> {
        let failed = Fault::of(name);
        let file = || Ok::<_, io::Error>(File::from(memfd_create("output", MemfdFlags::CLOEXEC)?));
        let (out, err) = (file().map_err(&failed)?, file().map_err(&failed)?);
        let ends = [out.try_clone().map_err(&failed)?, err.try_clone().map_err(&failed)?];
        let [to_out, to_err] = ends.map(Stdio::from);
        command.stdin(Stdio::null()).stdout(to_out).stderr(to_err).process_group(0);
        let mut child = command.spawn().map_err(&failed)?;
        match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(handle) => Ok(Self { name: name.into(), child, handle, out, err, is_over: false }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(failed(error.into()))
            }
        }
    }

    /// Waits until the server is ready.
    pub(super) fn wait_ready(
        &mut self,
        ready: &Ready,
        signals: &Signals,
        limit: Duration,
    ) -> Result<(), Fault> {
        let deadline = Instant::now() + limit;
        loop {
            let is_ready = match ready {
                Ready::Output(text) => {
                    read(&self.out).contains(text) || read(&self.err).contains(text)
                }
                Ready::Listening(port) => self.listens(*port),
                Ready::NodeListening(path) => node_listens(path),
            };
            if is_ready {
                return Ok(());
            }
            if self.wait_some(signals, READY_CHECK_INTERVAL)? {
                let ended = self.collect()?;
                return Err(Fault::Failed(format!("{}: {}", self.name, ended.describe())));
            }
            if Instant::now() >= deadline {
                let seconds = limit.as_secs();
                let why = format!("{}: not ready after {seconds} s", self.name);
                return Err(Fault::Failed(why));
            }
        }
    }

    /// Waits for the exit of the program, at most `limit`.
    pub(super) fn wait(
        &mut self,
        signals: &Signals,
        limit: Duration,
    ) -> Result<ExitedProgram, Fault> {
        if self.wait_some(signals, limit)? {
            return self.collect();
        }
        Err(Fault::Failed(format!("{}: still running after {} s", self.name, limit.as_secs())))
    }

    /// Returns the last line of output so far.
    pub(super) fn last_output(&self) -> String {
        let (out, err) = (read(&self.out), read(&self.err));
        last_line(&err).or_else(|| last_line(&out)).unwrap_or_default().to_owned()
    }

    fn listens(&self, port: u16) -> bool {
        ["tcp", "tcp6"].into_iter().any(|family| {
            let path = format!("/proc/{}/net/{family}", self.child.id());
            fs::read_to_string(path).is_ok_and(|table| has_listener(&table, port))
        })
    }

    /// Returns true if the program exits within `limit`.
    fn wait_some(&self, signals: &Signals, limit: Duration) -> Result<bool, Fault> {
        let deadline = Instant::now() + limit;
        loop {
            signals.check()?;
            let left = deadline.saturating_duration_since(Instant::now());
            let failed = |error: Errno| Fault::Failed(format!("{}: poll: {error}", self.name));
            let timeout = Timespec::try_from(left).map_err(|_| failed(Errno::INVAL))?;
            let mut descriptors = [
                PollFd::new(&self.handle, PollFlags::IN),
                PollFd::new(&signals.wake, PollFlags::IN),
            ];
            match poll(&mut descriptors, Some(&timeout)) {
                Ok(0) => return Ok(false),
                Ok(_) if descriptors[0].revents().contains(PollFlags::IN) => return Ok(true),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Collects status and output of a program that has exited.
    fn collect(&mut self) -> Result<ExitedProgram, Fault> {
        let failed = Fault::of(&self.name);
        let pid = Pid::from_child(&self.child);
        // /proc has its CPU times until it is reaped.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(pid), options).map_err(|error| failed(error.into()))?;
        let cpu_seconds = cpu_seconds_of(self.child.id());
        let status = self.child.wait().map_err(&failed)?;
        self.is_over = true;
        Ok(ExitedProgram { status, out: read(&self.out), err: read(&self.err), cpu_seconds })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_over {
            // The group may be empty already.
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// Returns the last [`OUTPUT_BYTES_MAX`] of `file`.
fn read(file: &File) -> String {
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    let from = length.saturating_sub(OUTPUT_BYTES_MAX);
    let mut bytes = vec![0; usize::try_from(length - from).unwrap_or(0)];
    let read = file.read_at(&mut bytes, from).unwrap_or(0);
    bytes.truncate(read);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns true if the node with this control socket has a listener. Without a socket it has not started.
fn node_listens(path: &Path) -> bool {
    let listed = client::page(path, false, CONTROL_LIMIT);
    listed.is_ok_and(|page| page.connections.iter().any(|record| record.remote.is_none()))
}

/// Returns true if a table in the format of /proc/net/tcp contains a listener on `port`.
fn has_listener(table: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let listens = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let local = words.next()?.rsplit_once(':')?.1;
        let state = words.nth(1)?;
        Some(state == LISTEN && u16::from_str_radix(local, 16).ok()? == port)
    };
    table.lines().skip(1).any(|line| listens(line) == Some(true))
}

/// Returns user and system time of a process and its children, seconds.
fn cpu_seconds_of(pid: u32) -> Option<(f64, f64)> {
    let mut text = String::new();
    File::open(format!("/proc/{pid}/stat")).ok()?.read_to_string(&mut text).ok()?;
    let ticks = rustix::param::clock_ticks_per_second() as f64;
    let [user, system, children_user, children_system] = cpu_ticks(&text)?;
    Some(((user + children_user) as f64 / ticks, (system + children_system) as f64 / ticks))
}

/// Returns fields 14 to 17 of /proc/PID/stat (proc_pid_stat(5)): user and system time of the process, then of its
/// children, in ticks. Field 2, a name in parentheses, may contain any character.
pub(super) fn cpu_ticks(stat: &str) -> Option<[u64; 4]> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse().ok();
    Some([next()?, next()?, next()?, next()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(120);

    fn shell(script: &str) -> Running {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(script);
        Running::start("sh", command).unwrap()
    }

    #[test]
    fn output_errors_and_status_are_collected() {
        let signals = Signals::catch().unwrap();
        let ended = shell("echo out; echo one >&2; echo two >&2; exit 7").wait(&signals, LIMIT);
        let ended = ended.unwrap();
        assert_eq!((ended.out.as_str(), ended.err.as_str()), ("out\n", "one\ntwo\n"));
        assert_eq!(ended.describe(), "exit status 7: two");
        assert!(ended.cpu_seconds.is_some());
        assert_eq!(
            last_line("panicked at x:\nno such thing\nnote: run with\n\n"),
            Some("no such thing")
        );
        assert_eq!(last_line("error: no --x\n\ntry '--help'.\n"), Some("error: no --x"));
    }

    #[test]
    fn more_output_than_a_pipe_holds_does_not_block() {
        let signals = Signals::catch().unwrap();
        let ended = shell("head -c 300000 /dev/zero | tr '\\0' x").wait(&signals, LIMIT).unwrap();
        assert_eq!(ended.out.len(), 300_000);
    }

    #[test]
    fn server_readiness_or_exit_is_reported() {
        let signals = Signals::catch().unwrap();
        let mut server = shell("echo it is listening now; read line < /dev/zero");
        server.wait_ready(&Ready::Output("listening"), &signals, LIMIT).unwrap();
        assert_eq!(server.last_output(), "it is listening now");
        let mut exited = shell("echo no address >&2; exit 3");
        let fault = exited.wait_ready(&Ready::Output("listening"), &signals, LIMIT).unwrap_err();
        assert_eq!(fault, Fault::Failed("sh: exit status 3: no address".into()));
    }

    #[test]
    fn limits_hold_and_no_process_is_left() {
        let signals = Signals::catch().unwrap();
        let mut running = shell("sleep 600 & wait");
        let brief = Duration::from_millis(20);
        let fault = running.wait(&signals, brief).unwrap_err();
        assert!(matches!(fault, Fault::Failed(why) if why.contains("still running")));
        let fault = running.wait_ready(&Ready::Listening(1), &signals, brief).unwrap_err();
        assert!(matches!(fault, Fault::Failed(why) if why.contains("not ready")));
        let pid = running.child.id();
        drop(running);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn listening_socket_is_detected() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
        let port = socket.local_addr().unwrap().port();
        assert!(has_listener(&table, port));
        assert!(!has_listener(&table, 0));
        assert!(!has_listener("", port) && !has_listener("head\nnonsense\n", port));
    }

    #[test]
    fn cpu_times_are_parsed_with_any_process_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 11 22 33 44 20 0 1 0";
        assert_eq!(cpu_ticks(stat), Some([11, 22, 33, 44]));
        assert_eq!(cpu_ticks("7 (x) S 1"), None);
        assert_eq!(cpu_ticks(""), None);
    }
}
