//! Queue pairs with one shared receive queue, over a bad network: messages of all sizes in any order of arrival, limits
//! set and reported, and in some seeds a queue pair that fails in the middle. In half of the seeds the connections move
//! between the stacks meanwhile.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use oorandom::Rand64;
use rdma_over_tcp::{
    mpa::startup::{RtrKind, RtrSet},
    ndk::{
        Connector, Cq, Data, Mr, MrFlags, NdkResultEx, NtStatus, OpFlags, OperationType, Pd, Qp,
        QpLimits, ReadLimit, RegisteredBuffer, Sge, Srq,
    },
};

use crate::{
    bench::{Bench, Stage},
    foreign::CallbackResults,
    moves::Migrators,
    plan::{INLINE_MAX, Plan, draw, once_in},
};

const READS: ReadLimit = ReadLimit { inbound: 1, outbound: 1 };
/// Content of a slot without received data.
const UNCHANGED: u8 = 0xee;

/// Closes an object, with the callback for a pending close.
type Close<'a> = Box<dyn Fn(Box<dyn FnOnce() + Send>) -> NtStatus + 'a>;

/// Outcome of one run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct End {
    /// Limit events reported.
    pub(crate) limits: usize,
    /// True if a queue pair failed while it received a message.
    pub(crate) was_receiving: bool,
}

/// Message `number` of queue pair `pair`.
fn message(pair: usize, number: usize, bytes: usize) -> Vec<u8> {
    let salt = (31 * pair) ^ (7 * number);
    (0..bytes).map(|at| (at ^ (at >> 8) ^ salt) as u8).collect()
}

/// Queue pair, its peer, and the messages of one direction.
struct Line {
    near: Qp,
    far: Qp,
    connectors: [Connector; 2],
    /// Source of large messages, one at a time.
    source: RegisteredBuffer,
    source_mr: Mr,
    sizes: Vec<usize>,
    sent: usize,
    /// Completed Sends.
    done: usize,
    received: usize,
    is_broken: bool,
}

impl Line {
    fn is_done(&self) -> bool {
        self.is_broken || self.received == self.sizes.len()
    }

    /// Sends the next message. Returns true on success.
    fn send(&mut self, pair: usize) -> bool {
        let Some(bytes) = self.sizes.get(self.sent).filter(|_| !self.is_broken) else {
            return false;
        };
        let data = message(pair, self.sent, *bytes);
        let context = self.sent as u64;
        if data.len() <= INLINE_MAX as usize {
            self.near.send(context, Data::Inline(&[&data]), OpFlags::empty()).unwrap();
        } else if self.done == self.sent {
            self.source.write_at(0, &data);
            let (address, length) = (self.source.address(), data.len() as u32);
            let sge = Sge { address, length, token: self.source_mr.local_token() };
            self.near.send(context, Data::Registered(&[sge]), OpFlags::empty()).unwrap();
        } else {
            return false;
        }
        self.sent += 1;
        true
    }

    /// Messages that have consumed a receive, or will.
    fn in_progress(&self) -> usize {
        if self.is_broken { 0 } else { self.sent - self.received }
    }
}

/// Receiving consumer.
struct Receiver {
    pd: Pd,
    cq: Cq,
    srq: Srq,
    mr: Mr,
    buffer: RegisteredBuffer,
    slot_bytes: usize,
    /// Posted receives without a completion.
    posted: usize,
    limit_events: Arc<AtomicUsize>,
    armed: usize,
    received_at_arm: usize,
}

impl Receiver {
    fn new(bench: &Bench, slots: usize, slot_bytes: usize, limit: u32) -> Self {
        let adapter = &bench.adapters[1];
        let pd = adapter.create_pd().unwrap();
        let cq = adapter.create_cq(256, |_| {}).unwrap();
        let limit_events = Arc::<AtomicUsize>::default();
        let counter = limit_events.clone();
        let notification = move |status| {
            assert_eq!(status, NtStatus::SUCCESS);
            counter.fetch_add(1, Ordering::Relaxed);
        };
        // One more than the slots: a limit equal to the depth is always reached.
        let depth = slots as u32 + 1;
        let srq = pd.create_srq(depth, 2, limit, notification).unwrap();
        let buffer = adapter.allocate(slots * slot_bytes).unwrap();
        let mr = pd.create_mr(false).unwrap();
        mr.register(&buffer, 0, buffer.len(), MrFlags::ALLOW_LOCAL_WRITE).unwrap();
        let (posted, armed) = (0, usize::from(limit > 0));
        let received_at_arm = 0;
        let mut this = Self {
            pd,
            cq,
            srq,
            mr,
            buffer,
            slot_bytes,
            posted,
            limit_events,
            armed,
            received_at_arm,
        };
        (0..slots).for_each(|slot| this.post(slot));
        this
    }

