//! A node of the lab: a process of its own, with an adapter on a TAP, that acts one side of the script.
//!
//! Only the lab starts it (hidden command [`super::NODE_COMMAND`]). It does what `super::session` brings
//! about, opens an adapter, connects or accepts, and then posts what [`super::script`] says until that is
//! done. Queue pair: at most [`REQUESTS_MAX`] requests at once, one completion queue for both
//! directions, which is polled.
//!
//! When it is done it stays, and answers a FIN whose acknowledgement was lost, until the lab closes
//! its orders. When that happens before, it ends at once.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::SocketAddr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use crossbeam_channel::bounded;
use host_stack::node::{Node, WaitError};
use offload_engine::{tcp::TcpPhase, time::Instant as EngineInstant};
use rdma_over_tcp::{
    mpa::startup::Framing,
    ndk::{
        Adapter, AdapterCore, Connector, Cq, Data, DisconnectEvent, FpduSize, History, MrFlags,
        NdkResultEx, NtStatus, OpFlags, OperationType, Pd, Qp, QpLimits, ReadLimit,
    },
};

use super::{
    children::{Orders, die_with_parent},
    control::{Counters, FpduCut, Negotiated, OffloadState, Report, Side},
    memory::{Region, Slots, refused},
    script::{Chunk, Event, Initiator, Passage, ScriptError, Target, Work},
    session::Session,
};
use crate::{
    control::server::{self, Control},
    failure::Failure,
    node::{OpenLink, open_adapter},
    options::Quietness,
    waker::Waker,
};

/// Requests posted and not complete, of the queue pair's depth.
pub const REQUESTS_MAX: u32 = 64;
/// Slots for control messages: more than either side of the script has posted at once.
pub const CONTROL_SLOTS: u32 = 16;
/// RDMA Reads at once, asked for in each direction.
pub const READS_MAX: u32 = 32;
/// How long both FINs may take to cross.
pub const CLOSE_LIMIT: Duration = Duration::from_secs(30);
/// Completions taken at once.
const RESULTS_MAX: usize = 64;
/// Context of a receive over file memory; the others carry their slot.
const DATA_CONTEXT: u64 = u64::MAX;

/// Run a node of the lab; only the lab does
#[derive(Args, Clone, Copy, Debug)]
pub struct LabNodeArgs {
    /// Which
    pub side: Side,

    /// Log what happens on standard error
    #[arg(long)]
    pub verbose: bool,

    /// Log each frame on standard error
    #[arg(long)]
    pub trace: bool,
}

impl LabNodeArgs {
    /// What it prints on the lab's standard error.
    pub const fn voice(&self) -> Quietness {
        Quietness { quiet: false, trace: self.trace, json: false }
    }
}

