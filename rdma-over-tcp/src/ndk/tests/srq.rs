//! Shared receive queues.

use std::{
    sync::{Arc, Mutex},
    vec,
    vec::Vec,
};

use super::{
    bench::Bench,
    sides::{LIMITS, Log, Side, connect_at, pattern},
};
use crate::{
    error::{EndReason, WireError},
    ndk::{
        Data, DisconnectReason, NdkResultEx, NtStatus, OpFlags, OperationType, Qp, QpLimits, Srq,
    },
    rnic::{QpEvent, QpState},
};

/// Limits of a queue pair with a shared queue; the limits of its own receives are ignored.
const WITHOUT_RECEIVES: QpLimits = QpLimits {
    receive_queue_depth: 0,
    initiator_queue_depth: 64,
    max_receive_request_sge: 0,
    max_initiator_request_sge: 4,
    inline_data_size: 256,
};

/// Receiving sides whose queue pairs share a queue, and their peers.
struct SharedQueueBench {
    bench: Bench,
    peers: Vec<Side>,
    /// Objects of the receiving consumer, with the first queue pair.
    sides: Vec<Side>,
    srq: Srq,
    log: Log,
}

impl SharedQueueBench {
    /// Creates a queue of `depth` receives with a threshold, and the connections.
    fn new(depth: u32, threshold: u32, connections: usize) -> Self {
        let mut bench = Bench::new(7);
        let log = Log::default();
        let first = Side::new(&bench, 1);
        let srq = first.pd.create_srq(depth, 2, threshold, log.note("limit")).unwrap();
        let mut sides = vec![first];
        let mut peers = Vec::new();
        for index in 0..connections {
            if index > 0 {
                let other = Side::new(&bench, 1);
                assert_eq!(other.mr.close(|| {}), NtStatus::SUCCESS);
                sides.push(other);
            }
            let Side { pd, cq, .. } = &sides[0];
            let context = 200 + index as u64;
            let qp = pd.create_qp_with_srq(cq, cq, &srq, context, WITHOUT_RECEIVES).unwrap();
            sides[index].qp = qp;
            let mut peer = Side::new(&bench, 0);
            let server = std::format!("10.0.0.2:{}", 7000 + index);
            connect_at(
                &mut bench,
                &mut peer,
                &mut sides[index],
                [LIMITS; 2],
                server.parse().unwrap(),
            );
            peers.push(peer);
        }
        Self { bench, peers, sides, srq, log }
    }

    fn receive(&self, context: u64, offset: usize, length: usize) {
        self.srq.receive(context, &[self.sides[0].sge(offset, length)]).unwrap();
    }

    /// Returns queue pairs, requests and statuses of completed receives.
    fn received(&self) -> Vec<(u64, u64, NtStatus)> {
        let tuple =
            |result: NdkResultEx| (result.qp_context, result.request_context, result.status);
        self.sides[0].poll().into_iter().map(tuple).collect()
    }

    /// Runs until the first segment of a message has consumed one of `posted` receives.
    fn step_until_taken(&mut self, posted: u32) {
        let Self { bench, sides, srq, .. } = self;
        let attributes =
            || sides[0].pd.adapter.with(|core, _| core.srq_attributes(srq.id)).unwrap();
        while attributes().posted == posted {
            assert!(bench.step());
        }
        assert_eq!(sides[0].poll(), [], "it is incomplete");
    }

    fn limits_reached(&self) -> usize {
        self.log.take().len()
    }
}

// NDK-SRQ-6, NDK-RES-4: messages consume receives in the order of their first segments, across connections. Each
// completion identifies its queue pair, and the bytes are placed correctly.
#[test]
fn receives_are_taken_in_order_of_arrival() {
    let mut shared = SharedQueueBench::new(8, 0, 2);
    (0..4).for_each(|n| shared.receive(n, 100_000 * n as usize, 100_000));
    // A large message, cut by the window, keeps the receive that it has consumed while a small one overtakes it.
    shared.bench.window = 8 * 1024;
    shared.peers[0].fill(0, 90_000, 1);
    shared.peers[1].fill(0, 100, 2);
    shared.peers[0].send(10, 0, 90_000);
    shared.step_until_taken(4);
    shared.peers[1].send(11, 0, 100);
    shared.bench.settle();
    shared.peers[1].send(12, 0, 50);
    shared.bench.settle();
    let mut received = shared.received();
    received.sort_unstable_by_key(|(_, context, _)| *context);
    let success = NtStatus::SUCCESS;
    assert_eq!(received, [(200, 0, success), (201, 1, success), (201, 2, success)]);
    assert!(shared.sides[0].content(0, 90_000) == pattern(90_000, 1));
    assert!(shared.sides[0].content(100_000, 100) == pattern(100, 2));
    assert!(shared.sides[0].content(200_000, 50) == pattern(50, 2));
    let stats = [0, 1].map(|at| shared.sides[at].qp.stats().receives);
    assert_eq!(stats, [1, 2], "receives taken per queue pair are counted (SEC-6.4.3.1-1)");
}

