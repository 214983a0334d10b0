//! A thousand queue pairs on one node: memory held by a connected, idle queue pair, and a data transfer on
//! each.
//!
//! There is one test, since held memory is counted for the whole program.

use std::{thread, time::Instant};

use flue_guard::counting::{CountingAllocator, held_bytes};
use rdma_over_tcp::ndk::{
    Adapter, AdapterConfig, Cq, Data, Mr, MrFlags, NdkResultEx, NtStatus, OpFlags, Pair, Pd,
    PendingCall, Qp, QpLimits, ReadLimit, RegisteredBuffer, Sge,
    blocking::{Connection, Incoming, close_adapter},
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const COUNT: usize = 1000;
/// Limit for the memory held by a connected, idle queue pair, with its connector and its connection, but
/// without its completion queue.
const HELD_MAX: u64 = 32 << 10;
/// Size of a message, which takes more than one segment.
const BYTES: usize = 2000;
const READS: ReadLimit = ReadLimit { inbound: 1, outbound: 1 };

/// One node, with memory shared by all of its queue pairs: each has a part to send from and one to receive
/// into.
struct End {
    adapter: Adapter,
    pd: Pd,
    cq: Cq,
    mr: Mr,
    buffer: RegisteredBuffer,
    pairs: Vec<(Qp, Connection)>,
}

impl End {
    fn new(adapter: Adapter) -> Self {
        let (pd, cq) = (adapter.create_pd().unwrap(), adapter.create_cq(2048, |_| {}).unwrap());
        let (mr, buffer) =
            (pd.create_mr(false).unwrap(), adapter.allocate(2 * COUNT * BYTES).unwrap());
        mr.register(&buffer, 0, 2 * COUNT * BYTES, MrFlags::ALLOW_LOCAL_WRITE).unwrap();
        Self { adapter, pd, cq, mr, buffer, pairs: Vec::with_capacity(COUNT) }
    }

    fn qp(&self) -> Qp {
        self.pd.create_qp(&self.cq, &self.cq, 0, QpLimits::default()).unwrap()
    }

    fn sge(&self, part: usize) -> Sge {
        let address = self.buffer.address() + (part * BYTES) as u64;
        Sge { address, length: BYTES as u32, token: self.mr.local_token() }
    }

    /// Message of the end `sender` on pair `number`.
    fn message(sender: usize, number: usize) -> Vec<u8> {
        let first = 2 * number + sender;
        (0..BYTES).map(|at| (first.wrapping_mul(0x9e37_79b9) >> 8) as u8 ^ at as u8).collect()
    }

    fn post_receives(&self) {
        for (number, (qp, _)) in self.pairs.iter().enumerate() {
            qp.receive(number as u64, &[self.sge(COUNT + number)]).unwrap();
        }
    }

    fn send(&self, sender: usize) {
        for (number, (qp, _)) in self.pairs.iter().enumerate() {
            self.buffer.write_at(number * BYTES, &Self::message(sender, number));
            let data = [self.sge(number)];
            qp.send(number as u64, Data::Registered(&data), OpFlags::empty()).unwrap();
        }
    }

    /// Polls the completions of a send and a receive of each pair.
    fn complete(&self) {
        let (mut results, mut left) = ([NdkResultEx::default(); 64], 2 * COUNT);
        while left > 0 {
            let take = || Some(self.cq.poll_ex(&mut results)).filter(|count| *count > 0);
            let count = self.adapter.wait_until(None, take).unwrap();
            assert!(results[..count].iter().all(|result| result.status == NtStatus::SUCCESS));
            left -= count;
        }
    }

    fn check(&self, sender: usize) {
        let mut data = vec![0; BYTES];
        for number in 0..COUNT {
            self.buffer.read_at((COUNT + number) * BYTES, &mut data);
            assert!(data == Self::message(sender, number), "queue pair {number}");
        }
    }

    /// Closes all objects, in an arbitrary order that respects their dependencies.
    fn close(self) {
        let Self { mut adapter, pd, cq, mr, pairs, .. } = self;
        let mut closes: Vec<_> = [PendingCall::close(|done| pd.close(done))].into();
        closes.push(PendingCall::close(|done| cq.close(done)));
        closes.push(PendingCall::close(|done| mr.close(done)));
        for (qp, connection) in &pairs {
            closes.push(PendingCall::close(|done| qp.close(done)));
            closes.push(PendingCall::close(|done| connection.connector().close(done)));
        }
        close_adapter(&mut adapter).unwrap();
        assert!(closes.iter().all(|close| close.status() == Some(NtStatus::SUCCESS)));
        assert!(adapter.connections().is_empty());
    }
}

fn connect(near: &mut End, far: &mut End, incoming: &mut Incoming) {
    let server = incoming.listener().local_address().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..COUNT {
                let (connector, qp) = (incoming.next(&mut far.adapter).unwrap(), far.qp());
                let accepted = Connection::accept(&mut far.adapter, connector, &qp, READS, &[]);
                far.pairs.push((qp, accepted.unwrap()));
            }
        });
        for _ in 0..COUNT {
            let qp = near.qp();
            let connected = Connection::connect(&mut near.adapter, &qp, server, READS, &[]);
            near.pairs.push((qp, connected.unwrap()));
        }
    });
}

/// Memory held per queue pair of both nodes, relative to `before`.
fn each(before: u64) -> u64 {
    held_bytes().saturating_sub(before) / (2 * COUNT as u64)
}

#[test]
fn thousand_queue_pairs_stay_within_memory_limit() {
    let Pair { adapters, nodes } = Pair::open(AdapterConfig::default()).unwrap();
    drop(nodes);
    let [mut near, mut far] = adapters.map(End::new);
    let server = (Pair::ADDRESSES[1], 7174).into();
    let mut incoming = Incoming::listen(&mut far.adapter, server, 8).unwrap();
    let (before, begin) = (held_bytes(), Instant::now());
    connect(&mut near, &mut far, &mut incoming);
    let (connected, time) = (each(before), begin.elapsed());
    far.post_receives();
    near.post_receives();
    near.send(0);
    far.send(1);
    near.complete();
    far.complete();
    near.check(1);
    far.check(0);
    let worked = each(before);
    println!("{COUNT} connections in {time:?}, each of {} queue pairs:", 2 * COUNT);
    println!("{connected} bytes connected and idle, {worked} when it has sent and received");
    assert!(connected <= HELD_MAX && worked <= HELD_MAX, "{connected} {worked}");
    for (_, connection) in &near.pairs {
        connection.disconnect(&mut near.adapter).unwrap();
    }
    for (_, connection) in &far.pairs {
        connection.disconnect(&mut far.adapter).unwrap();
    }
    let listening = PendingCall::close(|done| incoming.listener().close(done));
    near.close();
    far.close();
    assert_eq!(listening.status(), Some(NtStatus::SUCCESS));
}
