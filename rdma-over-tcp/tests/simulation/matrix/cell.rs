//! One run of a cell.

use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, OnceLock, atomic::Ordering::Relaxed},
};

use host_stack::{simulation::Stall, socket::OffloadPolicy};
use offload_engine::{link::Impairments, time::Duration};
use oorandom::Rand64;
use rdma_over_tcp::{
    mpa::startup::{RtrKind, RtrSet},
    ndk::{
        Adapter, Connector, Cq, CrcRequest, Data, DisconnectEvent, DisconnectReason, Mr, MrFlags,
        NdkResultEx, NtStatus, OpFlags, OperationType, Pd, Qp, QpLimits, RegisteredBuffer, Sge,
    },
};

use super::{
    Impairment, Operation,
    lossy_network::{Incident, NetworkPort, Shared},
};
use crate::{
    bench::Bench,
    foreign::{CallbackResults, connect_with},
    plan::{Plan, draw, once_in},
};

/// Maximum requests of a run.
const REQUESTS_MAX: usize = 6;
/// Bytes of a large request.
const LARGE: usize = 60_000;
/// Content of memory without placed data; not a byte of a pattern.
const UNCHANGED: u8 = 0xee;
/// Byte that the consumer writes to a source during a read, and to memory after its revocation.
const LATER: u8 = 0xdd;
/// Context of the Send after Writes.
const AFTER: u64 = 1_000;
/// Value that the far consumer adds to a word meanwhile: beyond the range of the requested additions.
const LOCAL: u64 = 1 << 32;
const NONE: OpFlags = OpFlags::empty();

/// Outcome of a run.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Outcome {
    /// All requests are done, every byte right.
    Exact,
    /// The connection has ended, with the reasons reported by the two ends.
    Ended { near: String, far: String },
    /// Bytes are wrong, without an error.
    Changed,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact => f.write_str("exact"),
            Self::Ended { near, far } => write!(f, "ended; requester: {near}; responder: {far}"),
            Self::Changed => f.write_str("changed silently"),
        }
    }
}

/// Byte at an offset of a source buffer.
fn pattern(at: usize) -> u8 {
    ((at * 7 + at / 251) % 200) as u8
}

/// One end.
struct End {
    adapter: Adapter,
    pd: Pd,
    cq: Cq,
    qp: Qp,
    /// Source of the peer's reads, or of sends.
    source: RegisteredBuffer,
    source_mr: Mr,
    /// Target of the peer's writes, or of receives.
    sink: RegisteredBuffer,
    sink_mr: Mr,
    results: Vec<NdkResultEx>,
    end_reason: Arc<OnceLock<u32>>,
}

impl End {
    fn new(adapter: &Adapter, bytes: usize) -> Self {
        let cq = adapter.create_cq(64, |_| {}).unwrap();
        let pd = adapter.create_pd().unwrap();
        let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default()).unwrap();
        let all = MrFlags::ALLOW_LOCAL_WRITE
            | MrFlags::ALLOW_REMOTE_READ
            | MrFlags::ALLOW_REMOTE_WRITE
            | MrFlags::ALLOW_REMOTE_ATOMIC;
        let registered = |content: Vec<u8>| {
            let buffer = adapter.allocate(bytes).unwrap();
            buffer.write_at(0, &content);
            let mr = pd.create_mr(false).unwrap();
            mr.register(&buffer, 0, bytes, all).unwrap();
            (buffer, mr)
        };
        let (source, source_mr) = registered((0..bytes).map(pattern).collect());
        let (sink, sink_mr) = registered(vec![UNCHANGED; bytes]);
        let (results, end_reason) = (Vec::new(), Arc::default());
        let adapter = adapter.clone();
        Self { adapter, pd, cq, qp, source, source_mr, sink, sink_mr, results, end_reason }
    }

    fn event(&self) -> Option<DisconnectEvent> {
        let end_reason = self.end_reason.clone();
        Some(Box::new(move |reason| end_reason.set(reason).unwrap()))
    }

    /// Text of the reason of the end.
    fn end_text(&self) -> String {
        let words = |code: &u32| DisconnectReason(*code).to_string();
        self.end_reason.get().map_or_else(|| "nothing".to_owned(), words)
    }

    fn collect(&mut self) {
        let mut results = [NdkResultEx::default(); 8];
        loop {
            let count = self.cq.poll_ex(&mut results);
            self.results.extend(&results[..count]);
            if count == 0 {
                return;
            }
        }
    }

    fn result(&self, context: u64) -> Option<&NdkResultEx> {
        self.results.iter().find(|result| result.request_context == context)
    }

    fn succeeded(&self, context: u64) -> bool {
        self.result(context).is_some_and(|result| result.status == NtStatus::SUCCESS)
    }

    fn sink_content(&self, slot: &Slot) -> Vec<u8> {
        let mut content = vec![0; slot.bytes];
        self.sink.read_at(slot.at, &mut content);
        content
    }

    fn sge(buffer: &RegisteredBuffer, mr: &Mr, slot: &Slot) -> Sge {
        let address = buffer.address() + slot.at as u64;
        Sge { address, length: slot.bytes as u32, token: mr.local_token() }
    }
}