    /// Posts a slot, as two entries.
    fn post(&mut self, slot: usize) {
        let start = slot * self.slot_bytes;
        self.buffer.write_at(start, &vec![UNCHANGED; self.slot_bytes]);
        let sge = |offset: usize, length: usize| Sge {
            address: self.buffer.address() + (start + offset) as u64,
            length: length as u32,
            token: self.mr.local_token(),
        };
        let first = self.slot_bytes / 3;
        let sges = [sge(0, first), sge(first, self.slot_bytes - first)];
        self.srq.receive(slot as u64, &sges).unwrap();
        self.posted += 1;
    }

    /// Sets a limit if the last one was reported, and a message was received since: a limit already reached is reported
    /// immediately, and so would be the next.
    fn arm(&mut self, received: usize, limit: u32) {
        let limit_events = self.limit_events.load(Ordering::Relaxed);
        assert!(limit_events <= self.armed, "more than one event per limit (NDK-SRQ-2)");
        if limit_events == self.armed && received > self.received_at_arm {
            self.srq.modify(0, limit).unwrap();
            self.armed += 1;
            self.received_at_arm = received;
        }
    }

    /// Checks the completions, and posts their slots again.
    fn poll(&mut self, lines: &mut [Line], end: &mut End) {
        let mut results = [NdkResultEx::default(); 5];
        loop {
            let count = self.cq.poll_ex(&mut results);
            if count == 0 {
                return;
            }
            for result in &results[..count] {
                let pair = result.qp_context as usize;
                let (line, slot) = (&mut lines[pair], result.request_context as usize);
                self.posted -= 1;
                if line.is_broken {
                    // Messages that arrived before it failed, and then the receive that it had consumed.
                    let is_flushed = result.status == NtStatus::CANCELLED;
                    assert!(is_flushed || result.status == NtStatus::SUCCESS, "{result:?}");
                    assert!(!is_flushed || !end.was_receiving, "more than one receive consumed");
                    end.was_receiving |= is_flushed;
                } else {
                    assert_eq!(result.status, NtStatus::SUCCESS, "{result:?}");
                    assert_eq!(result.operation, OperationType::Receive);
                    let bytes = line.sizes[line.received];
                    assert_eq!(result.bytes_transferred as usize, bytes, "out of order of sending");
                    let mut content = vec![0; self.slot_bytes];
                    self.buffer.read_at(slot * self.slot_bytes, &mut content);
                    assert!(content[..bytes] == message(pair, line.received, bytes));
                    assert!(content[bytes..].iter().all(|byte| *byte == UNCHANGED));
                    line.received += 1;
                }
                self.post(slot);
            }
        }
    }
}

/// Connects a queue pair of each node.
fn connect(
    bench: &mut Bench,
    qps: [&Qp; 2],
    remote: SocketAddr,
    incoming: &Mutex<Vec<Connector>>,
) -> [Connector; 2] {
    let [active, passive] = [(); 2].map(|()| CallbackResults::default());
    let connector = bench.adapters[0].create_connector().unwrap();
    let status = connector.connect(qps[0], None, remote, READS, &[], active.callback());
    assert_eq!(status, NtStatus::PENDING);
    bench.run(|| !incoming.lock().unwrap().is_empty()).unwrap();
    let accepted = incoming.lock().unwrap().pop().unwrap();
    let _ = accepted.accept(qps[1], READS, &[], None, passive.callback());
    bench.run(|| active.is_done()).unwrap();
    assert_eq!(active.take(), Some(NtStatus::SUCCESS));
    let _ = connector.complete_connect(None, active.callback());
    bench.run(|| active.is_done() && passive.is_done()).unwrap();
    assert_eq!([active.take(), passive.take()], [Some(NtStatus::SUCCESS); 2]);
    [connector, accepted]
}

