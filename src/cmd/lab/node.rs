//! Node of the lab: a process with an adapter on a TAP that runs one side of the script.
//!
//! Only the lab starts it (hidden command [`super::NODE_COMMAND`]). It creates its links through `super::session`,
//! opens an adapter, connects or accepts, and posts the work of [`super::script`] until that is done. Queue pair: at
//! most [`REQUESTS_MAX`] outstanding requests, one polled completion queue for both directions.
//!
//! A finished node keeps running until the lab closes its orders, so that it can acknowledge a retransmitted FIN. If
//! the orders are closed earlier, it exits immediately.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use flue_adapter::{AdapterOptions, SocketsOptions, TransportOptions, output};
use host_stack::{
    node::{Node, WaitError},
    stream::OffloadState,
};
use offload_engine::{tcp::TcpPhase, time::Instant as EngineInstant};
use rdma_over_tcp::{
    mpa::startup::Framing,
    ndk::{
        Adapter, AdapterConfig, AdapterCore, CallError, Cq, Data, DisconnectReason, FpduSize,
        History, MrFlags, NdkResultEx, NtStatus, OpFlags, OperationType, Pd, Qp, QpLimits,
        ReadLimit,
        blocking::{Connection, Incoming, Wait},
    },
};

use super::{
    children::{Orders, kill_with_parent},
    control::{Counters, FpduCut, Negotiated, NodePlan, Report, Side},
    memory::{Region, Slots, refused},
    script::{Chunk, Event, Initiator, ScriptError, Target, TransferKind, Work},
    session::Session,
};
use crate::{
    adapter::Transport,
    control::{
        message::NodeName,
        server::{self, Control},
    },
    failure::Failure,
    options::{NodeSetup, OutputArgs},
    station::Station,
    waker::Waker,
};

/// Shortest time between two progress reports of a transfer.
pub const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);
/// Initiator queue depth: outstanding requests.
pub const REQUESTS_MAX: u32 = 64;
/// Slots for control messages: more than either side of the script posts at once.
pub const CONTROL_SLOTS: u32 = 16;
/// Outstanding RDMA Reads requested in each direction.
pub const READS_MAX: u32 = 32;
const READ_LIMIT: ReadLimit = ReadLimit { inbound: READS_MAX, outbound: READS_MAX };
/// Time limit for the exchange of both FINs.
pub const CLOSE_LIMIT: Duration = Duration::from_secs(30);
/// Completions read per poll.
const RESULTS_MAX: usize = 64;
/// Request context of a receive into file memory. Other receives carry their slot number.
const DATA_CONTEXT: u64 = u64::MAX;

/// Run a node of the lab; started by "flue lab" only
#[derive(Args, Clone, Copy, Debug)]
pub struct LabNodeArgs {
    /// Role of the node
    pub side: Side,

    /// Use a shared network namespace and its loopback interface
    #[arg(long)]
    pub loopback: bool,

    /// Log events on standard error
    #[arg(long)]
    pub verbose: bool,

    /// Log every frame with its headers on standard error
    #[arg(long)]
    pub trace: bool,
}

impl LabNodeArgs {
    /// Returns the quietness of its output on the lab's standard error.
    pub const fn output_args(&self) -> OutputArgs {
        OutputArgs { quiet: false, trace: self.trace, json: false }
    }
}

/// Runs a node. Failures are reported to the lab, which prints them.
///
/// # Errors
/// The lab has exited.
pub fn run(args: &LabNodeArgs) -> Result<(), Failure> {
    let input = BufReader::new(io::stdin());
    let mut session = match Session::open(args.side, args.loopback, input, io::stdout()) {
        Ok(session) => session,
        Err((failure, mut reports)) => return reports.send(&Report::Failed { failure }),
    };
    let started = kill_with_parent()
        .map_err(|error| Failure::work(format!("death signal: {error}")))
        .and_then(|()| LabNode::start(&mut session));
    let (node, ended) = match started {
        Ok(mut node) => {
            let ended = node.act(&mut session);
            (Some(node), ended)
        }
        Err(failure) => (None, Err(failure)),
    };
    let is_done = ended.is_ok();
    // The result is reported to the lab, which prints it.
    if session.end(ended).is_ok()
        && let Some(node) = node.filter(|_| is_done)
    {
        node.linger();
        // The files of its options are complete only now.
        drop(node);
        if let Some(error) = output::take_failure() {
            return session.report(&Report::Failed { failure: error.into() });
        }
    }
    Ok(())
}