// A message that finds no receive terminates its own connection only (RFC 5041 §7.2).
#[test]
fn empty_queue_terminates_one_connection() {
    let mut shared = SharedQueueBench::new(8, 0, 2);
    shared.peers[0].send(1, 0, 100_000);
    shared.bench.settle();
    let found = EndReason::Detected(WireError::UntaggedNoBuffer.number());
    let reason = DisconnectReason::new(Some(found));
    assert_eq!(shared.sides[0].log.take(), [("disconnect event", NtStatus(reason.0))]);
    assert_eq!(shared.peers[0].outcomes(), [(1, NtStatus::IO_TIMEOUT)], "as with an own queue");
    shared.receive(5, 0, 100);
    shared.peers[1].send(2, 0, 100);
    shared.bench.settle();
    assert_eq!(shared.received(), [(201, 5, NtStatus::SUCCESS)]);
}

// NDK-SRQ-2, -3: one notification when fewer receives are queued than the threshold, until it is set again.
#[test]
fn threshold_is_notified_once() {
    let mut shared = SharedQueueBench::new(8, 2, 1);
    let send = |shared: &mut SharedQueueBench| {
        shared.peers[0].send(1, 0, 10);
        shared.bench.settle();
    };
    shared.receive(0, 0, 10);
    send(&mut shared);
    assert_eq!(shared.limits_reached(), 0, "there were never two");
    (1..=4).for_each(|n| shared.receive(n, 0, 10));
    send(&mut shared);
    send(&mut shared);
    assert_eq!(shared.limits_reached(), 0, "two remain");
    // Depth 0 and threshold 0 keep the current values.
    shared.srq.modify(0, 0).unwrap();
    send(&mut shared);
    assert_eq!(shared.limits_reached(), 1, "one remains");
    send(&mut shared);
    assert_eq!(shared.limits_reached(), 0, "once");
    // Zero values do not arm the threshold either.
    shared.srq.modify(0, 0).unwrap();
    shared.bench.settle();
    assert_eq!(shared.limits_reached(), 0);
    shared.srq.modify(0, 3).unwrap();
    shared.bench.settle();
    assert_eq!(shared.limits_reached(), 1, "at once");
    (5..=7).for_each(|n| shared.receive(n, 0, 10));
    shared.srq.modify(4, 3).unwrap();
    shared.bench.settle();
    assert_eq!(shared.limits_reached(), 0);
    send(&mut shared);
    assert_eq!(shared.limits_reached(), 1);
}

// NDK-SRQ-1, -2: limits of creation, of posts, and of modifications.
#[test]
fn limits() {
    let bench = Bench::new(1);
    let side = Side::new(&bench, 0);
    let info = side.adapter.info();
    assert!(info.max_srq_depth > 0);
    let create = |depth, sges, threshold| {
        side.pd.create_srq(depth, sges, threshold, |_| {}).map(|srq| {
            assert_eq!(srq.close(|| {}), NtStatus::SUCCESS);
        })
    };
    let refused = Err(NtStatus::INVALID_PARAMETER);
    let sges = info.max_receive_request_sge;
    assert_eq!(create(info.max_srq_depth, sges, info.max_srq_depth), Ok(()));
    assert_eq!(create(info.max_srq_depth + 1, sges, 0), refused);
    assert_eq!(create(info.max_srq_depth, sges + 1, 0), refused);
    assert_eq!(create(1, 1, 2), refused);
    let srq = side.pd.create_srq(2, 1, 0, |_| {}).unwrap();
    let sge = side.sge(0, 10);
    assert_eq!(srq.receive(1, &[sge, sge]), Err(NtStatus::DATA_OVERRUN));
    srq.receive(1, &[sge]).unwrap();
    srq.receive(2, &[sge]).unwrap();
    assert_eq!(srq.receive(3, &[sge]), Err(NtStatus::NO_MORE_ENTRIES));
    assert_eq!(srq.modify(1, 0), Err(NtStatus::BUFFER_OVERFLOW));
    assert_eq!(srq.modify(info.max_srq_depth + 1, 0), refused);
    assert_eq!(srq.modify(0, 3), refused);
    assert_eq!(srq.modify(3, 0), Ok(()));
    srq.receive(3, &[sge]).unwrap();
    let attributes = side.pd.adapter.with(|core, _| core.srq_attributes(srq.id)).unwrap();
    assert_eq!((attributes.depth, attributes.posted, attributes.limit), (3, 3, 0));

    let (pd, other) = (&side.pd, side.adapter.create_pd().unwrap());
    let foreign = other.create_qp_with_srq(&side.cq, &side.cq, &srq, 0, WITHOUT_RECEIVES);
    assert_eq!(foreign.map(drop), refused, "another domain's");
    let qp = pd.create_qp_with_srq(&side.cq, &side.cq, &srq, 0, WITHOUT_RECEIVES).unwrap();
    assert_eq!(qp.receive(1, &[]), refused);
    // NDK-LIFE-10: the queue waits for its queue pairs.
    assert_eq!(srq.close(|| {}), NtStatus::PENDING);
    assert_eq!(srq.receive(4, &[]), refused);
    let late = pd.create_qp_with_srq(&side.cq, &side.cq, &srq, 0, WITHOUT_RECEIVES);
    assert_eq!(late.map(drop), refused);
    assert_eq!(qp.close(|| {}), NtStatus::SUCCESS);
    assert_eq!(side.outcomes(), [], "receives of the shared queue are not the queue pair's");
}

