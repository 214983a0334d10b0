//! Ends of connections in either stack, and of connections that change stacks while a FIN is in flight.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use host_stack::{
    node::Core,
    socket::{OffloadPolicy, Request},
    stream::OffloadState,
};
use offload_engine::{
    chimney::client::OffloadHandle,
    link::Impairments,
    time::{Duration, Instant},
};
use oorandom::Rand64;
use rdma_over_tcp::{
    mpa::startup::{RtrKind, RtrSet},
    ndk::{AdapterConfig, Connector, DisconnectReason, KeepAlive, NtStatus},
};

use crate::{
    bench::Bench,
    foreign::{CallbackResults, Side, connect},
    plan::Plan,
};

/// One-way delay of the link.
const DELAY: Duration = Duration::from_millis(50);
/// Longer than a round trip and a delayed acknowledgment, shorter than any timeout or TIME-WAIT.
const SOON: Duration = Duration::from_millis(300);

/// Two connected queue pairs on a lossless link.
struct Fixture {
    bench: Bench,
    sides: [Side; 2],
    connectors: [Connector; 2],
    /// Reason of the accepting end's disconnect event, after it was received.
    end_reason: Arc<OnceLock<u32>>,
}

impl Fixture {
    fn new(policy: OffloadPolicy) -> Self {
        Self::with(policy, |_| {})
    }

    /// Creates a scene with configured adapters.
    fn with(policy: OffloadPolicy, configure: impl Fn(&mut AdapterConfig)) -> Self {
        let mut plan = Plan::with(&mut Rand64::new(7), false);
        plan.adapters.iter_mut().for_each(configure);
        plan.adapters.iter_mut().for_each(|adapter| adapter.rtr = RtrSet::only(RtrKind::Write));
        plan.impairments = [(); 2].map(|()| Impairments { delay: DELAY, ..Impairments::default() });
        plan.policies = [policy; 2];
        let mut bench = Bench::new(&plan, [1, 2]);
        let sides = [0, 1].map(|at| Side::new(&bench.adapters[at]));
        let remote = SocketAddr::new(plan.addresses[1], 7000);
        let end_reason = Arc::<OnceLock<u32>>::default();
        let reason_slot = end_reason.clone();
        let event = Box::new(move |reason| reason_slot.set(reason).unwrap());
        let connectors = connect(&mut bench, [&sides[0], &sides[1]], remote, Some(event));
        let mut fixture = Self { bench, sides, connectors, end_reason };
        fixture.settle();
        fixture
    }

    /// Runs until no work is left at the current time.
    fn settle(&mut self) {
        let now = self.bench.pair.now;
        let _ = self.bench.pair.run(now, |_| None::<()>);
    }

    /// Runs until no data is in flight.
    fn rest(&mut self) {
        let quiet = self.bench.pair.now + Duration::from_secs(1);
        let _ = self.bench.pair.run(quiet, |_| None::<()>);
        self.settle();
    }

    /// Runs the second node until `limit`, while the first one is dead and the frames it has sent are lost. Returns the
    /// time of its consumer's disconnect event.
    fn run_survivor(&mut self, limit: Instant) -> Option<Instant> {
        let pair = &mut self.bench.pair;
        while pair.now < limit {
            while pair.b.poll(pair.now).unwrap() || pair.b.has_input() {}
            let mut callbacks = Vec::new();
            pair.b.clients.take_callbacks(&mut callbacks);
            callbacks.into_iter().for_each(|callback| callback());
            if self.end_reason.get().is_some() {
                return Some(pair.now);
            }
            pair.now = pair.b.poll_at(pair.now).map_or(limit, |at| at.max(pair.now));
        }
        None
    }

    /// Stack of the first node's connection.
    fn place(&mut self) -> Option<(OffloadHandle, OffloadState)> {
        let (reply, rows) = crossbeam_channel::bounded(1);
        self.core().request(Request::List { only: None, reply });
        self.settle();
        let rows = rows.recv().unwrap();
        rows.iter().find(|row| row.remote.is_some()).map(|row| (row.handle, row.offload))
    }

    const fn core(&self) -> &Core {
        &self.bench.pair.a
    }

    fn disconnect(&mut self, side: usize) -> CallbackResults {
        let results = CallbackResults::default();
        assert_eq!(self.connectors[side].disconnect(results.callback()), NtStatus::PENDING);
        self.settle();
        results
    }

    /// Runs until the callback; returns its time.
    fn until(&mut self, results: &CallbackResults) -> Instant {
        self.bench.run(|| results.is_done()).unwrap();
        assert_eq!(results.take(), Some(NtStatus::SUCCESS));
        self.bench.pair.now
    }

    /// Disconnects both ends and asserts that nothing is left.
    fn close(mut self) {
        let results = self.disconnect(1);
        self.until(&results);
        self.bench.run_until_empty().unwrap();
    }
}

