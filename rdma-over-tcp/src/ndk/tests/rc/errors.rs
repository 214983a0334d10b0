//! Statuses of failed requests.

use super::*;
use crate::{ddp::Stag, error::WireError, rdmap::AtomicOperation};

/// Failing request: the request, a preparation of the peer, and the outcome.
struct Case {
    name: &'static str,
    operation: fn(&End) -> Operation,
    length: usize,
    prepare: fn(&End),
    status: WcStatus,
    error: WireError,
    /// Status of the peer's receive.
    receive: Option<WcStatus>,
}

const ADD: AtomicOperation = AtomicOperation::FetchAdd { add: 1, mask: 0 };

fn rights(peer: &End, rights: Access) {
    peer.adapter.with(|rnic, _| rnic.set_qp_access(peer.qp, rights)).unwrap();
}

const fn none(_: &End) {}

const CASES: [Case; 12] = [
    Case {
        name: "Write, unknown token",
        operation: |peer| Operation::Write {
            to: Remote::new(peer.buffer.address(), peer.token ^ 0x100),
        },
        length: 10,
        prepare: none,
        status: WcStatus::RemoteAccess,
        error: WireError::TaggedInvalidStag,
        receive: None,
    },
    Case {
        name: "Write, out of bounds",
        operation: |peer| Operation::Write { to: peer.remote(BUFFER - 1) },
        length: 10,
        prepare: none,
        status: WcStatus::RemoteAccess,
        error: WireError::TaggedBounds,
        receive: None,
    },
    Case {
        name: "Read, out of bounds",
        operation: |peer| Operation::Read { from: peer.remote(BUFFER - 1), invalidate_sink: false },
        length: 10,
        prepare: none,
        status: WcStatus::RemoteAccess,
        error: WireError::ProtectionBounds,
        receive: None,
    },
    Case {
        name: "Write, no right of the queue pair",
        operation: |peer| Operation::Write { to: peer.remote(0) },
        length: 10,
        prepare: |peer| rights(peer, Access::REMOTE_READ | Access::REMOTE_ATOMIC),
        status: WcStatus::RemoteInvalidRequest,
        error: WireError::OperationStreamCatastrophic,
        receive: None,
    },
    Case {
        name: "Read, no right of the queue pair",
        operation: |peer| Operation::Read { from: peer.remote(0), invalidate_sink: false },
        length: 10,
        prepare: |peer| rights(peer, Access::REMOTE_WRITE | Access::REMOTE_ATOMIC),
        status: WcStatus::RemoteInvalidRequest,
        error: WireError::OperationStreamCatastrophic,
        receive: None,
    },
    Case {
        name: "atomic, no right of the queue pair",
        operation: |peer| Operation::Atomic { target: peer.remote(0), operation: ADD },
        length: 8,
        prepare: |peer| rights(peer, Access::REMOTE_WRITE | Access::REMOTE_READ),
        status: WcStatus::RemoteInvalidRequest,
        error: WireError::OperationStreamCatastrophic,
        receive: None,
    },
    Case {
        name: "atomic, not aligned",
        operation: |peer| Operation::Atomic { target: peer.remote(4), operation: ADD },
        length: 8,
        prepare: none,
        status: WcStatus::RemoteInvalidRequest,
        error: WireError::OperationStreamCatastrophic,
        receive: None,
    },
    Case {
        name: "atomic, out of bounds",
        operation: |peer| Operation::Atomic { target: peer.remote(BUFFER), operation: ADD },
        length: 8,
        prepare: none,
        status: WcStatus::RemoteAccess,
        error: WireError::ProtectionBounds,
        receive: None,
    },
    Case {
        name: "receive too short",
        operation: |_| Operation::Send { invalidate: None },
        length: 11,
        prepare: |peer| peer.receive(20, 0, 10),
        status: WcStatus::RemoteInvalidRequest,
        error: WireError::UntaggedTooLong,
        receive: Some(WcStatus::LocalLength),
    },
    Case {
        name: "receive too short for a Send with immediate data",
        operation: |_| Operation::SendImmediate { data: [0; 4] },
        length: 11,
        prepare: |peer| peer.receive(20, 0, 10),
        status: WcStatus::RemoteInvalidRequest,
        error: WireError::UntaggedTooLong,
        receive: Some(WcStatus::LocalLength),
    },
    Case {
        name: "receive without memory",
        operation: |_| Operation::Send { invalidate: None },
        length: 10,
        prepare: |peer| {
            let sge = Sge { token: peer.token ^ 0x100, ..peer.sge(0, 10) };
            peer.adapter.post(|rnic| rnic.post_receive(peer.qp, 20, &[sge])).unwrap();
        },
        status: WcStatus::RemoteOperation,
        error: WireError::DdpLocalCatastrophic,
        receive: Some(WcStatus::LocalProtection),
    },
    Case {
        name: "invalidation of a token that peers may not invalidate",
        operation: |peer| Operation::Send { invalidate: Some(Stag(peer.token)) },
        length: 10,
        prepare: |peer| peer.receive(20, 0, 10),
        status: WcStatus::RemoteAccess,
        error: WireError::ProtectionCannotInvalidate,
        receive: Some(WcStatus::Flushed),
    },
];