/// Memory of one request, at the same offset in every buffer.
#[derive(Clone, Copy, Debug)]
struct Slot {
    at: usize,
    bytes: usize,
}

/// State of a run.
struct Run {
    impairment: Impairment,
    operation: Operation,
    slots: Vec<Slot>,
    near: End,
    far: End,
    /// Windows whose tokens Sends invalidate.
    windows: Vec<Mr>,
    /// Sum of the far consumer's own additions.
    added: u64,
    /// Requests posted by the near consumer.
    posted: usize,
    /// Rounds until the far consumer revokes memory.
    revokes_in: Option<usize>,
    has_given_up: bool,
}

fn sizes(rng: &mut Rand64, impairment: Impairment, operation: Operation) -> Vec<Slot> {
    let mut at = 0;
    let slots = (0..=draw(rng, REQUESTS_MAX)).map(|_| {
        let bytes = match (operation, impairment) {
            (Operation::Atomic | Operation::Immediate, _) => 8,
            (_, Impairment::TinySegments) => 1 + draw(rng, 200),
            _ => match draw(rng, 4) {
                0 => draw(rng, 64),
                1 => draw(rng, 3_000),
                _ => draw(rng, LARGE),
            },
        };
        let slot = Slot { at, bytes };
        at = (at + bytes + 8).next_multiple_of(8);
        slot
    });
    slots.collect()
}

fn network(rng: &mut Rand64, impairment: Impairment) -> Plan {
    let mut plan = Plan::with(rng, false);
    let one = |seed| {
        let mut one = Impairments { seed, ..Impairments::default() };
        one.delay = Duration::from_micros(50);
        match impairment {
            Impairment::Loss => one.drop_pct = 3.0,
            Impairment::Burst => (one.drop_pct, one.burst_mean) = (5.0, 6.0),
            Impairment::Duplication => one.duplicate_pct = 5.0,
            Impairment::Reordering => one.reorder_pct = 10.0,
            Impairment::Delay => {
                (one.delay, one.jitter) = (Duration::from_millis(20), Duration::from_millis(15));
            }
            _ => {}
        }
        one
    };
    plan.impairments = [one(rng.rand_u64()), one(rng.rand_u64())];
    plan.link.offloads = false;
    plan.link.queue_frames_max = 1 << 20;
    if impairment == Impairment::MtuChange {
        plan.link.mtu = [1500, 9000][draw(rng, 2)];
    }
    plan.policies = [(); 2].map(|()| match once_in(rng, 2) {
        true => OffloadPolicy::Always,
        false => OffloadPolicy::Never,
    });
    for adapter in &mut plan.adapters {
        adapter.rtr = RtrSet::only(RtrKind::Write);
        adapter.rfc7306 = true;
        if !matches!(impairment, Impairment::SilentPeer | Impairment::MtuChange) {
            // No other limit may end a connection. A burst is counted in frames: with only handshakes or probes in
            // flight it lasts for minutes.
            adapter.keep_alive = None;
            for limit in [
                &mut adapter.connect_timeout,
                &mut adapter.reply_timeout,
                &mut adapter.request_timeout,
                &mut adapter.accept_timeout,
            ] {
                *limit = Duration::from_secs(900);
            }
        }
        adapter.crc = match impairment {
            Impairment::CorruptionWithoutCrc => CrcRequest::Off,
            _ => CrcRequest::On,
        };
        adapter.limits.fast_register_pages_max = 1024;
    }
    plan
}