// NDK-DISC-5: a disconnect completes when the peer has acknowledged all data and the FIN: no sooner, even if the peer's
// consumer does not disconnect. The stack that sent the FIN need not be the one that receives the acknowledgment.
#[test]
fn a_disconnect_ends_with_its_acknowledgment() {
    for (policy, moves_to) in [
        (OffloadPolicy::Always, None),
        (OffloadPolicy::Never, None),
        (OffloadPolicy::Always, Some(OffloadState::InHost)),
        (OffloadPolicy::Never, Some(OffloadState::Offloaded)),
    ] {
        let mut fixture = Fixture::new(policy);
        let begun = fixture.bench.pair.now;
        let results = fixture.disconnect(0);
        let (handle, from) = fixture.place().unwrap();
        assert_eq!(from == OffloadState::InHost, policy == OffloadPolicy::Never);
        match moves_to {
            Some(OffloadState::InHost) => fixture.core().request(Request::Upload { handle }),
            Some(_) => fixture.core().request(Request::Offload { handle }),
            None => {}
        }
        fixture.settle();
        let place = fixture.place().unwrap().1;
        assert_eq!((fixture.bench.pair.now, place), (begun, moves_to.unwrap_or(from)));
        let took = fixture.until(&results) - begun;
        assert!((2 * DELAY..SOON).contains(&took), "{policy:?}, {moves_to:?}: {took:?}");
        assert!(fixture.end_reason.get().is_some(), "{policy:?}: no event for the FIN");
        fixture.close();
    }
}

// NDK-LIFE-11: the close of a queue pair resets its connection.
#[test]
fn closed_queue_pair_resets_its_connection_in_either_stack() {
    for policy in [OffloadPolicy::Always, OffloadPolicy::Never] {
        let mut fixture = Fixture::new(policy);
        fixture.sides[1].qp.receive(5, &[]).unwrap();
        let begun = fixture.bench.pair.now;
        assert_eq!(fixture.sides[0].qp.close(|| {}), NtStatus::PENDING);
        let Fixture { bench, sides: [_, peer], .. } = &mut fixture;
        bench.run(|| peer.outcome(5).is_some()).unwrap();
        assert_eq!(peer.outcome(5), Some(NtStatus::CANCELLED));
        let took = bench.pair.now - begun;
        assert!((DELAY..SOON).contains(&took), "{policy:?}: {took:?}");
        bench.run_until_empty().unwrap();
        assert!(bench.pair.now - begun < SOON, "{policy:?}: waited after an RST");
    }
}

// RFC 9293 §3.8.4, NDK-DISC-7: a peer that failed silently is detected on an idle connection, within the limit.
#[test]
fn dead_peer_is_detected() {
    let fast =
        KeepAlive { idle: Duration::from_secs(2), interval: Duration::from_secs(2), probes: 4 };
    let default = AdapterConfig::default().keep_alive.unwrap();
    for policy in [OffloadPolicy::Always, OffloadPolicy::Never] {
        for keep_alive in [default, fast] {
            let mut fixture = Fixture::with(policy, |it| it.keep_alive = Some(keep_alive));
            fixture.sides[1].receive(5, 64);
            fixture.rest();
            let begun = fixture.bench.pair.now;
            let ended = fixture
                .run_survivor(begun + 2 * keep_alive.limit())
                .unwrap_or_else(|| panic!("{policy:?}, {keep_alive:?}: connection not ended"));
            let took = ended - begun;
            // The last segment of the peer arrived shortly before.
            let limits = keep_alive.limit() - SOON..=keep_alive.limit();
            assert!(limits.contains(&took), "{policy:?}: {took:?}");
            assert_eq!(fixture.end_reason.get(), Some(&DisconnectReason::NO_ANSWER.0));
            assert_eq!(fixture.sides[1].outcome(5), Some(NtStatus::CANCELLED));
            assert!(!fixture.sides[1].qp.is_connected());
        }
        let mut fixture = Fixture::with(policy, |it| it.keep_alive = None);
        fixture.rest();
        let begun = fixture.bench.pair.now;
        assert_eq!(fixture.run_survivor(begun + 100 * default.limit()), None, "{policy:?}");
    }
}

// Answered probes do not end the connection.
#[test]
fn idle_peer_stays_connected() {
    for policy in [OffloadPolicy::Always, OffloadPolicy::Never] {
        let mut fixture = Fixture::new(policy);
        let until = fixture.bench.pair.now + Duration::from_secs(3600);
        let _ = fixture.bench.pair.run(until, |_| None::<()>);
        assert!(
            until.saturating_since(fixture.bench.pair.now) < Duration::from_secs(60),
            "no keep-alive probe sent"
        );
        assert!(fixture.sides.iter().all(|side| side.qp.is_connected()));
        assert_eq!(fixture.end_reason.get(), None);
    }
}
