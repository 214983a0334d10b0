use std::{boxed::Box, sync::Arc, vec, vec::Vec};

use super::*;
use crate::rnic::{
    Completion, CompletionQueue, CompletionRetention, Config, Data, DatagramPath, Destination,
    ErrorStatePosts, Key, QpConfig, QpLimits, QpService, RegionId, RegisteredBuffer, Sge,
    SrqConfig, StreamId, VerbError, WcOpcode,
    objects::id::{PdId, SrqId},
};

const BYTES: usize = 16 * 1024;
const KEY: u32 = 0x1111_1111;
const PAYLOAD_MAX: u32 = 1024;
const RECEIVE: u64 = 0x1000;

/// Sockets without a network: what was sent, with a limit of the room.
struct Wire {
    sent: Vec<(u16, DatagramPath, Vec<u8>)>,
    room: usize,
}

impl DatagramIo for Wire {
    fn send(&mut self, port: u16, path: &DatagramPath, datagram: &[u8]) -> bool {
        let has_room = self.sent.len() < self.room;
        if has_room {
            self.sent.push((port, *path, datagram.to_vec()));
        }
        has_room
    }
}

/// Adapter with queue pairs of one domain and one completion queue. Their numbers are 5001, 5002, and so on.
struct Bench {
    rnic: Rnic,
    pd: PdId,
    cq: crate::rnic::CqId,
    queue: Arc<CompletionQueue>,
    region: RegionId,
    buffer: RegisteredBuffer,
    wire: Wire,
    qps: Vec<QpId>,
}

fn destination(qp: u32, key: u32) -> Destination {
    let path = DatagramPath { local: [10, 0, 0, 1].into(), remote: ([10, 0, 0, 1], 0).into() };
    Destination { path, qp, key }
}

impl Bench {
    fn new(qps: usize) -> Self {
        let ids = Box::new(|| StreamId(0));
        let mut rnic = Rnic::new(Config::default(), ids, Box::new(|| {}));
        let pd = rnic.create_pd().unwrap();
        let (cq, queue) = rnic.create_cq(256, Arc::new(|_| {})).unwrap();
        let region = rnic.create_region(pd, false).unwrap();
        let buffer = RegisteredBuffer::allocate(BYTES).unwrap();
        rnic.register(region, &buffer, 0, BYTES, Access::LOCAL_WRITE).unwrap();
        let wire = Wire { sent: vec![], room: usize::MAX };
        let mut bench = Self { rnic, pd, cq, queue, region, buffer, wire, qps: vec![] };
        (0..qps).for_each(|_| bench.add(None));
        bench
    }

    fn number(at: usize) -> u32 {
        0x03_0000 + 5001 + at as u32
    }

    /// Adds a queue pair that sends and receives.
    fn add(&mut self, srq: Option<SrqId>) {
        let config = QpConfig {
            receive_cq: self.cq,
            send_cq: self.cq,
            context: self.qps.len() as u64,
            limits: QpLimits::default(),
            srq,
            error_state_posts: ErrorStatePosts::Flush,
            service: QpService::Ud,
        };
        let id = self.rnic.create_qp(self.pd, config).unwrap();
        self.rnic.set_qp_numbers(id, Self::number(self.qps.len()), None);
        self.rnic.set_datagram_key(id, KEY).unwrap();
        self.rnic.start_datagrams(id, PAYLOAD_MAX).unwrap();
        self.rnic.allow_sends(id).unwrap();
        self.qps.push(id);
    }

    fn sge(&self, offset: usize, length: u32) -> Sge {
        let token = self.rnic.token(self.region).unwrap();
        Sge { address: self.buffer.address() + offset as u64, length, token }
    }

    fn receive(&mut self, at: usize, context: u64, length: u32) {
        let sge = self.sge(RECEIVE as usize, length);
        self.rnic.post_receive(self.qps[at], context, &[sge]).0.unwrap();
    }

    fn post_to(&mut self, at: usize, context: u64, to: Destination, sges: &[Sge]) {
        let data = Data::Registered(sges);
        let posted =
            self.rnic.post_datagram(self.qps[at], context, (to, None), data, WrFlags::NONE);
        posted.0.unwrap();
    }

    /// Posts `text` to a queue pair.
    fn post(&mut self, at: usize, context: u64, to: usize, text: &[u8]) {
        self.buffer.write_at(0, text);
        let sge = self.sge(0, text.len() as u32);
        self.post_to(at, context, destination(Self::number(to), KEY), &[sge]);
    }

    fn transmit(&mut self) {
        self.rnic.transmit_datagrams(&mut self.wire);
    }

