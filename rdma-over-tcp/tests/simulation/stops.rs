//! Node whose process is stopped while it connects: frames that arrive meanwhile precede expired time limits.

use std::net::SocketAddr;

use host_stack::socket::{ListenerId, OffloadPolicy};
use offload_engine::{
    chimney::client::OffloadHandle,
    runtime::Passive as _,
    time::{Duration, Instant},
};
use rdma_over_tcp::{
    mpa::startup::{PrivateData, ReadLimits, Responder, ResponderConfig, RtrKind, RtrSet},
    ndk::{NtStatus, ReadLimit},
};

use crate::{
    bench::Bench,
    foreign::{CallbackResults, Side},
    raw::{DELAY, Peer, bench, config},
};

const LIMITS: ReadLimit = ReadLimit { inbound: 4, outbound: 4 };
/// Longer than the limits of the TCP handshake and of the Reply.
const STOP: Duration = Duration::from_secs(31);
/// Longer than the lateness for which a limit is extended and the extension together; no divisor of the limits.
const LATE: Duration = Duration::from_millis(270);
/// Longer than the limits' extension.
const SOON: Duration = Duration::from_secs(1);

/// Phase of a connect in which the process is stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Its SYN is not answered yet.
    Syn,
    /// Its Request is not answered yet.
    Request,
    /// As above, but the process runs every [`LATE`] instead of a stop.
    Late,
}

/// Part of the node that runs first after the stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum First {
    /// A call of the consumer, which reads no frames.
    Call,
    /// The host stack, on its own thread.
    Host,
}

/// Runs the peer's node only.
fn stop(bench: &mut Bench) {
    let until = bench.pair.now + STOP;
    loop {
        let now = bench.pair.now;
        while bench.pair.a.poll(now).unwrap() {}
        match bench.pair.a.poll_at(now).filter(|at| *at < until) {
            Some(next) => bench.pair.now = next.max(now),
            None => break,
        }
    }
    bench.pair.now = until;
}

fn resume(bench: &mut Bench, first: First) {
    let now = bench.pair.now;
    match first {
        First::Call => bench.pair.b.settle(now),
        First::Host => bench.pair.b.host.as_mut().unwrap().poll(now),
    };
}

/// Accepts a connection, and returns the Reply to its Request.
fn accept(peer: &Peer, bench: &mut Bench, listener: ListenerId) -> (OffloadHandle, Vec<u8>) {
    let handle = peer.run(bench, |streams, _, _| streams.accept(listener));
    let request =
        peer.run(bench, |streams, connections, now| streams.receive(now, connections, handle));
    let rtr = RtrSet::only(RtrKind::Write);
    let responder = Responder::new(ResponderConfig { rtr, ..ResponderConfig::default() });
    let offer = responder.receive(&request).unwrap().unwrap();
    let (reply, _) = offer.accept(ReadLimits { ird: 4, ord: 4 }, PrivateData::default());
    (handle, reply.to_vec())
}

/// Connects with a stop in one phase. Returns the status, and the time from the end of the stop.
fn connect(
    policy: OffloadPolicy,
    (phase, first): (Phase, First),
    is_answered: bool,
) -> (NtStatus, Duration) {
    let (mut bench, plan) = bench(policy, config());
    let peer = Peer::new(&mut bench);
    let remote = SocketAddr::new(plan.addresses[0], 7000);
    let listener = peer.now(&mut bench, |streams, _, _| streams.listen(remote, 4));
    peer.run(&mut bench, |streams, _, _| streams.listening(listener)?.ok());
    let side = Side::new(&bench.adapters[1]);
    let connector = bench.adapters[1].create_connector().unwrap();
    let done = CallbackResults::default();
    let status = connector.connect(&side.qp, None, remote, LIMITS, &[], done.callback());
    assert_eq!(status, NtStatus::PENDING);
    let begun: Instant;
    match phase {
        Phase::Request => {
            let (handle, reply) = accept(&peer, &mut bench, listener);
            if is_answered {
                peer.send(&mut bench, handle, reply);
            }
            stop(&mut bench);
            begun = bench.pair.now;
            resume(&mut bench, first);
        }
        Phase::Late => {
            accept(&peer, &mut bench, listener);
            begun = bench.pair.now;
            while !done.is_done() && bench.pair.now < begun + STOP {
                bench.pair.now += LATE;
                resume(&mut bench, first);
                let now = bench.pair.now;
                while bench.pair.b.poll(now).unwrap() {}
                let mut callbacks = Vec::new();
                bench.pair.b.clients.take_callbacks(&mut callbacks);
                callbacks.into_iter().for_each(|callback| callback());
            }
        }
        Phase::Syn => {
            // Resolution of the address takes a round trip; the SYN is in flight afterwards.
            for _ in 0..3 {
                let now = bench.pair.now;
                while bench.pair.b.poll(now).unwrap() | bench.pair.a.poll(now).unwrap() {}
                bench.pair.now = now + DELAY;
            }
            stop(&mut bench);
            begun = bench.pair.now;
            resume(&mut bench, first);
            if is_answered {
                let (handle, reply) = accept(&peer, &mut bench, listener);
                peer.send(&mut bench, handle, reply);
            }
        }
    }
    peer.until(&mut bench, || done.is_done());
    (done.take().unwrap(), bench.pair.now - begun)
}

const POLICIES: [OffloadPolicy; 2] = [OffloadPolicy::Always, OffloadPolicy::Never];

#[test]
fn answers_that_arrived_while_stopped_precede_expired_limits() {
    for policy in POLICIES {
        for phase in [Phase::Syn, Phase::Request] {
            for first in [First::Call, First::Host] {
                let (status, took) = connect(policy, (phase, first), true);
                assert_eq!(status, NtStatus::SUCCESS, "{policy:?} {phase:?} {first:?}");
                assert!(took < SOON, "{policy:?} {phase:?} {first:?}: {took:?}");
            }
        }
    }
}

// The limit is extended once.
#[test]
fn limit_that_expired_while_stopped_ends_a_connect_without_an_answer() {
    for policy in POLICIES {
        for first in [First::Call, First::Host] {
            let (status, took) = connect(policy, (Phase::Request, first), false);
            assert_eq!(status, NtStatus::IO_TIMEOUT, "{policy:?} {first:?}");
            assert!(took < SOON, "{policy:?} {first:?}: {took:?}");
        }
    }
}

#[test]
fn limit_of_a_loop_that_is_always_late_expires() {
    for policy in POLICIES {
        for first in [First::Call, First::Host] {
            let (status, took) = connect(policy, (Phase::Late, first), false);
            assert_eq!(status, NtStatus::IO_TIMEOUT, "{policy:?} {first:?}");
            assert!(took < STOP, "{policy:?} {first:?}: {took:?}");
        }
    }
}
