//! Program under test: its lines as they are written, a deadline for each wait, and guaranteed termination.
//!
//! Dropping a process kills it, by its own process id. The wait for its exit uses a descriptor of the process
//! (pidfd) instead of polling.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::netns::Namespace;

/// Handling of a program's standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Read line by line, as standard error always is.
    Lines,
    /// Available to the test as bytes: [`Process::take_output`].
    Bytes,
}

/// Running program that is killed when this value is dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    lines: Receiver<String>,
    log: Vec<String>,
}

impl Process {
    /// Starts `command` in `host`, with pipes as standard input, output and error.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start(host: &Namespace, mut command: Command, output: Output) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let name = format!("{command:?}");
        let mut child =
            host.spawn(&mut command).unwrap_or_else(|error| panic!("{name} not started: {error}"));
        let (sender, lines) = mpsc::channel();
        if output == Output::Lines {
            forward(child.stdout.take().expect("stdout is piped"), sender.clone());
        }
        forward(child.stderr.take().expect("stderr is piped"), sender);
        Self { name, child, lines, log: Vec::new() }
    }

    /// Process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Standard input of the process; dropping it is end of file.
    ///
    /// # Panics
    ///
    /// If it was taken before.
    pub fn take_input(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("standard input is taken once")
    }

    /// Standard output of the process, as bytes.
    ///
    /// # Panics
    ///
    /// If it was taken before, or the process was started with [`Output::Lines`].
    pub fn take_output(&mut self) -> ChildStdout {
        self.child.stdout.take().expect("standard output is bytes, and taken once")
    }

    /// Waits for a line that contains `text`, and returns it. Earlier lines are added to the log.
    ///
    /// # Panics
    ///
    /// If no such line arrives within `limit` or before the program closes its output. The message contains the
    /// log.
    pub fn expect_line(&mut self, text: &str, limit: Duration) -> String {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    let found = line.contains(text);
                    self.log.push(line.clone());
                    if found {
                        return line;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.fail(&format!("no `{text}` within {limit:?}"))
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.fail(&format!("exited before `{text}`"))
                }
            }
        }
    }

    /// All lines so far, unexpected ones included.
    pub fn log(&mut self) -> &[String] {
        self.log.extend(self.lines.try_iter());
        &self.log
    }

    /// All lines until the program closes its output and error, as one text.
    ///
    /// # Panics
    ///
    /// If it writes nothing for `limit` and does not close them.
    pub fn all_lines(&mut self, limit: Duration) -> String {
        loop {
            match self.lines.recv_timeout(limit) {
                Ok(line) => self.log.push(line),
                Err(RecvTimeoutError::Timeout) => self.fail("output not closed"),
                Err(RecvTimeoutError::Disconnected) => return self.log.join("\n"),
            }
        }
    }

    /// Sends a signal to the process.
    ///
    /// # Panics
    ///
    /// If it has exited: its process id may be in use by another process.
    pub fn signal(&mut self, signal: Signal) {
        assert_eq!(self.ended(), None, "{} already exited", self.name);
        kill_process(Pid::from_child(&self.child), signal).expect("the child can be signaled");
    }

    /// Waits for the exit. Closes standard input first, if it was not taken.
    ///
    /// # Panics
    ///
    /// If it does not exit within `limit`; the message contains the log.
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        drop(self.child.stdin.take());
        if let Some(status) = self.ended() {
            return status;
        }
        let handle = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())
            .expect("the child has a descriptor");
        let mut ended = [PollFd::new(&handle, PollFlags::IN)];
        let timeout = Timespec::try_from(limit).expect("a limit of seconds fits");
        if poll(&mut ended, Some(&timeout)) == Ok(0) {
            self.fail(&format!("still running after {limit:?}"));
        }
        self.child.wait().expect("the child can be waited for")
    }

    /// Waits for the exit and asserts the exit status: 0 success, 1 failure, 2 usage error, 3 missing
    /// prerequisite.
    ///
    /// # Panics
    ///
    /// If the assertion fails; the message has the log.
    pub fn expect_exit(&mut self, code: i32, limit: Duration) {
        let status = self.wait(limit);
        if status.code() != Some(code) {
            let signal = status.signal();
            self.fail(&format!("exited with {status} (signal {signal:?}), expected {code}"));
        }
    }

    /// True if it has not exited.
    ///
    /// # Panics
    ///
    /// If the kernel does not have the process.
    pub fn is_running(&mut self) -> bool {
        self.ended().is_none()
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("the child can be waited for")
    }

    fn fail(&mut self, why: &str) -> ! {
        // The remaining output may contain the reason: collect it until the pipes close.
        let _ = self.child.kill();
        while let Ok(line) = self.lines.recv_timeout(Duration::from_secs(1)) {
            self.log.push(line);
        }
        panic!("{} {why}; its output:\n{}", self.name, self.log.join("\n"));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if the process has exited and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn forward(pipe: impl std::io::Read + Send + 'static, lines: mpsc::Sender<String>) {
    thread::spawn(move || {
        for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            if lines.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
}
