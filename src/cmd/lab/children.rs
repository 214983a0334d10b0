//! Node processes of the lab: start, orders, reports and termination.
//!
//! Each process reads the orders of the lab from its standard input and writes reports to its standard output. One
//! thread per node reads the reports, so that reports, process exits and signals share one channel.
//!
//! No node outlives the lab. A node is shut down by closing its standard input; it is killed after [`END_LIMIT`]. If
//! the lab itself is killed, the kernel kills its nodes (each requests that, see [`kill_with_parent`]). Namespaces,
//! TAPs, bridges and the cable are removed with the processes. Nodes run in separate process groups, so that Ctrl-C
//! reaches only the lab and is not mistaken for the exit of a node.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender, unbounded};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, set_parent_process_death_signal};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use super::control::{LINE_BYTES_MAX, Order, Report, Side};
use crate::failure::Failure;

/// Time limit for the exit of a node after its standard input is closed.
pub const END_LIMIT: Duration = Duration::from_secs(3);

/// Input of the lab's event loop.
#[derive(Debug)]
pub enum Input {
    /// Report of a node.
    Report(Side, Report),
    /// Output line of a node that is not a report.
    Invalid(Side, String),
    /// End of a node's standard output: its process has exited or is about to.
    Ended(Side),
    /// SIGINT, SIGTERM or SIGHUP.
    Signal(i32),
}

struct Node {
    process: Child,
    orders: Option<ChildStdin>,
}

/// The two node processes.
pub struct Children {
    nodes: [Node; 2],
    inputs: Receiver<Input>,
    /// Number of nodes whose reports have not ended.
    readers: usize,
    signals: signal_hook::iterator::Handle,
}

impl std::fmt::Debug for Children {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Children").finish_non_exhaustive()
    }
}

impl Children {
    /// Starts the processes of A and B, and catches signals. The calling thread must live as long as the processes,
    /// because the kernel sends their parent-death signal when this thread exits.
    ///
    /// # Errors
    /// A process or thread could not be started.
    pub fn start(commands: [Command; 2]) -> Result<Self, Failure> {
        let failed = |what: &str| {
            let what = what.to_owned();
            move |error: io::Error| Failure::work(format!("{what}: {error}"))
        };
        let (sender, inputs) = unbounded();
        let mut signals =
            Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed("catch signals"))?;
        let handle = signals.handle();
        let to_lab = sender.clone();
        thread::Builder::new()
            .name("flue-signals".into())
            .spawn(move || {
                for signal in signals.forever() {
                    // The receiver is closed once the lab has finished.
                    let _ = to_lab.send(Input::Signal(signal));
                }
            })
            .map_err(failed("start a thread"))?;
        let [a, b] = commands;
        let start = |command, side| {
            let what = format!("start node {side}");
            Node::start(command, side, sender.clone()).map_err(failed(&what))
        };
        let started = start(a, Side::A).and_then(|mut a| match start(b, Side::B) {
            Ok(b) => Ok([a, b]),
            Err(failure) => {
                // The failure is reported; the exit status adds nothing.
                let _ = a.end();
                Err(failure)
            }
        });
        match started {
            Ok(nodes) => {
                let readers = nodes.len();
                Ok(Self { nodes, inputs, readers, signals: handle })
            }
            Err(failure) => {
                handle.close();
                Err(failure)
            }
        }
    }

    /// Returns the next input.
    ///
    /// # Errors
    /// No input within `limit`.
    pub fn next(&mut self, limit: Duration) -> Result<Input, Failure> {
        let stalled = |_| Failure::work(format!("lab: no progress for {} s", limit.as_secs()));
        let input = self.inputs.recv_timeout(limit).map_err(stalled)?;
        self.readers -= usize::from(matches!(input, Input::Ended(_)));
        Ok(input)
    }

    /// Sends an order.
    ///
    /// # Errors
    /// The node has exited.
    pub fn order(&mut self, side: Side, order: &Order) -> Result<(), Failure> {
        let line = serde_json::to_string(order)
            .map_err(|error| Failure::work(format!("order to node {side}: {error}")))?;
        let Some(orders) = &mut self.nodes[side.index()].orders else {
            return Err(Failure::work(format!("order to node {side}: the node is shutting down")));
        };
        writeln!(orders, "{line}")
            .map_err(|error| Failure::work(format!("order to node {side}: {error}")))
    }

    /// Waits for the exit of the nodes after their work is done, at most [`END_LIMIT`] each.
    ///
    /// # Errors
    /// A node reports a failure, for example a capture that could not be written, or exits with a status other than 0.
    /// A node that had to be killed is not an error.
    pub fn finish(&mut self) -> Result<(), Failure> {
        for node in &mut self.nodes {
            node.orders = None;
        }
        for side in Side::BOTH {
            if let Ok(status) = self.nodes[side.index()].end()
                && status.code().is_some_and(|code| code != 0)
            {
                return Err(Failure::work(format!("node {side}: process exited: {status}")));
            }
        }
        // The readers of the reports end with the processes.
        while self.readers > 0 {
            if let Input::Report(side, Report::Failed { failure }) = self.next(END_LIMIT)? {
                return Err(failure.at(&format!("node {side}")));
            }
        }
        Ok(())
    }

    /// Returns a description of a node's exit. Waits at most [`END_LIMIT`], then kills the process.
    pub fn ending(&mut self, side: Side) -> String {
        match self.nodes[side.index()].end() {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        }
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            node.orders = None;
        }
        for node in &mut self.nodes {
            // The exit status of a node shut down by the lab carries no information.
            let _ = node.end();
        }
        self.signals.close();
    }
}

