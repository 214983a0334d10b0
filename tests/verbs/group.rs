//! A program and all that it starts, with a time limit: in a process namespace of their own, which ends with its first
//! process. A process group would not do: fio's jobs leave it.

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

/// How often a listener is looked for, which the kernel tells nobody of, or what a program says.
const LOOK: Duration = Duration::from_millis(2);

/// A program, its children, and what they have said.
pub(crate) struct Group {
    name: String,
    child: Child,
    said: Arc<Mutex<Vec<u8>>>,
    readers: Vec<JoinHandle<()>>,
    host: std::path::PathBuf,
}

impl Group {
    /// Starts it in `host` without input.
    pub(crate) fn start(host: &Namespace, program: Command) -> Self {
        let name = format!("{program:?}");
        let mut command = Command::new("unshare");
        // The shell is the namespace's first process, for which signals have another meaning.
        command.args([
            "--pid",
            "--fork",
            "--kill-child",
            // Process ids there are those of the namespace.
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
        // With a group of its own the end of a stopped process never sends SIGHUP to the group of the tests, which the
        // kernel does to a group whose parents have exited (nohup, some CI runners).
        command.process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = host
            .spawn(&mut command)
            .unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        let said = Arc::new(Mutex::new(Vec::new()));
        let out = child.stdout.take().expect("it was asked for");
        let err = child.stderr.take().expect("it was asked for");
        let readers = vec![collect(out, said.clone()), collect(err, said.clone())];
        let host = host.path();
        Self { name, child, said, readers, host }
    }

    /// What it has said so far, both streams as they came.
    pub(crate) fn said(&self) -> String {
        String::from_utf8_lossy(&self.said.lock().expect("readers do not panic")).into_owned()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends a signal to the program of that name among all that it has started.
    ///
    /// # Panics
    ///
    /// When there is none.
    pub(crate) fn signal(&self, name: &str, signal: Signal) {
        let id = i32::try_from(self.process(name)).ok().and_then(Pid::from_raw);
        kill_process(id.expect("a process id"), signal).expect("it runs");
    }

    /// The process of the program of that name among all that it has started.
    ///
    /// # Panics
    ///
    /// When there is none.
    pub(crate) fn process(&self, name: &str) -> u32 {
        self.find_process(name).unwrap_or_else(|| panic!("no {name} runs: {}", self.report()))
    }

    /// As [`Self::process`]; `None`: there is none.
    pub(crate) fn find_process(&self, name: &str) -> Option<u32> {
        let mut all = vec![self.child.id()];
        let mut next = 0;
        while let Some(id) = all.get(next).copied() {
            next += 1;
            let name_of = fs::read_to_string(format!("/proc/{id}/comm")).unwrap_or_default();
            if name_of.trim_end() == name {
                return Some(id);
            }
            // Children are listed by the thread that has started them.
            for task in fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten() {
                let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
                all.extend(children.split_whitespace().filter_map(|id| id.parse::<u32>().ok()));
            }
        }
        None
    }

    /// Waits for its end or for `limit`; true when it has ended.
    fn wait_for(&self, limit: Duration) -> bool {
        let handle =
            pidfd_open(self.pid(), PidfdFlags::empty()).expect("our child has a descriptor");
        let mut ended = [PollFd::new(&handle, PollFlags::IN)];
        let timeout = Timespec::try_from(limit).expect("a limit of seconds fits");
        poll(&mut ended, Some(&timeout)).is_ok_and(|count| count > 0)
    }

    /// Waits until somebody in its namespace listens on the port; gives up when it ends before.
    ///
    /// # Errors
    /// Nobody does, and why.
    pub(crate) fn wait_for_listener(
        &self,
        host: &Namespace,
        port: u16,
        limit: Duration,
    ) -> Result<(), String> {
        let what = format!("listens on port {port}");
        self.wait_until(&what, limit, || host.run(|| listens(port)))
    }

    /// Looks again and again until `is_so`; gives up when it ends before.
    ///
    /// # Errors
    /// It is not, and why.
    pub(crate) fn wait_until(
        &self,
        what: &str,
        limit: Duration,
        mut is_so: impl FnMut() -> bool,
    ) -> Result<(), String> {
        let deadline = Instant::now() + limit;
        while !is_so() {
            if self.wait_for(LOOK) {
                return Err(format!("has ended, but not: {what}"));
            }
            if Instant::now() > deadline {
                return Err(format!("after {limit:?} not: {what}"));
            }
        }
        Ok(())
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It has not ended in time.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<ExitStatus, String> {
        if !self.wait_for(limit) {
            return Err(format!("has not ended in {limit:?}"));
        }
        let status = self.child.wait().map_err(|error| error.to_string())?;
        self.kill();
        Ok(status)
    }

    /// Kills what is left. Afterwards all that was said is there.
    pub(crate) fn kill(&mut self) {
        // Both fail only where it has ended and been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
    }

    /// Its command line and what it said, for a failure's message.
    pub(crate) fn report(&self) -> String {
        let mut text = String::new();
        writeln!(text, "--- {} (namespace {})", self.name, self.host.display()).expect("a String");
        text + &self.said()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// How it ended, in words.
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

/// Whether a TCP socket of the calling thread's namespace listens on the port.
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
