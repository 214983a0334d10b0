//! The bench on the kernel's TCP over loopback, in virtual time. It runs until no data is in flight.

use std::{
    boxed::Box,
    cell::Cell,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU32, Ordering},
    },
    thread::yield_now,
    time::Duration,
    vec::Vec,
};

use offload_engine::{runtime::Passive, time::Instant};

use crate::{
    ndk::{AdapterConfig, Driver},
    rnic::Rnic,
    transport::SocketRnic,
};

/// Timeout of events that should occur immediately; reached only in a failure.
const LIMIT: Duration = Duration::from_secs(60);
/// Number of passes within which an adapter polls all its sockets at least once.
const PASSES: u32 = 20;

std::thread_local! {
    static IS_CHOSEN: Cell<bool> = const { Cell::new(false) };
}

/// Runs a test whose benches are on kernel sockets.
pub(super) fn run(test: fn()) {
    IS_CHOSEN.set(true);
    test();
    IS_CHOSEN.set(false);
}

/// True if benches are on kernel sockets.
pub(super) fn is_chosen() -> bool {
    IS_CHOSEN.get()
}

/// Returns a loopback address that only this bench uses.
pub(super) fn server() -> SocketAddr {
    static COUNT: AtomicU32 = AtomicU32::new(1);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let [.., high, low] = std::process::id().to_be_bytes();
    let [.., next, last] = count.to_be_bytes();
    (Ipv4Addr::new(127, 1 + (high ^ next) % 254, low, last), 7000).into()
}

/// Adapter on kernel sockets that only the test polls.
pub(super) struct PolledSockets {
    core: Mutex<SocketRnic>,
    now: Mutex<Instant>,
}

impl PolledSockets {
    pub(super) fn new(config: AdapterConfig) -> Self {
        let core = Mutex::new(SocketRnic::new(config, Box::new(|| {})).unwrap());
        Self { core, now: Mutex::new(Instant::ZERO) }
    }

    fn core(&self) -> MutexGuard<'_, SocketRnic> {
        self.core.lock().unwrap()
    }

    fn now(&self) -> Instant {
        *self.now.lock().unwrap()
    }

    pub(super) fn set_now(&self, now: Instant) {
        *self.now.lock().unwrap() = now;
    }

    /// Time of the next poll without an event.
    pub(super) fn poll_at(&self) -> Option<Instant> {
        let now = self.now();
        self.core().poll_at(now)
    }

    /// Polls the sockets once, and runs the callbacks. Returns true if there was work.
    pub(super) fn poll(&self) -> bool {
        let now = self.now();
        let mut callbacks = Vec::new();
        let mut core = self.core();
        let worked = core.poll(now).unwrap();
        core.take_callbacks(&mut callbacks);
        drop(core);
        let called = !callbacks.is_empty();
        callbacks.into_iter().for_each(|callback| callback());
        worked | called
    }

    /// Performs the effects of a call, as for a post that does not wait. Returns true if a poll has more work.
    pub(super) fn settle(&self) -> bool {
        let now = self.now();
        let mut core = self.core();
        core.settle(now);
        core.has_input()
    }

    pub(super) fn poll_until<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        let deadline = std::time::Instant::now() + LIMIT;
        loop {
            self.poll();
            if let Some(found) = look() {
                return found;
            }
            assert!(std::time::Instant::now() < deadline, "not within {LIMIT:?}");
            yield_now();
        }
    }

    /// Returns the number of open or opening connections.
    pub(super) fn connections(&self) -> usize {
        self.core().rows().iter().filter(|row| row.remote.is_some()).count()
    }
}

impl Driver for PolledSockets {
    fn enter(&self, work: &mut dyn FnMut(&mut Rnic, Instant)) {
        let now = self.now();
        work(self.core().rnic(), now);
    }
}

/// True if two adapters have no work. Not each pass polls all sockets.
fn are_idle(nodes: [&PolledSockets; 2]) -> bool {
    (0..PASSES).all(|_| nodes.map(PolledSockets::poll) == [false; 2])
}

/// Runs two adapters until they have no work, and the kernel has no data to deliver.
pub(super) fn settle(nodes: [&PolledSockets; 2]) {
    let deadline = std::time::Instant::now() + LIMIT;
    loop {
        // The second check covers data that arrived after the first.
        let are_at_rest = || nodes.iter().all(|node| node.core().is_quiescent());
        if are_idle(nodes) && are_at_rest() && are_idle(nodes) {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "the kernel is never idle");
        yield_now();
    }
}
