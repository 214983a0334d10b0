//! The bench on the kernel's TCP over loopback, in virtual time: it runs until nothing is on its way.

use std::{
    boxed::Box,
    cell::Cell,
    fs,
    io::Read as _,
    net::{Ipv4Addr, SocketAddr},
    string::String,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU32, Ordering},
    },
    thread::yield_now,
    time::Duration,
    vec::Vec,
};

use host_stack::node::Passive;
use offload_engine::time::Instant;

use crate::{
    ndk::{AdapterConfig, CoreAccess},
    rnic::Rnic,
    transport::SocketRnic,
};

/// How long anything may take that should come at once: a failure's time.
const LIMIT: Duration = Duration::from_secs(60);
/// More passes than an adapter makes without a look at all sockets.
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

/// Returns whether benches are on kernel sockets.
pub(super) fn is_chosen() -> bool {
    IS_CHOSEN.get()
}

/// An address of loopback that is this bench's alone.
pub(super) fn server() -> SocketAddr {
    static COUNT: AtomicU32 = AtomicU32::new(1);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let [.., high, low] = std::process::id().to_be_bytes();
    let [.., next, last] = count.to_be_bytes();
    (Ipv4Addr::new(127, 1 + (high ^ next) % 254, low, last), 7000).into()
}

/// An adapter on kernel sockets that only the test polls.
pub(super) struct Polled {
    core: Mutex<SocketRnic>,
    now: Mutex<Instant>,
}

impl Polled {
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

    /// One pass over the sockets, and the callbacks. Returns whether there was anything to do.
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

    /// Connections that are open or opening.
    pub(super) fn connections(&self) -> usize {
        self.core().rows().iter().filter(|row| row.remote.is_some()).count()
    }
}

impl CoreAccess for Polled {
    fn enter(&self, work: &mut dyn FnMut(&mut Rnic, Instant)) {
        let now = self.now();
        work(self.core().rnic(), now);
    }
}

/// Returns whether two adapters have nothing to do. Not each pass looks at all sockets.
fn are_idle(nodes: [&Polled; 2]) -> bool {
    (0..PASSES).all(|_| nodes.map(Polled::poll) == [false; 2])
}

/// Runs two adapters until they have nothing to do, and the kernel nothing to bring.
pub(super) fn settle(nodes: [&Polled; 2], server: SocketAddr) {
    let deadline = std::time::Instant::now() + LIMIT;
    loop {
        // What came between the two looks is found by the second.
        if are_idle(nodes) {
            nodes.iter().for_each(|node| node.core().acknowledge());
            if is_at_rest(server) && are_idle(nodes) {
                return;
            }
        }
        assert!(std::time::Instant::now() < deadline, "the kernel never comes to rest");
        yield_now();
    }
}

/// Returns whether no connection to `server` has a byte, a handshake or a FIN on its way or unread: from the kernel's
/// own table (`/proc/net/tcp`, its columns local_address, rem_address, st, tx_queue:rx_queue).
fn is_at_rest(server: SocketAddr) -> bool {
    let SocketAddr::V4(server) = server else { panic!("the bench is on IPv4") };
    let address = u32::from_ne_bytes(server.ip().octets());
    let name: String = std::format!("{address:08X}:{:04X}", server.port());
    // Each read walks the kernel's table: few of them.
    let mut table = Vec::with_capacity(1 << 16);
    fs::File::open("/proc/net/tcp").unwrap().read_to_end(&mut table).unwrap();
    String::from_utf8(table).unwrap().lines().all(|line| {
        let mut columns = line.split_ascii_whitespace().skip(1);
        let (local, remote) = (columns.next(), columns.next());
        if local != Some(&name) && remote != Some(&name) {
            return true;
        }
        let (state, queues) = (columns.next().unwrap(), columns.next().unwrap());
        // TIME-WAIT and CLOSED have no queues of interest. SYN-SENT, SYN-RECEIVED, FIN-WAIT-1, LAST-ACK and CLOSING
        // wait for a segment.
        match state {
            "06" | "07" => true,
            "02" | "03" | "04" | "09" | "0B" | "0C" => false,
            _ => queues == "00000000:00000000",
        }
    })
}