impl Node {
    fn start(mut command: Command, side: Side, to_lab: Sender<Input>) -> io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut process = command.spawn()?;
        let orders = process.stdin.take();
        let reports = process.stdout.take();
        let mut node = Self { process, orders };
        let reader = thread::Builder::new().name(format!("flue-lab-{side}")).spawn(move || {
            if let Some(reports) = reports {
                read_reports(side, reports, &to_lab);
            }
            let _ = to_lab.send(Input::Ended(side));
        });
        if let Err(error) = reader {
            node.orders = None;
            let _ = node.end();
            return Err(error);
        }
        Ok(node)
    }

    /// Waits for the process at most [`END_LIMIT`], then kills it.
    fn end(&mut self) -> io::Result<ExitStatus> {
        self.orders = None;
        if !wait_for(&self.process, END_LIMIT) {
            self.process.kill()?;
        }
        self.process.wait()
    }
}

/// Returns true if the process exits within `limit`.
fn wait_for(process: &Child, limit: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let Some(pid) = i32::try_from(process.id()).ok().and_then(Pid::from_raw) else { return false };
    let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) else {
        // Already reaped, or a kernel without pidfd (before 5.3): kill immediately.
        return false;
    };
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok(timeout) = Timespec::try_from(left) else { return false };
        match poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

fn read_reports(side: Side, reports: impl Read, to_lab: &Sender<Input>) {
    let mut reports = BufReader::new(reports);
    loop {
        let mut line = String::new();
        let read = reports.by_ref().take(LINE_BYTES_MAX).read_line(&mut line);
        let input = match read {
            Ok(0) => return,
            Ok(_) => match serde_json::from_str(&line) {
                Ok(report) => Input::Report(side, report),
                Err(_) => Input::Invalid(side, line),
            },
            Err(error) => Input::Invalid(side, error.to_string()),
        };
        let is_invalid = matches!(input, Input::Invalid(..));
        if to_lab.send(input).is_err() || is_invalid {
            return;
        }
    }
}

/// Requests SIGKILL for this process when the thread that started it exits. A node calls it first.
///
/// # Errors
/// Not supported by this kernel.
pub fn kill_with_parent() -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Writer of a node's reports.
#[derive(Debug)]
pub struct Reports<W: Write> {
    out: W,
}

impl<W: Write> Reports<W> {
    /// Creates a writer to `out`, one report per line.
    pub const fn new(out: W) -> Self {
        Self { out }
    }

    /// Writes a report.
    ///
    /// # Errors
    /// The lab has exited.
    pub fn send(&mut self, report: &Report) -> Result<(), Failure> {
        let line = serde_json::to_string(report)
            .map_err(|error| Failure::work(format!("report: {error}")))?;
        writeln!(self.out, "{line}")
            .and_then(|()| self.out.flush())
            .map_err(|error| Failure::work(format!("report: the lab has exited: {error}")))
    }
}

/// Reader of a node's orders.
#[derive(Debug)]
pub struct Orders<R: BufRead> {
    input: R,
}