    /// Delivers what was sent. Returns the number of dropped datagrams.
    fn deliver(&mut self) -> u64 {
        let before = self.rnic.objects.counters.datagrams_dropped;
        for (port, path, datagram) in core::mem::take(&mut self.wire.sent) {
            let (source, to) = (SocketAddr::new(path.local, port), path.remote);
            self.rnic.handle_datagram(to.port(), source, to.ip(), &datagram);
        }
        self.rnic.objects.deliver_completions();
        self.rnic.objects.counters.datagrams_dropped - before
    }

    /// Transmits and delivers.
    fn pass(&mut self) -> u64 {
        self.transmit();
        self.deliver()
    }

    fn completions(&mut self) -> Vec<Completion> {
        let mut found = [None::<Completion>; 64];
        let count = self.queue.poll(&mut found);
        found[..count].iter().flatten().copied().collect()
    }

    /// Contexts and statuses of the completions.
    fn outcomes(&mut self) -> Vec<(u64, WcStatus)> {
        self.completions().iter().map(|it| (it.context, it.status)).collect()
    }

    fn received(&self, length: usize) -> Vec<u8> {
        let mut octets = vec![0; length];
        self.buffer.read_at(RECEIVE as usize, &mut octets);
        octets
    }
}

#[test]
fn datagram_is_received_with_its_source() {
    let mut bench = Bench::new(2);
    bench.receive(1, 10, 100);
    let pieces = [bench.sge(0, 3), bench.sge(8, 0), bench.sge(3, 4)];
    bench.buffer.write_at(0, b"gatherd");
    let to = (destination(Bench::number(1), KEY), Some(*b"imm!"));
    let data = Data::Registered(&pieces);
    bench.rnic.post_datagram(bench.qps[0], 1, to, data, WrFlags::SOLICITED).0.unwrap();
    bench.transmit();
    let [(port, path, _)] = &bench.wire.sent[..] else { panic!("one datagram") };
    assert_eq!((*port, path.remote), (5001, ([10, 0, 0, 1], 5002).into()));
    assert_eq!(bench.deliver(), 0);
    let [sent, received] = bench.completions()[..] else { panic!("two completions") };
    assert_eq!((sent.context, sent.status, sent.opcode), (1, WcStatus::Success, WcOpcode::Send));
    assert_eq!((received.context, received.bytes, received.solicited), (10, 47, true));
    let source = Bench::number(0);
    let immediate = Some(*b"imm!");
    assert_eq!(received.arrival, Arrival::Datagram { source, immediate, is_ipv4: true });
    let octets = bench.received(47);
    assert_eq!(octets[40..], *b"gatherd");
    assert_eq!(octets[32..40], [10, 0, 0, 1, 10, 0, 0, 1]);
    assert_eq!(octets[20], 0x45);
}

// Each of them is dropped and counted; the sender succeeds, and the receives remain.
#[test]
fn datagram_that_no_receive_can_take_is_dropped() {
    let mut bench = Bench::new(3);
    bench.receive(1, 10, 43);
    bench.post(0, 1, 1, b"long");
    bench.post(0, 2, 2, b"none");
    let sge = bench.sge(0, 3);
    bench.post_to(0, 3, destination(0x07_0000 + 5002, KEY), &[sge]);
    bench.post_to(0, 4, destination(Bench::number(1), KEY + 1), &[sge]);
    assert_eq!(bench.pass(), 4);
    let success = |context| (context, WcStatus::Success);
    assert_eq!(bench.outcomes(), [1, 2, 3, 4].map(success));
    bench.post(0, 5, 1, b"fit");
    assert_eq!(bench.pass(), 0);
    assert_eq!(bench.outcomes(), [5, 10].map(success));
}

// A key with bit 31 is that of the sending queue pair.
#[test]
fn key_with_the_highest_bit_is_the_own_one() {
    let mut bench = Bench::new(2);
    bench.receive(1, 10, 100);
    let sge = bench.sge(0, 1);
    bench.post_to(0, 1, destination(Bench::number(1), 0x8000_0000), &[sge]);
    assert_eq!(bench.pass(), 0);
    bench.rnic.set_datagram_key(bench.qps[0], 7).unwrap();
    bench.post_to(0, 2, destination(Bench::number(1), 0x8000_0000 | KEY), &[sge]);
    assert_eq!(bench.pass(), 1);
}

// The numbers in a datagram are those of the ports between which it was sent.
#[test]
fn forged_datagram_is_dropped() {
    let mut bench = Bench::new(2);
    bench.receive(1, 10, 100);
    bench.post(0, 1, 1, b"octets");
    bench.transmit();
    let [(_, _, datagram)] = &bench.wire.sent[..] else { panic!("one datagram") };
    let datagram = datagram.clone();
    let before = bench.rnic.objects.counters.datagrams_dropped;
    let mut handle = |port: u16, source: u16, octets: &[u8]| {
        bench.rnic.handle_datagram(
            port,
            ([10, 0, 0, 1], source).into(),
            [10, 0, 0, 1].into(),
            octets,
        );
        bench.rnic.objects.counters.datagrams_dropped - before
    };
    assert_eq!(handle(5002, 5003, &datagram), 1, "another source port");
    assert_eq!(handle(5001, 5001, &datagram), 2, "another port");
    assert_eq!(handle(5002, 5001, &datagram[..HEADER_OCTETS - 1]), 3, "too short");
    assert_eq!(handle(5002, 5001, &datagram), 3);
}