/// Records the events of a queue pair.
fn events(qp: &Qp) -> Arc<Mutex<Vec<QpEvent>>> {
    let events = Arc::<Mutex<Vec<QpEvent>>>::default();
    let recorded = events.clone();
    let note = Arc::new(move |event| recorded.lock().unwrap().push(event));
    qp.adapter.with(|core, _| core.notify_of_qp(qp.id, note)).unwrap();
    events
}

// NDK-SRQ-6: a queue pair that fails completes the receive that it has consumed, and reports that it consumes no more.
// The remaining receives stay available to the other queue pairs.
#[test]
fn failed_queue_pair_leaves_remaining_receives() {
    let mut shared = SharedQueueBench::new(8, 0, 2);
    let recorded = [0, 1].map(|at| events(&shared.sides[at].qp));
    (0..3).for_each(|n| shared.receive(n, 0, 100_000));
    shared.bench.window = 8 * 1024;
    shared.peers[0].send(1, 0, 90_000);
    shared.step_until_taken(3);
    shared.sides[0].qp.flush();
    shared.bench.settle();
    assert_eq!(shared.received(), [(200, 0, NtStatus::CANCELLED)]);
    assert_eq!(*recorded[0].lock().unwrap(), [QpEvent::LastReceive], "once");
    let state = |at: usize| {
        let Qp { adapter, id } = &shared.sides[at].qp;
        adapter.with(|core, _| core.qp_state(*id))
    };
    assert_eq!([state(0), state(1)], [Some(QpState::Error), Some(QpState::Connected)]);
    shared.sides[0].qp.flush();
    shared.peers[1].send(2, 0, 10);
    shared.bench.settle();
    assert_eq!(shared.received(), [(201, 1, NtStatus::SUCCESS)]);
    assert_eq!(*recorded[1].lock().unwrap(), []);
    let done = shared.sides[1].connector.clone().unwrap();
    assert_eq!(done.disconnect(|_| {}), NtStatus::PENDING);
    shared.bench.settle();
    assert_eq!(*recorded[1].lock().unwrap(), [QpEvent::LastReceive]);
    assert_eq!(shared.received(), []);
}

// A Send with Invalidate, and a receive that is too short, behave as with an own queue.
#[test]
fn shared_queue_completes_like_own_queue() {
    let mut shared = SharedQueueBench::new(8, 0, 1);
    let side = &shared.sides[0];
    let mr = side.pd.create_mr(true).unwrap();
    mr.initialize_fast_register(1, true).unwrap();
    let rights = OpFlags::ALLOW_REMOTE_READ;
    let token = side.qp.fast_register(1, &mr, &side.buffer, 0, 4096, 0, rights).unwrap();
    shared.receive(2, 0, 10);
    shared.receive(3, 0, 10);
    let data = Data::Inline(&[b"data"]);
    shared.peers[0].qp.send_and_invalidate(1, data, token, OpFlags::empty()).unwrap();
    shared.bench.settle();
    let results = shared.sides[0].poll();
    assert_eq!(results[1].operation, OperationType::ReceiveAndInvalidate);
    assert_eq!((results[1].invalidated_token, results[1].request_context), (token, 2));
    shared.peers[0].send(2, 0, 11);
    shared.bench.settle();
    assert_eq!(shared.received(), [(200, 3, NtStatus::BUFFER_OVERFLOW)], "NDK-ERR-5");
}