/// One side of the script.
trait Script {
    fn poll(&mut self) -> Option<Work>;
    fn handle(&mut self, event: &Event<'_>) -> Result<(), ScriptError>;
}

impl Script for Initiator {
    fn poll(&mut self) -> Option<Work> {
        Self::poll(self)
    }

    fn handle(&mut self, event: &Event<'_>) -> Result<(), ScriptError> {
        Self::handle(self, event)
    }
}

impl Script for Target {
    fn poll(&mut self) -> Option<Work> {
        Self::poll(self)
    }

    fn handle(&mut self, event: &Event<'_>) -> Result<(), ScriptError> {
        Self::handle(self, event)
    }
}

fn off_script(error: ScriptError) -> Failure {
    Failure::work(error.to_string())
}

/// Signals from other threads to the node's thread.
#[derive(Debug, Default)]
struct Signals {
    waker: Waker,
    /// True once the lab has closed the orders.
    released: AtomicBool,
}

impl Signals {
    /// Blocks until the orders end.
    fn await_end<R: BufRead>(&self, mut orders: Orders<R>) {
        // No further order exists: any result means that the lab releases the node.
        let _ = orders.receive();
        self.released.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// Node with its adapter and the objects of the script.
struct LabNode {
    _control: Option<Control>,
    /// `None` with kernel sockets.
    node: Option<Node<AdapterCore>>,
    adapter: Adapter,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    fpdus: FpduCut,
    signals: Arc<Signals>,
    slots: Slots,
    file: Option<Region>,
    vnet_header: Option<bool>,
    /// Time of connect or listen.
    began: Option<EngineInstant>,
    /// Start time of the transfer, and the counters at that time.
    mark: Option<(Instant, Counters)>,
    /// Last transfer, its data requests that have completed, and the time of its last progress report.
    passing: Option<(TransferKind, u64, Instant)>,
    /// Latest counters of the connection, kept after it closes.
    counters: Counters,
}

impl LabNode {
    /// Creates TAP, adapter and queue pair.
    fn start<R: BufRead, W: Write>(session: &mut Session<R, W>) -> Result<Self, Failure> {
        if session.plan().transport == Transport::Kernel {
            return Self::start_on_sockets(session);
        }
        let opened = session.open_links()?;
        let plan = session.plan();
        let (capabilities, vnet_header) = (opened.links[0].capabilities(), opened.vnet_header);
        let gso_packet_max = match plan.target {
            std::net::IpAddr::V4(_) => capabilities.tso4_max,
            std::net::IpAddr::V6(_) => capabilities.tso6_max,
        };
        // The peer runs the same implementation: with GSO, FPDUs may be as large as GSO packets.
        let (fpdu_size, fpdus) = match gso_packet_max {
            0 => (FpduSize::Emss, FpduCut::Emss),
            _ => (FpduSize::Max, FpduCut::GsoPacket),
        };
        let adapter = AdapterConfig { fpdu_size, ..AdapterConfig::default() };
        let opened = plan.setup.node.start_ndk(opened, adapter)?.pop();
        let (node, adapter) = opened.expect("a node for each link");
        let name = NodeName::of(&plan.setup.node);
        let control = server::serve(node.clone(), name, &plan.setup.control)?;
        Self::with_queue_pair(plan, (Some(node), adapter), control, (fpdus, Some(vnet_header)))
    }

    /// Creates adapter and queue pair on kernel sockets, without a TAP.
    fn start_on_sockets<R: BufRead, W: Write>(
        session: &mut Session<R, W>,
    ) -> Result<Self, Failure> {
        session.open_cable()?;
        let plan = session.plan();
        let NodeSetup { node, control } = &plan.setup;
        let sockets = SocketsOptions { pcap: node.pcap.clone(), seed: node.seed };
        let options = AdapterOptions {
            transport: TransportOptions::Sockets(sockets),
            control: Some(control.clone()),
            ..AdapterOptions::default()
        };
        let config = AdapterConfig { fpdu_size: FpduSize::Max, ..AdapterConfig::default() };
        let adapter = options.open(config)?.adapters.swap_remove(0);
        let control = options.serve(vec![adapter.clone()])?;
        Self::with_queue_pair(plan, (None, adapter), control, (FpduCut::Max, None))
    }

    fn with_queue_pair(
        plan: &NodePlan,
        (node, adapter): (Option<Node<AdapterCore>>, Adapter),
        control: Option<Control>,
        (fpdus, vnet_header): (FpduCut, Option<bool>),
    ) -> Result<Self, Failure> {
        let failed = |status| refused("create a queue pair", status);
        let receives = plan.window_receives + CONTROL_SLOTS;
        let cq = adapter.create_cq(receives + REQUESTS_MAX, |_| {}).map_err(failed)?;
        let pd = adapter.create_pd().map_err(failed)?;
        let limits = QpLimits {
            receive_queue_depth: receives,
            initiator_queue_depth: REQUESTS_MAX,
            ..QpLimits::default()
        };
        let qp = pd.create_qp(&cq, &cq, 0, limits).map_err(failed)?;
        let slots = Slots::new(&adapter, &pd, CONTROL_SLOTS)?;
        Ok(Self {
            _control: control,
            began: node.as_ref().map(Node::now),
            node,
            adapter,
            pd,
            cq,
            qp,
            fpdus,
            signals: Arc::default(),
            slots,
            file: None,
            vnet_header,
            mark: None,
            passing: None,
            counters: Counters::default(),
        })
    }

    /// Runs its side of the script, from connect to the exchange of both FINs.
    fn act<R, W>(&mut self, session: &mut Session<R, W>) -> Result<(), Failure>
    where
        R: BufRead + Send + 'static,
        W: Write,
    {
        match session.side() {
            Side::A => {
                let file = Region::of_file(&self.adapter, &self.pd, &session.plan().file)?;
                let digest = file.digest(|| {});
                let (length, source) = (file.len(), file.remote());
                self.file = Some(file);
                session.linked(self.vnet_header)?;
                let chunk = session.plan().chunk_bytes;
                let mut script = Initiator::new(length, chunk, REQUESTS_MAX, source, digest)
                    .map_err(off_script)?;
                self.post_control_receives(Initiator::receives_before_connect())?;
                let connection = self.connect(session)?;
                self.converse(session, &connection, &mut script)?;
                self.disconnect(session, &connection)?;
            }
            Side::B => {
                session.linked(self.vnet_header)?;
                let window = session.plan().window_receives;
                let mut script = Target::new(window, REQUESTS_MAX).map_err(off_script)?;
                self.post_control_receives(Target::receives_before_accept())?;
                let connection = self.accept(session)?;
                self.converse(session, &connection, &mut script)?;
                self.waiter(session, None).wait(|| connection.disconnection().reason())?;
                self.disconnect(session, &connection)?;
            }
        }
        session.report(&Report::Closed { counters: self.counters })
    }

    fn connect<R, W>(&mut self, session: &mut Session<R, W>) -> Result<Connection, Failure>
    where
        R: BufRead + Send + 'static,
        W: Write,
    {
        self.begin(session)?;
        if self.node.is_some() {
            session.moved(OffloadState::InHost, Duration::ZERO)?;
        }
        let remote = SocketAddr::new(session.plan().target, session.plan().port);
        let waiter = &mut self.waiter(session, None);
        let connection = Connection::connect(waiter, &self.qp, remote, READ_LIMIT, &[])?;
        self.report_connected(session)?;
        Ok(connection)
    }

    fn accept<R, W>(&mut self, session: &mut Session<R, W>) -> Result<Connection, Failure>
    where
        R: BufRead + Send + 'static,
        W: Write,
    {
        let local = SocketAddr::new(session.plan().target, session.plan().port);
        let waiter = &mut self.waiter(session, None);
        let mut incoming = Incoming::listen(waiter, local, 1)?;
        self.begin(session)?;
        let waiter = &mut self.waiter(session, None);
        let connector = incoming.next(waiter)?;
        let connection = Connection::accept(waiter, connector, &self.qp, READ_LIMIT, &[])?;
        self.report_connected(session)?;
        Ok(connection)
    }

    /// Records the start time, and starts the thread that detects the end of the orders.
    fn begin<R, W>(&mut self, session: &mut Session<R, W>) -> Result<(), Failure>
    where
        R: BufRead + Send + 'static,
        W: Write,
    {
        let orders = session.listening()?;
        self.began = self.node.as_ref().map(Node::now);
        let woken = self.adapter.clone();
        self.signals.waker.set(move || woken.wake());
        let signals = self.signals.clone();
        thread::Builder::new()
            .name("flue-orders".into())
            .spawn(move || signals.await_end(orders))
            .map(drop)
            .map_err(|error| Failure::work(format!("start a thread: {error}")))
    }

    /// Returns a waiter with the time limit `limit` that reports offload state changes.
    const fn waiter<'a, R: BufRead, W: Write>(
        &'a self,
        session: &'a mut Session<R, W>,
        limit: Option<Duration>,
    ) -> Waiter<'a, R, W> {
        Waiter { node: self, session, limit }
    }