/// Incident of the network after the connection is established.
fn incident(rng: &mut Rand64, plan: &Plan, impairment: Impairment, bytes: usize) -> Incident {
    let after = draw(rng, bytes + 1);
    match impairment {
        Impairment::Corruption | Impairment::CorruptionWithoutCrc => Incident::Flip,
        Impairment::TinySegments => Incident::Split,
        Impairment::MtuChange => {
            // Minimum supported by every router (RFC 8200 §5, RFC 9293 §3.7.1).
            let least = if plan.addresses[0].is_ipv4() { 600 } else { 1280 };
            let mtu = least + draw(rng, 1400 - least);
            Incident::Narrow { after, mtu, is_notified: once_in(rng, 2) }
        }
        Impairment::Reset => Incident::Reset { after },
        Impairment::SilentPeer => Incident::Silent { after },
        _ => Incident::None,
    }
}

/// Runs a cell with a seed.
pub(crate) fn run(impairment: Impairment, operation: Operation, seed: u64) -> Outcome {
    let salt = (impairment as u128) << 80 | (operation as u128) << 72;
    let rng = &mut Rand64::new(u128::from(seed) << 8 ^ salt);
    let plan = network(rng, impairment);
    let slots = sizes(rng, impairment, operation);
    let memory = slots.last().map_or(0, |last| last.at + last.bytes).max(8);
    let road = Shared::new(Rand64::new(u128::from(rng.rand_u64())));
    let mut bench =
        Bench::through(&plan, [seed, seed + 1], |_, link| NetworkPort::new(link, road.clone()));
    let [near, far] = [0, 1].map(|at| End::new(&bench.adapters[at], memory));
    let remote = SocketAddr::new(plan.addresses[1], plan.port);
    let events = [near.event(), far.event()];
    let (connectors, accepted) = connect_with(&mut bench, [&near.qp, &far.qp], remote, events);
    let revokes_in = (impairment == Impairment::Revocation).then(|| draw(rng, 60));
    let (windows, added, posted) = (Vec::new(), 0, 0);
    let mut run = Run {
        impairment,
        operation,
        slots,
        near,
        far,
        windows,
        added,
        posted,
        revokes_in,
        has_given_up: false,
    };
    bench.run(|| accepted.is_done()).unwrap();
    run.prepare(&mut bench);
    let bytes = run.slots.iter().map(|slot| slot.bytes + 40).sum();
    road.begin(incident(rng, &plan, impairment, bytes));
    let outcome = bench.run(|| {
        run.act(rng);
        run.is_over()
    });
    let is_corrupt =
        matches!(impairment, Impairment::Corruption | Impairment::CorruptionWithoutCrc);
    if matches!(outcome, Err(Stall::Idle(_))) && is_corrupt {
        run.disconnect_at_limit(&mut bench, &connectors[0]);
    } else if let Err(stall) = outcome {
        let ends = [&run.near, &run.far].map(|end| {
            let status = |result: &NdkResultEx| (result.request_context, result.status);
            (end.end_text(), end.results.iter().map(status).collect::<Vec<_>>())
        });
        let track = road.lock();
        let plan =
            (plan.policies, plan.link.mtu, plan.addresses, &run.slots, track.incident, track.count);
        panic!("{impairment:?}, {operation:?}, FLUE_SEED={seed}: {stall}\n{plan:?}\n{ends:?}");
    }
    run.outcome()
}

impl Run {
    /// Posts receives, and creates the windows that Sends invalidate.
    fn prepare(&mut self, bench: &mut Bench) {
        let Self { operation, slots, far, windows, .. } = self;
        for (context, slot) in (0..).zip(slots.iter()) {
            match operation {
                Operation::Send | Operation::SendInvalidate => {
                    let sge = End::sge(&far.sink, &far.sink_mr, slot);
                    far.qp.receive(context, &[sge]).unwrap();
                }
                Operation::Immediate => far.qp.receive(context, &[]).unwrap(),
                Operation::Write | Operation::Read | Operation::Atomic => {}
            }
            if *operation == Operation::SendInvalidate {
                let mr = far.pd.create_mr(true).unwrap();
                mr.initialize_fast_register(1, true).unwrap();
                let page = far.adapter.allocate(4096).unwrap();
                let rights = OpFlags::ALLOW_REMOTE_WRITE;
                far.qp.fast_register(AFTER, &mr, &page, 0, 4096, 0, rights).unwrap();
                windows.push(mr);
            }
        }
        if *operation == Operation::Write {
            far.qp.receive(AFTER, &[]).unwrap();
        }
        if *operation == Operation::Atomic {
            far.sink.write_at(0, &0_u64.to_le_bytes());
        }
        bench
            .run(|| {
                far.collect();
                far.results.len() >= windows.len()
            })
            .unwrap();
        far.results.clear();
    }

