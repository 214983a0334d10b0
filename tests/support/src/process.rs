//! A program under test: its lines as they come, a deadline for each wait, and its certain end.
//!
//! A process that is dropped is killed, by its own process id. Waiting for its end uses a
//! descriptor of the process (pidfd), not a poll in a loop.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::netns::Namespace;

/// What is done with a program's standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Read line by line, as its standard error always is.
    Lines,
    /// Left for the test to read as bytes: [`Process::take_output`].
    Bytes,
}

/// A program that was started and is ended with this value.
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
    /// When it does not start.
    pub fn start(host: &Namespace, mut command: Command, output: Output) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let name = format!("{command:?}");
        let mut child = host
            .spawn(&mut command)
            .unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        let (sender, lines) = mpsc::channel();
        if output == Output::Lines {
            forward(child.stdout.take().expect("it was asked for"), sender.clone());
        }
        forward(child.stderr.take().expect("it was asked for"), sender);
        Self { name, child, lines, log: Vec::new() }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its standard input; dropping it is end of file.
    ///
    /// # Panics
    ///
    /// When it was taken before.
    pub fn take_input(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("standard input is taken once")
    }

    /// Its standard output as bytes.
    ///
    /// # Panics
    ///
    /// When it was taken before, or the process was started with [`Output::Lines`].
    pub fn take_output(&mut self) -> ChildStdout {
        self.child.stdout.take().expect("standard output is bytes, and taken once")
    }

    /// Waits for a line in which `text` occurs, and returns it. Lines before it go to the log.
    ///
    /// # Panics
    ///
    /// When none came within `limit` or before the program closed its output; the message has the
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
                Err(RecvTimeoutError::Timeout) => self.fail(&format!("no `{text}` in {limit:?}")),
                Err(RecvTimeoutError::Disconnected) => self.fail(&format!("ended before `{text}`")),
            }
        }
    }

    /// All lines so far, those that nobody waited for too.
    pub fn log(&mut self) -> &[String] {
        self.log.extend(self.lines.try_iter());
        &self.log
    }

    /// All that it says until it closes its output and error, as one text.
    ///
    /// # Panics
    ///
    /// When it says nothing for `limit` and does not close them.
    pub fn all_lines(&mut self, limit: Duration) -> String {
        loop {
            match self.lines.recv_timeout(limit) {
                Ok(line) => self.log.push(line),
                Err(RecvTimeoutError::Timeout) => self.fail("does not close its output"),
                Err(RecvTimeoutError::Disconnected) => return self.log.join("\n"),
            }
        }
    }

    /// Sends a signal to it.
    ///
    /// # Panics
    ///
    /// When it has ended: its process id may be another's by now.
    pub fn signal(&mut self, signal: Signal) {
        assert_eq!(self.ended(), None, "{} has ended already", self.name);
        kill_process(Pid::from_child(&self.child), signal).expect("our child can be signalled");
    }

    /// Waits for its end. Its standard input is closed first, if it was not taken.
    ///
    /// # Panics
    ///
    /// When it does not end within `limit`; the message has the log.
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        drop(self.child.stdin.take());
        if let Some(status) = self.ended() {
            return status;
        }
        let handle = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())
            .expect("our child has a descriptor");
        let mut ended = [PollFd::new(&handle, PollFlags::IN)];
        let timeout = Timespec::try_from(limit).expect("a limit of seconds fits");
        if poll(&mut ended, Some(&timeout)) == Ok(0) {
            self.fail(&format!("has not ended in {limit:?}"));
        }
        self.child.wait().expect("our child can be waited for")
    }

    /// Waits for its end and asserts its exit status: 0 done, 1 the work failed, 2 used wrongly,
    /// 3 the machine lacks something.
    ///
    /// # Panics
    ///
    /// Otherwise, with the log.
    pub fn expect_exit(&mut self, code: i32, limit: Duration) {
        let status = self.wait(limit);
        if status.code() != Some(code) {
            let signal = status.signal();
            self.fail(&format!("ended with {status} (signal {signal:?}), not {code}"));
        }
    }

    /// Whether it has not ended yet.
    ///
    /// # Panics
    ///
    /// When the kernel does not know it.
    pub fn is_running(&mut self) -> bool {
        self.ended().is_none()
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("our child can be waited for")
    }

    fn fail(&mut self, why: &str) -> ! {
        // What it still has to say may be the very reason: collect it until the pipes close.
        let _ = self.child.kill();
        while let Ok(line) = self.lines.recv_timeout(Duration::from_secs(1)) {
            self.log.push(line);
        }
        panic!("{} {why}; it said:\n{}", self.name, self.log.join("\n"));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only where the process has ended and been waited for.
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