    /// Reports the progress of the hand-over.
    fn watch<R: BufRead, W: Write>(&self, session: &mut Session<R, W>) -> Result<(), Failure> {
        if session.state() == Some(OffloadState::Offloaded) {
            return Ok(());
        }
        let Some(began) = self.began else { return Ok(()) };
        let Some(History { offloading, offloaded, .. }) = self.history() else { return Ok(()) };
        let moves = [(OffloadState::Offloading, offloading), (OffloadState::Offloaded, offloaded)];
        for (state, at) in moves {
            if let Some(at) = at {
                session.moved(state, at - began)?;
            }
        }
        Ok(())
    }

    fn history(&self) -> Option<History> {
        self.adapter.with(|core, _| core.histories().next().copied())
    }

    fn report_connected<R: BufRead, W: Write>(
        &self,
        session: &mut Session<R, W>,
    ) -> Result<(), Failure> {
        let history = self.history().unwrap_or_default();
        let framing = history.negotiated.map(|negotiated| negotiated.framing);
        session.connected(Negotiated {
            mpa_revision: history.negotiated.map(|negotiated| negotiated.revision as u8),
            crc: framing.map(|Framing { crc, .. }| crc),
            markers: framing.map(|framing| framing.send_markers || framing.receive_markers),
            inbound_reads: history.limits.map(|limits| limits.inbound),
            outbound_reads: history.limits.map(|limits| limits.outbound),
            fpdus: Some(self.fpdus),
        })
    }