/// Runs one seed.
pub(crate) fn run(seed: u64) -> End {
    let rng = &mut Rand64::new(u128::from(seed) ^ 0x5_12ed);
    let is_bad = !once_in(rng, 4);
    let mut plan = Plan::with(rng, is_bad);
    // An RTR by a Send would consume a receive.
    plan.adapters.iter_mut().for_each(|adapter| adapter.rtr = RtrSet::only(RtrKind::Write));
    let moves = once_in(rng, 2);
    if moves {
        plan.mix_policies(rng);
    }
    let mut bench = Bench::new(&plan, [seed, seed + 1]);
    bench.moves = moves.then(|| Migrators::new(rng));
    let most = [300, 3_000, 40_000][draw(rng, 3)];
    let slots = 2 + draw(rng, 12);
    let first_limit = draw(rng, slots + 1) as u32;
    let mut receiver = Receiver::new(&bench, slots, most + 1, first_limit);

    let near_pd = bench.adapters[0].create_pd().unwrap();
    let near_cq = bench.adapters[0].create_cq(256, |_| {}).unwrap();
    let incoming = Arc::<Mutex<Vec<Connector>>>::default();
    let of_listener = incoming.clone();
    let listener = bench.adapters[1]
        .create_listener(move |connector| of_listener.lock().unwrap().push(connector))
        .unwrap();
    let listening = CallbackResults::default();
    let remote = SocketAddr::new(plan.addresses[1], 7000);
    assert_eq!(listener.listen(remote, listening.callback()), NtStatus::PENDING);
    bench.run(|| listening.is_done()).unwrap();
    let limits = QpLimits { inline_data_size: INLINE_MAX, ..QpLimits::default() };
    let mut lines = Vec::new();
    for pair in 0..1 + draw(rng, 4) {
        let near = near_pd.create_qp(&near_cq, &near_cq, pair as u64, limits).unwrap();
        let Receiver { pd, cq, srq, .. } = &receiver;
        let far = pd.create_qp_with_srq(cq, cq, srq, pair as u64, limits).unwrap();
        let connectors = connect(&mut bench, [&near, &far], remote, &incoming);
        let sizes = (0..1 + draw(rng, 12)).map(|_| draw(rng, most + 1)).collect();
        let source = bench.adapters[0].allocate(most + 1).unwrap();
        let source_mr = near_pd.create_mr(false).unwrap();
        source_mr.register(&source, 0, source.len(), MrFlags::empty()).unwrap();
        let (sent, done, received, is_broken) = (0, 0, 0, false);
        lines.push(Line {
            near,
            far,
            connectors,
            source,
            source_mr,
            sizes,
            sent,
            done,
            received,
            is_broken,
        });
    }

    let total: usize = lines.iter().map(|line| line.sizes.len()).sum();
    let mut breaks_at = once_in(rng, 3).then(|| draw(rng, total));
    let mut end = End { limits: 0, was_receiving: false };
    let outcome = bench.run(|| {
        receiver.poll(&mut lines, &mut end);
        let received: usize = lines.iter().map(|line| line.received).sum();
        if breaks_at.is_some_and(|at| received >= at) {
            breaks_at = None;
            let victim = draw(rng, lines.len());
            lines[victim].is_broken = true;
            lines[victim].far.flush();
            receiver.poll(&mut lines, &mut end);
        }
        receiver.arm(received, 1 + draw(rng, slots) as u32);
        loop {
            let mut results = [NdkResultEx::default(); 16];
            let count = near_cq.poll_ex(&mut results);
            results[..count].iter().for_each(|it| lines[it.qp_context as usize].done += 1);
            if count == 0 {
                break;
            }
        }
        // As many as have a receive.
        let free = receiver.posted - lines.iter().map(Line::in_progress).sum::<usize>();
        for _ in 0..free.min(4) {
            let pair = draw(rng, lines.len());
            lines[pair].send(pair);
        }
        lines.iter().all(Line::is_done)
    });
    outcome.unwrap_or_else(|stall| panic!("seed {seed}: {stall}\n{}", bench.describe()));
    // A limit above the queued receives is reported immediately; earlier events have arrived.
    bench.run(|| true).unwrap();
    let limit_events = receiver.limit_events.clone();
    receiver.srq.modify(0, slots as u32 + 1).unwrap();
    receiver.armed += usize::from(limit_events.load(Ordering::Relaxed) == receiver.armed);
    bench.run(|| limit_events.load(Ordering::Relaxed) == receiver.armed).unwrap();
    end.limits = receiver.armed;

    let mut closes: Vec<Close<'_>> = Vec::new();
    for line in &lines {
        closes.push(Box::new(|done| line.near.close(done)));
        closes.push(Box::new(|done| line.far.close(done)));
        closes.push(Box::new(|done| line.source_mr.close(done)));
        for connector in &line.connectors {
            closes.push(Box::new(|done| connector.close(done)));
        }
    }
    closes.push(Box::new(|done| receiver.srq.close(done)));
    closes.push(Box::new(|done| receiver.mr.close(done)));
    closes.push(Box::new(|done| receiver.cq.close(done)));
    closes.push(Box::new(|done| receiver.pd.close(done)));
    closes.push(Box::new(|done| near_pd.close(done)));
    closes.push(Box::new(|done| near_cq.close(done)));
    closes.push(Box::new(|done| listener.close(done)));
    let (mut pending, returned) = (0, Arc::<AtomicUsize>::default());
    while !closes.is_empty() {
        let close = closes.swap_remove(draw(rng, closes.len()));
        let counter = returned.clone();
        let done = move || {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        match close(Box::new(done)) {
            NtStatus::PENDING => pending += 1,
            status => assert_eq!(status, NtStatus::SUCCESS),
        }
    }
    bench.run(|| returned.load(Ordering::Relaxed) == pending).unwrap();
    Stage::run_until_empty(&mut bench).unwrap();
    end
}
