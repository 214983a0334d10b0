//! Queue pairs of reliable connected service on an impaired network, in half of the seeds with migrations.
//!
//! Each end sends random requests to the other, which posts its receives late, and in some seeds before the connection
//! exists. A completion means that the peer has executed the request: its effect is checked at that time. One end is
//! destroyed directly after its last completion. The other one then completes all of its requests.

use std::net::SocketAddr;

use oorandom::Rand64;
use rdma_over_tcp::{
    mpa::startup::{RtrKind, RtrSet},
    ndk::{
        Adapter, Cq, Data, Mr, MrFlags, NdkResultEx, NtStatus, OpFlags, OperationType, Qp,
        QpLimits, RegisteredBuffer, Sge,
    },
};

use crate::{
    bench::Bench,
    foreign::{CallbackResults, connect_with},
    moves::Migrators,
    plan::{Plan, draw, once_in},
};

/// Requests per end.
const REQUESTS: usize = 24;
/// Bytes of the largest message.
const SLOT: usize = 40_000;
/// Bytes of one part of the buffer: sources of requests, targets of Writes, sinks of Reads, receives.
const PART: usize = REQUESTS * SLOT;
/// Context of the first receive.
const RECEIVES: u64 = 1000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Write,
    Send,
    Read,
}

/// Queue pair, its memory, and its requests.
struct Side {
    cq: Cq,
    qp: Qp,
    mr: Mr,
    buffer: RegisteredBuffer,
    requests: Vec<(Kind, usize)>,
    posted: usize,
    completed: usize,
    receives_posted: usize,
    received: usize,
}

fn pattern(seed: usize, index: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251 + index * 31 + seed) as u8).collect()
}

impl Side {
    fn new(adapter: &Adapter, seed: usize, rng: &mut Rand64) -> Self {
        let pd = adapter.create_pd().unwrap();
        let cq = adapter.create_cq(256, |_| {}).unwrap();
        let qp = pd.create_rc_qp(&cq, &cq, 0, QpLimits::default()).unwrap();
        let buffer = adapter.allocate(4 * PART).unwrap();
        let mr = pd.create_mr(false).unwrap();
        let rights =
            MrFlags::ALLOW_LOCAL_WRITE | MrFlags::ALLOW_REMOTE_WRITE | MrFlags::ALLOW_REMOTE_READ;
        mr.register(&buffer, 0, 4 * PART, rights).unwrap();
        let request = |index| {
            let kind = match index + 1 {
                REQUESTS => Kind::Send,
                _ => [Kind::Write, Kind::Send, Kind::Read][draw(rng, 3)],
            };
            let is_small = once_in(rng, 2);
            let length = draw(rng, if is_small { 300 } else { SLOT });
            buffer.write_at(index * SLOT, &pattern(seed, index, length));
            (kind, length)
        };
        let requests = (0..REQUESTS).map(request).collect();
        Self {
            cq,
            qp,
            mr,
            buffer,
            requests,
            posted: 0,
            completed: 0,
            receives_posted: 0,
            received: 0,
        }
    }

    fn sge(&self, part: usize, index: usize, length: usize) -> Sge {
        let address = self.buffer.address() + (part * PART + index * SLOT) as u64;
        Sge { address, length: length as u32, token: self.mr.local_token() }
    }

    fn sends(&self) -> impl Iterator<Item = (usize, usize)> {
        let sends = self.requests.iter().enumerate();
        sends.filter(|(_, (kind, _))| *kind == Kind::Send).map(|(at, (_, length))| (at, *length))
    }

    fn content(&self, part: usize, index: usize, length: usize) -> Vec<u8> {
        let mut content = vec![0; length];
        self.buffer.read_at(part * PART + index * SLOT, &mut content);
        content
    }

    fn post(&mut self, peer: &Self) {
        let (index, (kind, length)) = (self.posted, self.requests[self.posted]);
        self.posted += 1;
        let (context, flags) = (index as u64, OpFlags::empty());
        let source = [self.sge(0, index, length)];
        let data = Data::Registered(&source);
        match kind {
            Kind::Write => {
                let to = peer.sge(1, index, length);
                self.qp.write(context, data, to.address, to.token, flags).unwrap();
            }
            Kind::Send => self.qp.send(context, data, flags).unwrap(),
            Kind::Read => {
                let from = peer.sge(0, index, length);
                let sink = [self.sge(2, index, length)];
                self.qp.read(context, &sink, from.address, from.token, flags).unwrap();
            }
        }
    }