    fn post_control_receives(&mut self, count: usize) -> Result<(), Failure> {
        (0..count).try_for_each(|_| self.post_control_receive())
    }

    fn post_control_receive(&mut self) -> Result<(), Failure> {
        let (slot, sge) = self
            .slots
            .take()
            .ok_or_else(|| Failure::work("lab: more control receives than slots"))?;
        self.qp.receive(slot.into(), &[sge]).map_err(|status| refused("post a receive", status))
    }

    /// Posts the script's work and passes completions to the script, until it is done.
    fn converse<R: BufRead, W: Write>(
        &mut self,
        session: &mut Session<R, W>,
        connection: &Connection,
        script: &mut impl Script,
    ) -> Result<(), Failure> {
        let mut results = [NdkResultEx::default(); RESULTS_MAX];
        loop {
            while let Some(work) = script.poll() {
                if work == Work::Done {
                    return Ok(());
                }
                self.work(session, script, work)?;
            }
            let count = connection.poll(&mut self.waiter(session, None), &self.cq, &mut results)?;
            if count == 0 {
                return Err(ended_early(connection));
            }
            for result in &results[..count] {
                self.complete(script, result)?;
            }
            self.report_progress(session)?;
        }
    }

    fn complete(&mut self, script: &mut impl Script, result: &NdkResultEx) -> Result<(), Failure> {
        let NdkResultEx { status, operation, bytes_transferred, request_context, .. } = *result;
        if status != NtStatus::SUCCESS {
            return Err(refused(&operation.to_string(), status));
        }
        let handled = match (operation, request_context) {
            (OperationType::Receive, DATA_CONTEXT) => {
                script.handle(&Event::Data(bytes_transferred))
            }
            (OperationType::Receive, slot) => {
                let slot = u32::try_from(slot).map_err(|_| {
                    Failure::work("lab: completion of a receive that was not posted")
                })?;
                let octets = self.slots.release(slot, bytes_transferred);
                script.handle(&Event::Control(&octets))
            }
            (_, context) => {
                if let (DATA_CONTEXT, Some((_, completed, _))) = (context, &mut self.passing) {
                    *completed += 1;
                }
                script.handle(&Event::RequestDone)
            }
        };
        handled.map_err(off_script)
    }