    /// Posts the next request, and a Send after the last Write. A connection that has ended accepts none.
    fn post(&mut self) {
        let Self { operation, slots, near, far, windows, posted, .. } = self;
        let context = *posted as u64;
        let posting = if let Some(slot) = slots.get(*posted) {
            let own = End::sge(&near.source, &near.source_mr, slot);
            let own = std::slice::from_ref(&own);
            let into = End::sge(&near.sink, &near.sink_mr, slot);
            let qp = &near.qp;
            match operation {
                Operation::Send => qp.send(context, Data::Registered(own), NONE),
                Operation::SendInvalidate => {
                    let token = windows[context as usize].remote_token();
                    qp.send_and_invalidate(context, Data::Registered(own), token, NONE)
                }
                Operation::Write => {
                    let to = far.sink.address() + slot.at as u64;
                    qp.write(context, Data::Registered(own), to, far.sink_mr.remote_token(), NONE)
                }
                Operation::Read => {
                    let from = far.source.address() + slot.at as u64;
                    qp.read(context, &[into], from, far.source_mr.remote_token(), NONE)
                }
                Operation::Atomic => {
                    let (word, token) = (far.sink.address(), far.sink_mr.remote_token());
                    qp.fetch_add(context, into, word, token, Self::addend(context), NONE)
                }
                Operation::Immediate => qp.immediate(context, Self::immediate(context), NONE),
            }
        } else {
            near.qp.send(AFTER, Data::Inline(&[]), NONE)
        };
        match posting {
            Ok(()) => *posted += 1,
            Err(status) => assert_eq!(status, NtStatus::CONNECTION_INVALID),
        }
    }

    const fn addend(context: u64) -> u64 {
        context * context + 3
    }

    const fn immediate(context: u64) -> [u8; 8] {
        (context * 0x0102_0304_0506_0708).to_be_bytes()
    }

    /// One round of both consumers.
    fn act(&mut self, rng: &mut Rand64) {
        self.near.collect();
        self.far.collect();
        if self.posted < self.requests() && self.near.end_reason.get().is_none() {
            self.post();
        }
        match (self.impairment, self.operation) {
            (Impairment::WriteMeanwhile, Operation::Read) => {
                let at = draw(rng, self.far.source.len());
                let bytes = draw(rng, (self.far.source.len() - at).min(3_000) + 1);
                self.far.source.write_at(at, &vec![LATER; bytes]);
            }
            (Impairment::WriteMeanwhile, Operation::Atomic) if once_in(rng, 3) => {
                self.far.sink.word(0).unwrap().fetch_add(LOCAL, Relaxed);
                self.added += LOCAL;
            }
            _ => {}
        }
        if let Some(rounds) = &mut self.revokes_in {
            *rounds = rounds.saturating_sub(1);
            if *rounds == 0 {
                self.revokes_in = None;
                self.revoke();
            }
        }
    }

    /// Revokes the far end's memory, and overwrites it when that is complete.
    fn revoke(&self) {
        let far = &self.far;
        let (memory, mr) = match self.operation {
            Operation::Read => (&far.source, &far.source_mr),
            _ => (&far.sink, &far.sink_mr),
        };
        let (is_read, own) = (self.operation == Operation::Read, memory.clone());
        let write = move || {
            if is_read {
                own.write_at(0, &vec![LATER; own.len()]);
            }
        };
        if mr.deregister(write.clone()) == NtStatus::SUCCESS {
            write();
        }
    }

    /// Disconnects by a time limit of the consumer (MPA-7.1.2-15): a length changed to a larger one makes the receiver
    /// wait for octets that are never sent.
    fn disconnect_at_limit(&mut self, bench: &mut Bench, connector: &Connector) {
        self.has_given_up = true;
        let done = CallbackResults::default();
        assert_eq!(connector.disconnect(done.callback()), NtStatus::PENDING);
        bench
            .run(|| {
                self.near.collect();
                self.far.collect();
                done.is_done() && self.far.end_reason.get().is_some()
            })
            .unwrap();
    }

    fn expects_receives(&self) -> usize {
        match self.operation {
            Operation::Send | Operation::SendInvalidate | Operation::Immediate => self.slots.len(),
            Operation::Write => 1,
            Operation::Read | Operation::Atomic => 0,
        }
    }

