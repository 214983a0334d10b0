//! Ends of connections in either stack, and of those that change stacks while a FIN is on its way.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
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
    ndk::{Connector, NtStatus},
};

use crate::{
    bench::Bench,
    foreign::{Side, Told, connect},
    plan::Plan,
};

/// One way.
const DELAY: Duration = Duration::from_millis(50);
/// More than a round trip and a delayed acknowledgement, less than any time-out or TIME-WAIT.
const SOON: Duration = Duration::from_millis(300);

/// Two connected queue pairs on a link that loses nothing.
struct Scene {
    bench: Bench,
    sides: [Side; 2],
    connectors: [Connector; 2],
    /// The accepting end has had its disconnect event.
    has_heard: Arc<AtomicBool>,
}

impl Scene {
    fn new(policy: OffloadPolicy) -> Self {
        let mut plan = Plan::with(&mut Rand64::new(7), false);
        plan.adapters.iter_mut().for_each(|adapter| adapter.rtr = RtrSet::only(RtrKind::Write));
        plan.impairments = [(); 2].map(|()| Impairments { delay: DELAY, ..Impairments::default() });
        plan.policies = [policy; 2];
        let mut bench = Bench::new(&plan, [1, 2]);
        let sides = [0, 1].map(|at| Side::new(&bench.adapters[at]));
        let remote = SocketAddr::new(plan.addresses[1], 7000);
        let has_heard = Arc::<AtomicBool>::default();
        let hears = has_heard.clone();
        let event = Box::new(move |_| hears.store(true, Ordering::Relaxed));
        let connectors = connect(&mut bench, [&sides[0], &sides[1]], remote, Some(event));
        let mut scene = Self { bench, sides, connectors, has_heard };
        scene.settle();
        scene
    }

    /// Runs until nothing is to be done at this time.
    fn settle(&mut self) {
        let now = self.bench.pair.now;
        let _ = self.bench.pair.run(now, |_| None::<()>);
    }

    /// Where the connection of the first node is.
    fn place(&mut self) -> Option<(OffloadHandle, OffloadState)> {
        let (reply, rows) = crossbeam_channel::bounded(1);
        self.core().request(Request::List { reply });
        self.settle();
        let rows = rows.recv().unwrap();
        rows.iter().find(|row| row.remote.is_some()).map(|row| (row.handle, row.offload))
    }

    const fn core(&self) -> &Core {
        &self.bench.pair.a
    }

    fn disconnect(&mut self, side: usize) -> Told {
        let told = Told::default();
        assert_eq!(self.connectors[side].disconnect(told.tells()), NtStatus::PENDING);
        self.settle();
        told
    }

    /// Runs until `told`; returns when.
    fn until(&mut self, told: &Told) -> Instant {
        self.bench.run(|| told.is_told()).unwrap();
        assert_eq!(told.take(), Some(NtStatus::SUCCESS));
        self.bench.pair.now
    }

    /// Both ends close; nothing is left.
    fn close(mut self) {
        let told = self.disconnect(1);
        self.until(&told);
        self.bench.run_until_empty().unwrap();
    }
}

// NDK-DISC-5: a disconnect is complete when the peer has acknowledged all, FIN included: not sooner, and whether or
// not the peer's consumer ends its side too. The stack that sent the FIN need not be the one that hears of this.
#[test]
fn a_disconnect_ends_with_its_acknowledgement() {
    for (policy, moves_to) in [
        (OffloadPolicy::Always, None),
        (OffloadPolicy::Never, None),
        (OffloadPolicy::Always, Some(OffloadState::InHost)),
        (OffloadPolicy::Never, Some(OffloadState::Offloaded)),
    ] {
        let mut scene = Scene::new(policy);
        let begun = scene.bench.pair.now;
        let told = scene.disconnect(0);
        let (handle, from) = scene.place().unwrap();
        assert_eq!(from == OffloadState::InHost, policy == OffloadPolicy::Never);
        match moves_to {
            Some(OffloadState::InHost) => scene.core().request(Request::Upload { handle }),
            Some(_) => scene.core().request(Request::Offload { handle }),
            None => {}
        }
        scene.settle();
        let place = scene.place().unwrap().1;
        assert_eq!((scene.bench.pair.now, place), (begun, moves_to.unwrap_or(from)));
        let took = scene.until(&told) - begun;
        assert!((2 * DELAY..SOON).contains(&took), "{policy:?}, {moves_to:?}: {took:?}");
        assert!(scene.has_heard.load(Ordering::Relaxed), "{policy:?}: the FIN is an event");
        scene.close();
    }
}

// NDK-LIFE-11: a queue pair that is closed takes its connection along, by an RST.
#[test]
fn a_closed_queue_pair_resets_its_connection_in_either_stack() {
    for policy in [OffloadPolicy::Always, OffloadPolicy::Never] {
        let mut scene = Scene::new(policy);
        scene.sides[1].qp.receive(5, &[]).unwrap();
        let begun = scene.bench.pair.now;
        assert_eq!(scene.sides[0].qp.close(|| {}), NtStatus::PENDING);
        let Scene { bench, sides: [_, peer], .. } = &mut scene;
        bench.run(|| peer.outcome(5).is_some()).unwrap();
        assert_eq!(peer.outcome(5), Some(NtStatus::CANCELLED));
        let took = bench.pair.now - begun;
        assert!((DELAY..SOON).contains(&took), "{policy:?}: {took:?}");
        bench.run_until_empty().unwrap();
        assert!(bench.pair.now - begun < SOON, "{policy:?}: nobody waits after an RST");
    }
}