    fn work<R: BufRead, W: Write>(
        &mut self,
        session: &mut Session<R, W>,
        script: &mut impl Script,
        work: Work,
    ) -> Result<(), Failure> {
        match work {
            Work::Prepare(length) => {
                let rights = MrFlags::ALLOW_REMOTE_WRITE;
                let file = Region::new(&self.adapter, &self.pd, length, rights)?;
                file.clear(|| self.run_engine());
                let sink = file.remote();
                self.file = Some(file);
                script.handle(&Event::Prepared(sink)).map_err(off_script)
            }
            Work::Hash => {
                let digest = self.file()?.digest(|| self.run_engine());
                script.handle(&Event::Hashed(digest)).map_err(off_script)
            }
            Work::Clear => {
                self.file()?.clear(|| self.run_engine());
                Ok(())
            }
            Work::ReceiveControl => self.post_control_receive(),
            Work::Begin(passage) => {
                self.mark = Some((Instant::now(), self.count()));
                self.passing = Some((passage, 0, Instant::now()));
                Ok(())
            }
            Work::End(passage) => self.report_passed(session, passage),
            Work::Verified(passage, digest) => {
                let sha256 = digest.iter().map(|octet| format!("{octet:02x}")).collect();
                session.report(&Report::Verified { passage, sha256 })
            }
            Work::ReceiveData(_)
            | Work::SendControl(_)
            | Work::SendData(_)
            | Work::Write { .. }
            | Work::Read { .. } => self.post(&work).map_err(|failure| failure.at("post")),
            Work::Done => Ok(()),
        }
    }

    fn post(&self, work: &Work) -> Result<(), Failure> {
        let sge = |chunk: Chunk| self.file().map(|file| [file.sge(chunk)]);
        let none = OpFlags::empty();
        let (what, posted) = match work {
            Work::ReceiveData(chunk) => ("receive", self.qp.receive(DATA_CONTEXT, &sge(*chunk)?)),
            Work::SendControl(control) => {
                ("send", self.qp.send(0, Data::Inline(&[&control.encode()]), none))
            }
            Work::SendData(chunk) => {
                ("send", self.qp.send(DATA_CONTEXT, Data::Registered(&sge(*chunk)?), none))
            }
            Work::Write { from, to } => {
                let data = sge(*from)?;
                let data = Data::Registered(&data);
                ("write", self.qp.write(DATA_CONTEXT, data, to.address, to.token, none))
            }
            Work::Read { from, to } => {
                ("read", self.qp.read(DATA_CONTEXT, &sge(*to)?, from.address, from.token, none))
            }
            _ => ("nothing", Ok(())),
        };
        posted.map_err(|status| refused(what, status))
    }

    fn file(&self) -> Result<&Region, Failure> {
        self.file.as_ref().ok_or_else(|| Failure::work("lab: no memory for the file"))
    }

    /// With manual progress the engine runs only when the queue is polled.
    fn run_engine(&self) {
        self.cq.poll_ex(&mut []);
    }

