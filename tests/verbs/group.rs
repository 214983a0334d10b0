//! Program and all its descendants, with a time limit. They run in their own PID namespace, which ends with its first
//! process. A process group is not sufficient: fio's jobs leave it.

use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use flue_test_support::netns::Namespace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// Poll interval for a listener or for program output; neither has a notification.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Program, its children, and their output.
pub(crate) struct Group {
    name: String,
    child: Child,
    said: Arc<Mutex<Vec<u8>>>,
    readers: Vec<JoinHandle<()>>,
    host: std::path::PathBuf,
    has_exited: bool,
}

impl Group {
    /// Starts the program in `host` without input.
    pub(crate) fn start(host: &Namespace, program: Command) -> Self {
        let name = format!("{program:?}");
        let mut command = Command::new("unshare");
        // The shell is the namespace's first process, for which signals have special semantics.
        command.args([
            "--pid",
            "--fork",
            "--kill-child",
            // `/proc` shows the process ids of the namespace.
            "--mount-proc",
            "--",
            "sh",
            "-c",
            "\"$@\"; exit $?",
            "sh",
        ]);
        command.arg(program.get_program()).args(program.get_args());
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        // In its own process group. Otherwise the exit of a stopped process can make the kernel send SIGHUP to the
        // group of the tests. That occurs if the parents of that group have exited (nohup, some CI runners).
        command.process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            host.spawn(&mut command).unwrap_or_else(|error| panic!("{name} not started: {error}"));
        let said = Arc::new(Mutex::new(Vec::new()));
        let out = child.stdout.take().expect("a piped stream");
        let err = child.stderr.take().expect("a piped stream");
        let readers = vec![collect(out, said.clone()), collect(err, said.clone())];
        let host = host.path();
        Self { name, child, said, readers, host, has_exited: false }
    }

    /// Output so far, both streams in order of arrival.
    pub(crate) fn said(&self) -> String {
        String::from_utf8_lossy(&self.said.lock().expect("readers do not panic")).into_owned()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends a signal to the descendant program of that name.
    ///
    /// # Panics
    ///
    /// If there is no such program.
    pub(crate) fn signal(&self, name: &str, signal: Signal) {
        let id = i32::try_from(self.process(name)).ok().and_then(Pid::from_raw);
        kill_process(id.expect("a process id"), signal).expect("the process exists");
    }

    /// Process id of the descendant program of that name.
    ///
    /// # Panics
    ///
    /// If there is no such program.
    pub(crate) fn process(&self, name: &str) -> u32 {
        self.find_process(name).unwrap_or_else(|| panic!("no {name} runs: {}", self.report()))
    }

    /// Process id as in [`Self::process`]; `None` if there is no such program.
    pub(crate) fn find_process(&self, name: &str) -> Option<u32> {
        let mut all = vec![self.child.id()];
        let mut next = 0;
        while let Some(id) = all.get(next).copied() {
            next += 1;
            let name_of = fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
            if name_of.trim_end() == name {
                return Some(id);
            }
            // Children are listed by the thread that started them.
            for task in fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten() {
                let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
                all.extend(children.split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
            }
        }
        None
    }

    /// Waits until the program has exited or for `limit`; returns true if it has ended.
    fn wait_for(&self, limit: Duration) -> bool {
        let handle =
            pidfd_open(self.pid(), PidfdFlags::empty()).expect("a pidfd of a child process");
        let mut ended = [PollFd::new(&handle, PollFlags::IN)];
        let timeout = Timespec::try_from(limit).expect("a limit within the range of a timespec");
        poll(&mut ended, Some(&timeout)).is_ok_and(|count| count > 0)
    }

    /// Waits until a process in its namespace listens on the port; stops early if the program ends.
    ///
    /// # Errors
    ///
    /// No listener within the limit, with the reason.
    pub(crate) fn wait_for_listener(
        &self,
        host: &Namespace,
        port: u16,
        limit: Duration,
    ) -> Result<(), String> {
        let what = format!("listens on port {port}");
        self.wait_until(&what, limit, || host.run(|| listens(port)))
    }

    /// Polls `is_so` until it returns true; stops early if the program ends.
    ///
    /// # Errors
    ///
    /// The condition is not met within the limit, with the reason.
    pub(crate) fn wait_until(
        &self,
        what: &str,
        limit: Duration,
        mut is_so: impl FnMut() -> bool,
    ) -> Result<(), String> {
        let deadline = Instant::now() + limit;
        while !is_so() {
            if self.wait_for(POLL_INTERVAL) {
                return Err(format!("exited before: {what}"));
            }
            if Instant::now() > deadline {
                return Err(format!("not within {limit:?}: {what}"));
            }
        }
        Ok(())
    }

    /// Waits until the program has exited.
    ///
    /// # Errors
    ///
    /// The program has not ended in time.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<ExitStatus, String> {
        if !self.wait_for(limit) {
            return Err(format!("still running after {limit:?}"));
        }
        let status = self.child.wait().map_err(|error| error.to_string())?;
        self.has_exited = true;
        self.kill();
        Ok(status)
    }

    /// True if no wait has found the program exited yet, and it has not exited now.
    pub(crate) fn is_running(&self) -> bool {
        !self.has_exited && !self.wait_for(Duration::ZERO)
    }

    /// Kills the remaining processes. Afterward the output is complete.
    pub(crate) fn kill(&mut self) {
        // Both calls fail only if the process has already been reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
    }

    /// Command line and output, for failure messages.
    pub(crate) fn report(&self) -> String {
        let mut text = String::new();
        writeln!(text, "--- {} (namespace {})", self.name, self.host.display())
            .expect("write to a String");
        text + &self.said()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Exit status as text.
pub(crate) fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (_, Some(signal)) => format!("signal {signal}"),
        _ => status.to_string(),
    }
}

fn collect(mut pipe: impl Read + Send + 'static, said: Arc<Mutex<Vec<u8>>>) -> JoinHandle<()> {
    thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(length) = pipe.read(&mut piece) {
            if length == 0 {
                return;
            }
            said.lock().expect("readers do not panic").extend_from_slice(&piece[..length]);
        }
    })
}

/// True if a TCP socket in the calling thread's namespace listens on the port.
pub(crate) fn listens(port: u16) -> bool {
    const LISTEN: &str = "0A";
    ["tcp", "tcp6"].iter().any(|family| {
        let text = fs::read_to_string(format!("/proc/thread-self/net/{family}"));
        text.unwrap_or_default().lines().skip(1).any(|line| {
            let mut cells = line.split_whitespace();
            let (local, state) = (cells.nth(1), cells.nth(1));
            let has_port = local.is_some_and(|it| it.ends_with(&format!(":{port:04X}")));
            has_port && state == Some(LISTEN)
        })
    })
}