    fn post_receive(&mut self) {
        let index = self.receives_posted;
        self.receives_posted += 1;
        let sge = self.sge(3, index, SLOT);
        self.qp.receive(RECEIVES + index as u64, &[sge]).unwrap();
    }

    /// Processes completions. Each effect is present at the time of its completion.
    fn poll(&mut self, seed: usize, peer: &Self) {
        let mut results = [NdkResultEx::default(); 8];
        let count = self.cq.poll_ex(&mut results);
        for result in &results[..count] {
            assert_eq!(result.status, NtStatus::SUCCESS, "seed {seed}: {result:?}");
            if result.operation == OperationType::Receive {
                let (index, length) = peer.sends().nth(self.received).unwrap();
                assert_eq!(result.request_context, RECEIVES + self.received as u64);
                assert_eq!(result.bytes_transferred as usize, length, "seed {seed}");
                let content = self.content(3, self.received, length);
                assert!(content == pattern(seed, index, length), "seed {seed}: receive");
                self.received += 1;
                continue;
            }
            let index = self.completed;
            self.completed += 1;
            assert_eq!(result.request_context, index as u64, "seed {seed}");
            let (kind, length) = self.requests[index];
            let found = match kind {
                Kind::Write => peer.content(1, index, length),
                Kind::Read => self.content(2, index, length),
                Kind::Send => {
                    let place = self.sends().position(|(at, _)| at == index).unwrap();
                    peer.content(3, place, length)
                }
            };
            let source = if kind == Kind::Read { peer.requests[index].1 } else { length };
            let known = length.min(source);
            assert!(
                found[..known] == pattern(seed, index, length)[..known],
                "seed {seed}: {kind:?}"
            );
        }
    }

    fn is_done(&self, peer: &Self) -> bool {
        self.completed == REQUESTS && self.received == peer.sends().count()
    }
}

/// Runs one seed.
pub(crate) fn run(seed: u64) {
    let rng = &mut Rand64::new(u128::from(seed) ^ 0x5c_5c5c);
    let is_bad = !once_in(rng, 4);
    let mut plan = Plan::with(rng, is_bad);
    let moves = once_in(rng, 2);
    if moves {
        plan.mix_policies(rng);
    }
    // An RTR by a Send would consume a receive.
    plan.adapters.iter_mut().for_each(|adapter| adapter.rtr = RtrSet::only(RtrKind::Write));
    let mut bench = Bench::new(&plan, [seed, seed + 1]);
    bench.moves = moves.then(|| Migrators::new(rng));
    let tag = seed as usize;
    let [mut a, mut b] = [0, 1].map(|at| Side::new(&bench.adapters[at], tag, rng));
    let mut receives_rest = [draw(rng, 60), draw(rng, 60)];
    for _ in 0..draw(rng, 3) {
        a.post_receive();
        b.post_receive();
    }
    let remote = SocketAddr::new(plan.addresses[1], 7000);
    let qps = [&a.qp, &b.qp];
    let ([active, passive], accepted) = connect_with(&mut bench, qps, remote, [None, None]);
    bench.run(|| accepted.is_done()).unwrap();
    assert_eq!(accepted.take(), Some(NtStatus::SUCCESS), "seed {seed}");
    let done = bench.run(|| {
        for (at, rest) in receives_rest.iter_mut().enumerate() {
            let (side, peer) = if at == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
            if side.posted < REQUESTS && once_in(rng, 3) {
                side.post(peer);
            }
            side.poll(tag, peer);
            *rest = rest.saturating_sub(1);
            if side.receives_posted < peer.sends().count() && *rest == 0 {
                side.post_receive();
                *rest = draw(rng, 40);
            }
        }
        // One end is destroyed with its last completion: the other one may still wait for its acknowledgments.
        a.is_done(&b) || b.is_done(&a)
    });
    done.unwrap_or_else(|stall| panic!("seed {seed}: {stall}"));
    let (first, connector, mut other) = match a.is_done(&b) {
        true => (a, active, b),
        false => (b, passive, a),
    };
    let closed = CallbackResults::default();
    let callback = closed.callback();
    let _ = first.qp.close(move || callback(NtStatus::SUCCESS));
    let _ = connector.close(|| {});
    bench.run_until_empty().unwrap();
    // The last request is a Send, so the destroyed end has executed all requests of the other one.
    let mut before = usize::MAX;
    while before != other.completed {
        before = other.completed;
        other.poll(tag, &first);
    }
    assert_eq!(other.completed, REQUESTS, "seed {seed}");
}