// Each error fails the request that caused it, with the status that the peer has determined. Requests before it have
// succeeded; those after it are flushed. Also while the requests are in one pass of the peer, and with a Read among
// them.
#[test]
pub(super) fn failed_requests_have_exact_statuses() {
    for Case { name, operation, length, prepare, status, error, receive } in CASES {
        for seed in 0..4 {
            let mut bench = Bench::new(20 + seed);
            bench.is_whole = seed % 2 == 0;
            let (active, passive) = connected(&mut bench);
            prepare(&passive);
            // Of another right: an empty request needs none.
            active.write(1, (0, 0), passive.remote(0));
            active.read(2, (0, 0), passive.remote(0));
            let sge = [active.sge(100, length)];
            active.try_post(3, operation(&passive), &sge, WrFlags::NONE).unwrap();
            active.send(4, 0, 10);
            active.read(5, (0, 0), passive.remote(0));
            bench.settle();
            let found = active.poll();
            let outcomes: Vec<_> = found.iter().map(|it| (it.context, it.status)).collect();
            let (done, flushed) = (WcStatus::Success, WcStatus::Flushed);
            let expected = [(1, done), (2, done), (3, status), (4, flushed), (5, flushed)];
            assert_eq!(outcomes, expected, "{name}");
            assert_eq!(found[2].error, Some(error.number()), "{name}");
            assert_eq!(
                (active.state(), passive.state()),
                (QpState::Error, QpState::Error),
                "{name}"
            );
            let number = error.number();
            assert_eq!(active.ends.take(), [Some(EndReason::Terminated(number))], "{name}");
            assert_eq!(passive.ends.take(), [Some(EndReason::Detected(number))], "{name}");
            assert_eq!(WcStatus::of_violation(number), status, "{name}");
            let receives: Vec<_> = receive.into_iter().map(|status| (20, status)).collect();
            assert_eq!(passive.outcomes(), receives, "{name}");
        }
    }
}

// A request that fails at its own end sends nothing: the peer is lost, not in error.
#[test]
pub(super) fn local_failures_do_not_reach_the_peer() {
    for is_large in [false, true] {
        let mut bench = Bench::new(30);
        let (active, passive) = connected(&mut bench);
        passive.receive(21, 0, 10);
        active.write(1, (0, 10), passive.remote(0));
        let length = if is_large { 100_000 } else { 10 };
        let sge = Sge { token: active.token ^ 0x100, ..active.sge(0, length) };
        let send = Operation::Send { invalidate: None };
        active.try_post(2, send, &[sge], WrFlags::NONE).unwrap();
        active.send(3, 0, 10);
        bench.settle();
        let outcomes = active.outcomes();
        assert_eq!(outcomes[1..], [(2, WcStatus::LocalProtection), (3, WcStatus::Flushed)]);
        assert_eq!((active.state(), passive.state()), (QpState::Error, QpState::Lost));
        assert_eq!(passive.outcomes(), []);
        assert_eq!(passive.ends.take(), [None]);
        assert_eq!(bench.connections(), 0);
    }
}

// A Read beyond the peer's limit of 0 is sent, and fails there.
#[test]
pub(super) fn reads_of_a_peer_without_reads() {
    let mut bench = Bench::new(31);
    let (mut active, mut passive) = (End::new(&bench, 0), End::new(&bench, 1));
    passive.limits = ReadLimit::default();
    let server = bench.server;
    connect_at(&mut bench, &mut active, &mut passive, server);
    active.read(1, (0, 10), passive.remote(0));
    bench.settle();
    assert_eq!(active.outcomes(), [(1, WcStatus::RemoteInvalidRequest)]);
    assert_eq!(passive.state(), QpState::Error);
}

// The status counts even if the Terminate after it is lost.
#[test]
fn status_without_terminate() {
    let mut bench = Bench::new(32);
    let (active, passive) = connected(&mut bench);
    active.write(1, (0, 10), passive.remote(0));
    active.write(2, (0, 10), Remote::new(0, 0));
    bench.drops_terminates = true;
    bench.settle();
    assert_eq!(active.outcomes(), [(1, WcStatus::Success), (2, WcStatus::RemoteAccess)]);
    assert_eq!(active.state(), QpState::Error);
}