// A queue pair in error or not started receives nothing.
#[test]
fn queue_pair_receives_between_start_and_reset() {
    let mut bench = Bench::new(2);
    bench.rnic.reset_qp(bench.qps[1]).unwrap();
    bench.receive(1, 10, 100);
    bench.post(0, 1, 1, b"early");
    assert_eq!(bench.pass(), 1);
    bench.rnic.set_datagram_key(bench.qps[1], KEY).unwrap();
    bench.rnic.start_datagrams(bench.qps[1], PAYLOAD_MAX).unwrap();
    bench.post(0, 2, 1, b"heard");
    assert_eq!(bench.pass(), 0);
    bench.receive(1, 11, 100);
    bench.rnic.break_qp(bench.qps[1]);
    bench.post(0, 3, 1, b"late");
    assert_eq!(bench.pass(), 1);
    let outcomes = bench.outcomes();
    assert_eq!(outcomes[..3], [1, 2, 10].map(|context| (context, WcStatus::Success)));
    assert_eq!(outcomes[3], (11, WcStatus::Flushed));
    // Another queue pair may get the number of a closed one.
    let (qp, number) = (bench.qps[1], Bench::number(1));
    let _ = bench.rnic.close_qp(qp, CompletionRetention::Discard, Box::new(|| {}));
    assert!(!bench.rnic.objects.datagrams.numbers.contains_key(&number));
}

// A failed request flushes the others, and the queue pair receives and can be resumed (SQE).
#[test]
fn failed_request_flushes_until_sends_are_allowed() {
    let mut bench = Bench::new(2);
    let long = bench.sge(0, PAYLOAD_MAX + 1);
    let foreign = Sge { token: long.token ^ 0x100, length: 4, ..long };
    for (sge, status) in [(long, WcStatus::LocalLength), (foreign, WcStatus::LocalProtection)] {
        bench.receive(0, 20, 100);
        bench.post(0, 1, 1, b"lost");
        bench.post_to(0, 2, destination(Bench::number(1), KEY), &[sge]);
        bench.post(0, 3, 1, b"after");
        assert_eq!(bench.pass(), 1);
        let expected = [(1, WcStatus::Success), (2, status), (3, WcStatus::Flushed)];
        assert_eq!(bench.outcomes(), expected);
        assert!(bench.rnic.have_sends_failed(bench.qps[0]));
        bench.post(0, 4, 1, b"more");
        assert_eq!((bench.pass(), bench.outcomes()), (0, vec![(4, WcStatus::Flushed)]));
        bench.post(1, 5, 0, b"reply");
        assert_eq!(bench.pass(), 0);
        assert_eq!(bench.outcomes(), [(5, WcStatus::Success), (20, WcStatus::Success)]);
        bench.rnic.allow_sends(bench.qps[0]).unwrap();
        bench.receive(1, 21, 100);
        bench.post(0, 6, 1, b"again");
        assert_eq!(bench.pass(), 0);
        assert_eq!(bench.outcomes(), [(6, WcStatus::Success), (21, WcStatus::Success)]);
    }
}

// The memory of a receive is checked when a datagram arrives; the queue pair is then in error.
#[test]
fn receive_in_revoked_memory_is_not_written() {
    let mut bench = Bench::new(2);
    bench.receive(1, 10, 100);
    bench.receive(1, 11, 100);
    bench.post(0, 1, 1, b"octets");
    bench.transmit();
    let _ = bench.rnic.deregister(bench.region, Box::new(|| {})).unwrap();
    bench.deliver();
    let protection = (10, WcStatus::LocalProtection);
    let expected = [(1, WcStatus::Success), protection, (11, WcStatus::Flushed)];
    assert_eq!(bench.outcomes(), expected);
    assert_eq!(bench.received(100), [0; 100]);
    assert_eq!(bench.rnic.qp_state(bench.qps[1]), Some(QpState::Error));
}

// All entries of a receive are checked before the first one is written.
#[test]
fn receive_with_an_inaccessible_entry_is_not_written() {
    let mut bench = Bench::new(2);
    let (first, second) = (bench.sge(RECEIVE as usize, 50), bench.sge(RECEIVE as usize + 50, 50));
    let foreign = Sge { token: second.token ^ 0x100, ..second };
    bench.rnic.post_receive(bench.qps[1], 10, &[first, foreign]).0.unwrap();
    bench.post(0, 1, 1, &[7; 40]);
    bench.pass();
    assert_eq!(bench.outcomes(), [(1, WcStatus::Success), (10, WcStatus::LocalProtection)]);
    assert_eq!(bench.received(100), [0; 100]);
}