/// Runs a node. Its failures are the lab's to tell: they go there as a report.
///
/// # Errors
/// The lab is gone.
pub fn run(args: &LabNodeArgs) -> Result<(), Failure> {
    let input = BufReader::new(io::stdin());
    let mut session = match Session::open(args.side, input, io::stdout()) {
        Ok(session) => session,
        Err((failure, mut reports)) => return reports.send(&Report::Failed { failure }),
    };
    let started = die_with_parent()
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
    // What it ended with is told to the lab, which tells it.
    if session.end(ended).is_ok()
        && let Some(node) = node.filter(|_| is_done)
    {
        node.linger();
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

/// What other threads tell the one that acts.
#[derive(Debug, Default)]
struct Signals {
    waker: Waker<AdapterCore>,
    /// The lab has closed the orders.
    let_go: AtomicBool,
    /// The connection has ended, or its peer has: NDK's reason.
    disconnected: OnceLock<u32>,
}

impl Signals {
    /// Waits for the end of the orders.
    fn await_end<R: BufRead>(&self, mut orders: Orders<R>) {
        // There are none left: whatever comes means that the lab lets go.
        let _ = orders.receive();
        self.let_go.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// A node with its adapter and what it needs for the script.
struct LabNode {
    _control: Option<Control>,
    node: Node<AdapterCore>,
    adapter: Adapter,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    fpdus: FpduCut,
    signals: Arc<Signals>,
    slots: Slots,
    file: Option<Region>,
    vnet_header: bool,
    /// When it connected or listened.
    began: EngineInstant,
    /// Begin of the passage, and the counters then.
    mark: Option<(Instant, Counters)>,
    /// The connection's, as long as there is one and then as they were.
    counters: Counters,
}

impl LabNode {
    /// Makes TAP, adapter and queue pair.
    fn start<R: BufRead, W: Write>(session: &mut Session<R, W>) -> Result<Self, Failure> {
        let OpenLink { link, vnet_header } = session.open_link()?;
        let plan = session.plan();
        let capabilities = link.capabilities();
        let super_segment_max = match plan.target {
            std::net::IpAddr::V4(_) => capabilities.tso4_max,
            std::net::IpAddr::V6(_) => capabilities.tso6_max,
        };
        // The peer is of our own kind: where super-segments flow it takes FPDUs as large as they are.
        let (fpdu_size, fpdus) = match super_segment_max {
            0 => (FpduSize::Emss, FpduCut::Emss),
            _ => (FpduSize::Max, FpduCut::SuperSegment),
        };
        let (node, adapter) = open_adapter(link, &plan.config, fpdu_size)?;
        let control = server::serve(&node, &plan.config)?;
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
        let began = node.now();
        Ok(Self {
            _control: control,
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
            began,
            mark: None,
            counters: Counters::default(),
        })
    }

    /// Acts its side of the script, from connecting to both FINs.
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
                let connector = self.connect(session)?;
                self.converse(session, &mut script)?;
                self.disconnect(session, &connector)?;
            }
            Side::B => {
                session.linked(self.vnet_header)?;
                let window = session.plan().window_receives;
                let mut script = Target::new(window, REQUESTS_MAX).map_err(off_script)?;
                self.post_control_receives(Target::receives_before_accept())?;
                let connector = self.accept(session)?;
                self.converse(session, &mut script)?;
                let signals = self.signals.clone();
                self.wait(session, None, || signals.disconnected.get().copied())?;
                self.disconnect(session, &connector)?;
            }
        }
        session.report(&Report::Closed { counters: self.counters })
    }

    fn connect<R, W>(&mut self, session: &mut Session<R, W>) -> Result<Connector, Failure>
    where
        R: BufRead + Send + 'static,
        W: Write,
    {
        let connector =
            self.adapter.create_connector().map_err(|status| refused("connect", status))?;
        self.begin(session)?;
        session.moved(OffloadState::InHost, Duration::ZERO)?;
        let remote = SocketAddr::new(session.plan().target, session.plan().port);
        let limits = ReadLimit { inbound: READS_MAX, outbound: READS_MAX };
        let what = format!("connect to {remote}");
        self.ask(session, &what, |done| {
            connector.connect(&self.qp, None, remote, limits, &[], done)
        })?;
        let event = self.disconnect_event();
        self.ask(session, "complete the connection", |done| {
            connector.complete_connect(Some(event), done)
        })?;
        self.report_connected(session)?;
        Ok(connector)
    }

    fn accept<R, W>(&mut self, session: &mut Session<R, W>) -> Result<Connector, Failure>
    where
        R: BufRead + Send + 'static,
        W: Write,
    {
        let (sender, incoming) = bounded(1);
        // A second peer finds the channel full: its connector is dropped unanswered, and it times out.
        let event = move |connector| drop(sender.try_send(connector));
        let listener =
            self.adapter.create_listener(event).map_err(|status| refused("listen", status))?;
        let local = SocketAddr::new(session.plan().target, session.plan().port);
        self.ask(session, &format!("listen on {local}"), |done| listener.listen(local, done))?;
        self.begin(session)?;
        let connector: Connector = self.wait(session, None, || incoming.try_recv().ok())?;
        let limits = ReadLimit { inbound: READS_MAX, outbound: READS_MAX };
        let event = self.disconnect_event();
        self.ask(session, "accept", |done| {
            connector.accept(&self.qp, limits, &[], Some(event), done)
        })?;
        self.report_connected(session)?;
        Ok(connector)
    }

    /// From here on times count, and the end of the orders is heard.
    fn begin<R, W>(&mut self, session: &mut Session<R, W>) -> Result<(), Failure>
    where
        R: BufRead + Send + 'static,
        W: Write,
    {
        let orders = session.listening()?;
        self.began = self.node.now();
        self.signals.waker.set(Some(self.node.clone()));
        let signals = self.signals.clone();
        thread::Builder::new()
            .name("flue-orders".into())
            .spawn(move || signals.await_end(orders))
            .map(drop)
            .map_err(|error| Failure::work(format!("start a thread: {error}")))
    }

    fn disconnect_event(&self) -> DisconnectEvent {
        let signals = self.signals.clone();
        // Called once.
        Box::new(move |reason| {
            let _ = signals.disconnected.set(reason);
        })
    }

    /// Waits for a result of `look`, and meanwhile watches where the connection is.
    fn wait<R: BufRead, W: Write, T>(
        &self,
        session: &mut Session<R, W>,
        limit: Option<Duration>,
        mut look: impl FnMut() -> Option<T>,
    ) -> Result<T, Failure> {
        let waited = self.node.wait_until(limit, || {
            if self.signals.let_go.load(Ordering::Acquire) {
                return Some(Err(Failure::work("the lab has ended")));
            }
            match self.watch(session) {
                Ok(()) => look().map(Ok),
                Err(failure) => Some(Err(failure)),
            }
        });
        waited.unwrap_or_else(|error| Err(Failure::work(error.to_string())))
    }

    /// Begins something asynchronous and waits for its completion.
    fn ask<R: BufRead, W: Write>(
        &self,
        session: &mut Session<R, W>,
        what: &str,
        begin: impl FnOnce(Box<dyn FnOnce(NtStatus) + Send>) -> NtStatus,
    ) -> Result<(), Failure> {
        let (sender, completed) = bounded(1);
        // Nobody listens any more when the lab has let go meanwhile.
        let status = begin(Box::new(move |status| {
            let _ = sender.send(status);
        }));
        let status = match status {
            NtStatus::PENDING => self.wait(session, None, || completed.try_recv().ok())?,
            status => status,
        };
        if status == NtStatus::SUCCESS { Ok(()) } else { Err(refused(what, status)) }
    }

    /// Reports how far the hand-over is.
    fn watch<R: BufRead, W: Write>(&self, session: &mut Session<R, W>) -> Result<(), Failure> {
        if session.state() == Some(OffloadState::Offloaded) {
            return Ok(());
        }
        let Some(History { offloading, offloaded, .. }) = self.history() else { return Ok(()) };
        let moves = [(OffloadState::Offloading, offloading), (OffloadState::Offloaded, offloaded)];
        for (state, at) in moves {
            if let Some(at) = at {
                session.moved(state, at - self.began)?;
            }
        }
        Ok(())
    }

    fn history(&self) -> Option<History> {
        self.node.with(|core, _, _| core.histories().next().copied())
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
            .ok_or_else(|| Failure::work("lab: more control receives than there are slots"))?;
        self.qp.receive(slot.into(), &[sge]).map_err(|status| refused("post a receive", status))
    }

    /// Posts what the script says and tells it what has happened, until it is done.
    fn converse<R: BufRead, W: Write>(
        &mut self,
        session: &mut Session<R, W>,
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
            let (cq, signals) = (self.cq.clone(), self.signals.clone());
            let count = self.wait(session, None, || match cq.poll_ex(&mut results) {
                0 if signals.disconnected.get().is_some() => Some(0),
                0 => None,
                count => Some(count),
            })?;
            if count == 0 {
                return Err(self.cut_off());
            }
            for result in &results[..count] {
                self.complete(script, result)?;
            }
        }
    }

    /// The connection ended before the script did.
    fn cut_off(&self) -> Failure {
        match self.signals.disconnected.get() {
            Some(reason @ 1..) => Failure::work(format!(
                "connection ended: Terminate, or what one would say: {reason:#06x} (layer, type, code)"
            )),
            _ => Failure::work("connection ended: the peer disconnected in the middle"),
        }
    }

    fn complete(&mut self, script: &mut impl Script, result: &NdkResultEx) -> Result<(), Failure> {
        let NdkResultEx { status, operation, bytes_transferred, request_context, .. } = *result;
        if status != NtStatus::SUCCESS {
            return Err(refused(&format!("{operation:?}"), status));
        }
        let handled = match (operation, request_context) {
            (OperationType::Receive, DATA_CONTEXT) => {
                script.handle(&Event::Data(bytes_transferred))
            }
            (OperationType::Receive, slot) => {
                let slot = u32::try_from(slot)
                    .map_err(|_| Failure::work("lab: a receive that was not posted"))?;
                let octets = self.slots.give_back(slot, bytes_transferred);
                script.handle(&Event::Control(&octets))
            }
            _ => script.handle(&Event::RequestDone),
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
                file.clear(|| self.breathe());
                let sink = file.remote();
                self.file = Some(file);
                script.handle(&Event::Prepared(sink)).map_err(off_script)
            }
            Work::Hash => {
                let digest = self.file()?.digest(|| self.breathe());
                script.handle(&Event::Hashed(digest)).map_err(off_script)
            }
            Work::Clear => {
                self.file()?.clear(|| self.breathe());
                Ok(())
            }
            Work::ReceiveControl => self.post_control_receive(),
            Work::Begin(_) => {
                self.mark = Some((Instant::now(), self.count()));
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
        let none = OpFlags::NONE;
        let (what, posted) = match work {
            Work::ReceiveData(chunk) => ("receive", self.qp.receive(DATA_CONTEXT, &sge(*chunk)?)),
            Work::SendControl(control) => {
                ("send", self.qp.send(0, Data::Inline(&[&control.encode()]), none))
            }
            Work::SendData(chunk) => {
                ("send", self.qp.send(0, Data::Registered(&sge(*chunk)?), none))
            }
            Work::Write { from, to } => {
                let data = sge(*from)?;
                let data = Data::Registered(&data);
                ("write", self.qp.write(0, data, to.address, to.token, none))
            }
            Work::Read { from, to } => {
                ("read", self.qp.read(0, &sge(*to)?, from.address, from.token, none))
            }
            _ => ("nothing", Ok(())),
        };
        posted.map_err(|status| refused(what, status))
    }

    fn file(&self) -> Result<&Region, Failure> {
        self.file.as_ref().ok_or_else(|| Failure::work("lab: no file memory yet"))
    }

    /// With manual progress the engine runs when the queue is polled, and only then.
    fn breathe(&self) {
        self.cq.poll_ex(&mut []);
    }

    fn report_passed<R: BufRead, W: Write>(
        &mut self,
        session: &mut Session<R, W>,
        passage: Passage,
    ) -> Result<(), Failure> {
        let (began, before) = self.mark.take().unwrap_or_else(|| (Instant::now(), self.counters));
        let time_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let counters = self.count().since(before);
        let bytes = self.file()?.len();
        let state = session.state().unwrap_or(OffloadState::InHost);
        session.report(&Report::Passed { passage, bytes, time_ns, counters, state })
    }

    /// The connection's counters; what they were, when it is gone.
    fn count(&mut self) -> Counters {
        if let Some((_, counters)) = self.look() {
            self.counters = counters;
        }
        self.counters
    }

    fn look(&self) -> Option<(TcpPhase, Counters)> {
        self.node.with_engine(|engine, now| {
            let (_, _, info) = engine.connections().list(now).next()?;
            let counters = Counters {
                segments: Some(info.segs_out),
                retransmitted_segments: Some(info.total_retrans),
                psh_segments: Some(info.push_out),
            };
            Some((info.phase, counters))
        })
    }

    /// Disconnects, and waits until both FINs have crossed.
    fn disconnect<R: BufRead, W: Write>(
        &mut self,
        session: &mut Session<R, W>,
        connector: &Connector,
    ) -> Result<(), Failure> {
        self.ask(session, "disconnect", |done| connector.disconnect(done))?;
        let mut counters = self.counters;
        let closed = self.wait(session, Some(CLOSE_LIMIT), || match self.look() {
            None => Some(()),
            Some((phase, latest)) => {
                counters = latest;
                (phase == TcpPhase::TimeWait).then_some(())
            }
        });
        self.counters = counters;
        closed.map_err(|failure| failure.at("disconnect"))
    }

    /// Stays until the lab lets go.
    fn linger(&self) {
        let let_go = || self.signals.let_go.load(Ordering::Acquire).then_some(());
        match self.node.wait_until(None, let_go) {
            Ok(()) | Err(WaitError::TimedOut) => {}
            Err(error) => tracing::warn!(%error, "after the end"),
        }
    }
}

impl Drop for LabNode {
    fn drop(&mut self) {
        self.signals.waker.set(None);
    }
}