    /// Reports the progress of the transfer, at most every [`PROGRESS_INTERVAL`].
    fn report_progress<R: BufRead, W: Write>(
        &mut self,
        session: &mut Session<R, W>,
    ) -> Result<(), Failure> {
        let chunk_bytes = u64::from(session.plan().chunk_bytes);
        let Some((passage, completed, reported)) = &mut self.passing else { return Ok(()) };
        if *completed == 0 || reported.elapsed() < PROGRESS_INTERVAL {
            return Ok(());
        }
        *reported = Instant::now();
        let (passage, bytes) = (*passage, *completed * chunk_bytes);
        let bytes = bytes.min(self.file()?.len());
        session.report(&Report::Progress { passage, bytes })
    }

    fn report_passed<R: BufRead, W: Write>(
        &mut self,
        session: &mut Session<R, W>,
        passage: TransferKind,
    ) -> Result<(), Failure> {
        self.passing = None;
        let (began, before) = self.mark.take().unwrap_or_else(|| (Instant::now(), self.counters));
        let time_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let counters = self.count().since(before);
        let bytes = self.file()?.len();
        let state = match self.node {
            Some(_) => session.state().unwrap_or(OffloadState::InHost),
            None => OffloadState::Kernel,
        };
        session.report(&Report::Passed { passage, bytes, time_ns, counters, state })
    }

    /// Returns the counters of the connection, or their latest values if it has closed.
    fn count(&mut self) -> Counters {
        if let Some((_, counters)) = self.snapshot() {
            self.counters = counters;
        }
        self.counters
    }

    fn snapshot(&self) -> Option<(TcpPhase, Counters)> {
        self.node.as_ref()?.with_engine(|engine, now| {
            let (_, _, info) = engine.connections().list(now).next()?;
            let counters = Counters {
                segments: Some(info.segs_out),
                retransmitted_segments: Some(info.total_retrans),
                psh_segments: Some(info.push_out),
            };
            Some((info.phase, counters))
        })
    }

    /// Disconnects, and waits for the exchange of both FINs.
    fn disconnect<R: BufRead, W: Write>(
        &mut self,
        session: &mut Session<R, W>,
        connection: &Connection,
    ) -> Result<(), Failure> {
        connection.disconnect(&mut self.waiter(session, None))?;
        let mut counters = self.counters;
        let closed = self.waiter(session, Some(CLOSE_LIMIT)).wait(|| match self.snapshot() {
            None => Some(()),
            Some((phase, latest)) => {
                counters = latest;
                (phase == TcpPhase::TimeWait).then_some(())
            }
        });
        self.counters = counters;
        closed.map_err(|failure| failure.at("disconnect"))
    }

    /// Keeps the node running until the lab closes the orders.
    fn linger(&self) {
        let released = || self.signals.released.load(Ordering::Acquire).then_some(());
        match self.adapter.wait_until(None, released) {
            Ok(()) | Err(WaitError::TimedOut) => {}
            Err(error) => tracing::warn!(%error, "linger failed"),
        }
    }
}

/// Waiter that fails if the lab closes the orders.
struct Waiter<'a, R: BufRead, W: Write> {
    node: &'a LabNode,
    session: &'a mut Session<R, W>,
    limit: Option<Duration>,
}

impl<R: BufRead, W: Write> Wait for Waiter<'_, R, W> {
    type Error = Failure;

    fn adapter(&self) -> &Adapter {
        &self.node.adapter
    }

    fn failed(&self, error: CallError) -> Failure {
        Station::default().failure(&error)
    }

    fn wait<T>(&mut self, mut condition: impl FnMut() -> Option<T>) -> Result<T, Failure> {
        let Self { node, session, limit } = self;
        let waited = node.adapter.wait_until(*limit, || {
            if node.signals.released.load(Ordering::Acquire) {
                return Some(Err(Failure::work("lab: exited")));
            }
            match node.watch(session) {
                Ok(()) => condition().map(Ok),
                Err(failure) => Some(Err(failure)),
            }
        });
        waited.unwrap_or_else(|error| Err(Failure::work(error.to_string())))
    }
}

/// Returns the failure for a connection that ended before the script.
fn ended_early(connection: &Connection) -> Failure {
    let reason = DisconnectReason(connection.disconnection().reason().unwrap_or(0));
    Failure::work(format!("connection: closed before the end of the transfer: {reason}"))
}

impl Drop for LabNode {
    fn drop(&mut self) {
        self.signals.waker.clear();
    }
}