// Requests wait in order while the socket has no room, and while they are held.
#[test]
fn requests_wait_for_room_and_while_held() {
    let mut bench = Bench::new(2);
    bench.wire.room = 1;
    (1..=3).for_each(|context| bench.post(0, context, 1, b"octets"));
    bench.transmit();
    assert_eq!(bench.outcomes(), [(1, WcStatus::Success)]);
    bench.transmit();
    assert_eq!(bench.outcomes(), []);
    bench.wire.room = usize::MAX;
    bench.rnic.hold_sends(bench.qps[0], true).unwrap();
    bench.rnic.handle_datagram_room();
    bench.transmit();
    assert_eq!(bench.outcomes(), []);
    bench.rnic.hold_sends(bench.qps[0], false).unwrap();
    bench.transmit();
    assert_eq!(bench.outcomes(), [2, 3].map(|context| (context, WcStatus::Success)));
}

// A queue pair with many requests does not delay the streams and the others.
#[test]
fn turn_is_limited_and_continued() {
    let mut bench = Bench::new(1);
    let count = QpLimits::default().initiator_queue_depth as usize;
    (0..count).for_each(|context| bench.post(0, context as u64, 0, b"octets"));
    assert!(
        bench
            .rnic
            .post_datagram(
                bench.qps[0],
                0,
                (destination(Bench::number(0), KEY), None),
                Data::Registered(&[]),
                WrFlags::NONE
            )
            .0
            == Err(VerbError::QueueFull)
    );
    bench.add(None);
    (0..10).for_each(|context| bench.post(1, 1000 + context, 0, b"octets"));
    bench.transmit();
    assert_eq!(bench.wire.sent.len(), DATAGRAMS_PER_TURN);
    assert!(bench.rnic.has_work());
    while bench.rnic.has_datagrams() {
        bench.transmit();
    }
    assert_eq!(bench.wire.sent.len(), count + 10);
}

// A receive that is too short stays in the shared queue for others.
#[test]
fn shared_receive_is_taken_by_the_datagram_that_fits() {
    let mut bench = Bench::new(1);
    let config = SrqConfig { depth: 8, max_receive_request_sge: 1, limit: 0 };
    let srq = bench.rnic.create_srq(bench.pd, config, Arc::new(|_| {})).unwrap();
    bench.add(Some(srq));
    bench.add(Some(srq));
    let sge = bench.sge(RECEIVE as usize, 44);
    bench.rnic.post_srq_receive(srq, 30, &[sge]).0.unwrap();
    bench.post(0, 1, 1, b"too long");
    assert_eq!(bench.pass(), 1);
    bench.post(0, 2, 2, b"fits");
    assert_eq!(bench.pass(), 0);
    let [_, _, received] = bench.completions()[..] else { panic!("three completions") };
    assert_eq!((received.context, received.qp), (30, bench.qps[2]));
}

// Posts of other services are refused on a queue pair of datagrams, and datagrams on others.
#[test]
fn operations_of_other_services_are_refused() {
    let mut bench = Bench::new(1);
    let remote = crate::rnic::Remote::new(0, 1);
    for operation in [
        crate::rnic::Operation::Send { invalidate: None },
        crate::rnic::Operation::Write { to: remote },
        crate::rnic::Operation::Read { from: remote, invalidate_sink: false },
    ] {
        let data = Data::Registered(&[]);
        let posted = bench.rnic.post(bench.qps[0], 1, operation, data, WrFlags::NONE);
        assert_eq!(posted.0, Err(VerbError::InvalidArgument), "{operation:?}");
    }
    let config = QpConfig {
        receive_cq: bench.cq,
        send_cq: bench.cq,
        context: 0,
        limits: QpLimits::default(),
        srq: None,
        error_state_posts: ErrorStatePosts::Flush,
        service: QpService::Rc,
    };
    let rc = bench.rnic.create_qp(bench.pd, config).unwrap();
    assert_eq!(bench.rnic.set_datagram_key(rc, 1), Err(VerbError::InvalidArgument));
    assert_eq!(bench.rnic.start_datagrams(rc, 1), Err(VerbError::InvalidArgument));
    bench.rnic.break_qp(rc);
    let to = (destination(1, 1), None);
    let posted = bench.rnic.post_datagram(rc, 1, to, Data::Registered(&[]), WrFlags::NONE);
    assert_eq!(posted.0, Err(VerbError::InvalidArgument));
    let _ = bench.rnic.close(Key::Qp(rc), Box::new(|| {}));
}