impl<R: BufRead> Orders<R> {
    /// Creates a reader of `input`, one order per line.
    pub const fn new(input: R) -> Self {
        Self { input }
    }

    /// Returns the next order.
    ///
    /// # Errors
    /// The lab has exited, or sent a line that is not an order.
    pub fn receive(&mut self) -> Result<Order, Failure> {
        let mut line = String::new();
        match self.input.by_ref().take(LINE_BYTES_MAX).read_line(&mut line) {
            Ok(0) => Err(Failure::work("order: the lab has exited")),
            Ok(_) => serde_json::from_str(&line)
                .map_err(|error| Failure::work(format!("order: {error}"))),
            Err(error) => Err(Failure::work(format!("order: {error}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(script);
        command
    }

    fn has_exited(pid: u32) -> bool {
        !std::path::Path::new(&format!("/proc/{pid}")).exists()
    }

    #[test]
    fn reports_and_exits_share_one_channel() {
        let a = shell(
            r#"echo '{"report":"namespace","pid":5}'; read order; echo "$order" >&2; exit 7"#,
        );
        let b = shell("echo not a report; read order");
        let mut children = Children::start([a, b]).unwrap();
        let mut seen = [false; 2];
        while seen != [true; 2] {
            match children.next(LIMIT).unwrap() {
                Input::Report(Side::A, Report::Namespace { pid: 5 }) => seen[0] = true,
                Input::Invalid(Side::B, line) => {
                    assert_eq!(line, "not a report\n");
                    seen[1] = true;
                }
                Input::Ended(Side::B) => {}
                other => panic!("{other:?}"),
            }
        }
        children.order(Side::A, &Order::Connect).unwrap();
        while !matches!(children.next(LIMIT).unwrap(), Input::Ended(Side::A)) {}
        assert_eq!(children.ending(Side::A), "exit status: 7");
    }

    #[test]
    fn dropped_lab_ends_all_nodes() {
        // One node exits when its orders end, the other has to be killed.
        let cooperative = shell("while read order; do :; done");
        let unresponsive =
            shell("trap '' TERM; while :; do read order || exec tail -f /dev/null; done");
        let children = Children::start([cooperative, unresponsive]).unwrap();
        let pids = children.nodes.each_ref().map(|node| node.process.id());
        let started = Instant::now();
        drop(children);
        assert!(pids.into_iter().all(has_exited));
        assert!(started.elapsed() < END_LIMIT + LIMIT);
    }

    #[test]
    fn failure_after_the_work_is_the_result() {
        let failed = r#"{"report":"failed","failure":{"kind":"failure","message":"--pcap x: full","hint":null}}"#;
        let a = shell(&format!("echo '{{\"report\":\"done\"}}'; read order; echo '{failed}'"));
        let b = shell("echo '{\"report\":\"done\"}'");
        let mut children = Children::start([a, b]).unwrap();
        let mut done = 0;
        while done < 2 {
            done += usize::from(matches!(
                children.next(LIMIT).unwrap(),
                Input::Report(_, Report::Done)
            ));
        }
        let failure = children.finish().unwrap_err();
        assert_eq!(failure.message, "node A: --pcap x: full");
    }

    #[test]
    fn missing_report_times_out() {
        let quiet = || shell("read order");
        let mut children = Children::start([quiet(), quiet()]).unwrap();
        let failure = children.next(Duration::from_millis(10)).unwrap_err();
        assert!(failure.message.contains("no progress"), "{failure}");
    }

    #[test]
    fn missing_program_is_reported() {
        let absent = || Command::new("/nonexistent/flue");
        let failure = Children::start([absent(), absent()]).unwrap_err();
        assert!(failure.message.contains("start node A"), "{failure}");
        let failure = Children::start([shell("read order"), absent()]).unwrap_err();
        assert!(failure.message.contains("start node B"), "{failure}");
    }

    #[test]
    fn orders_and_reports_are_lines() {
        let mut out = Vec::new();
        Reports::new(&mut out).send(&Report::Done).unwrap();
        assert_eq!(out, b"{\"report\":\"done\"}\n");
        let mut orders = Orders::new(&b"{\"order\":\"connect\"}\nnonsense\n"[..]);
        assert_eq!(orders.receive().unwrap(), Order::Connect);
        assert!(orders.receive().is_err());
        assert!(orders.receive().unwrap_err().message.contains("exited"));
    }
}