    fn requests(&self) -> usize {
        self.slots.len() + usize::from(self.operation == Operation::Write)
    }

    /// True if all requests are complete and, after a failure, the ends have their reasons. A dead end has none.
    fn is_over(&self) -> bool {
        let Self { near, far, .. } = self;
        let is_dead = self.impairment == Impairment::SilentPeer;
        let is_posted = self.posted == self.requests() || near.end_reason.get().is_some();
        let is_done = is_posted
            && near.results.len() == self.posted
            && (far.results.len() == self.expects_receives() || is_dead);
        let is_reported =
            near.end_reason.get().is_some() && (far.end_reason.get().is_some() || is_dead);
        is_done && (self.is_success() || is_reported)
    }

    fn is_success(&self) -> bool {
        let all = |end: &End, count: usize| {
            end.results.len() == count
                && end.results.iter().all(|result| result.status == NtStatus::SUCCESS)
        };
        all(&self.near, self.requests()) && all(&self.far, self.expects_receives())
    }

    fn outcome(&self) -> Outcome {
        let is_exact = (0..).zip(&self.slots).all(|(context, slot)| self.is_exact(context, slot));
        match (is_exact, self.is_success()) {
            (false, _) => Outcome::Changed,
            (true, true) => Outcome::Exact,
            (true, false) => {
                let far = match self.impairment {
                    Impairment::SilentPeer => "dead".to_owned(),
                    _ => self.far.end_text(),
                };
                let near = match self.has_given_up {
                    true => "requester timed out".to_owned(),
                    false => self.near.end_text(),
                };
                Outcome::Ended { near, far }
            }
        }
    }

    /// True if the memory of a request has the requested content, as far as it was placed; completely if it succeeded.
    fn is_exact(&self, context: u64, slot: &Slot) -> bool {
        let Self { near, far, .. } = self;
        match self.operation {
            Operation::Send | Operation::SendInvalidate => {
                let is_placed = self.is_placed(far, slot, far.succeeded(context));
                is_placed && far.result(context).is_none_or(|result| self.is_received(result, slot))
            }
            Operation::Write => self.is_placed(far, slot, far.succeeded(AFTER)),
            Operation::Read => self.is_placed(near, slot, near.succeeded(context)),
            Operation::Atomic => self.is_counted(context, slot),
            Operation::Immediate => far.result(context).is_none_or(|result| {
                let data = Self::immediate(context);
                result.status != NtStatus::SUCCESS || result.immediate == data
            }),
        }
    }

    fn is_received(&self, result: &NdkResultEx, slot: &Slot) -> bool {
        let operation = match self.operation {
            Operation::SendInvalidate => OperationType::ReceiveAndInvalidate,
            _ => OperationType::Receive,
        };
        let window = self.windows.get(result.request_context as usize);
        let is_invalidated = window.is_none_or(|mr| mr.remote_token() == result.invalidated_token);
        result.status != NtStatus::SUCCESS
            || result.bytes_transferred as usize == slot.bytes
                && result.operation == operation
                && is_invalidated
    }

    /// True if the slot holds the data sent, completely if `is_whole`. Data read while it was written may be either.
    fn is_placed(&self, end: &End, slot: &Slot, is_whole: bool) -> bool {
        let may_be_later = self.impairment == Impairment::WriteMeanwhile;
        let content = end.sink_content(slot);
        (slot.at..).zip(content).all(|(at, byte)| {
            byte == pattern(at) || byte == UNCHANGED && !is_whole || byte == LATER && may_be_later
        })
    }

    /// True if an atomic returned the sum of those before it, and the word is not less.
    fn is_counted(&self, context: u64, slot: &Slot) -> bool {
        let before: u64 = (0..context).map(Self::addend).sum();
        let mut word = [0; 8];
        self.far.sink.read_at(0, &mut word);
        let word = u64::from_le_bytes(word);
        let all: u64 = (0..self.slots.len() as u64).map(Self::addend).sum();
        let is_possible = word <= all + self.added && word >= self.added;
        if !self.near.succeeded(context) {
            return is_possible;
        }
        let found = self.near.sink_content(slot).try_into().map(u64::from_le_bytes).unwrap();
        let is_last = context + 1 == self.slots.len() as u64;
        found % LOCAL == before
            && found / LOCAL <= self.added / LOCAL
            && is_possible
            && (!is_last || word == all + self.added)
    }
}
