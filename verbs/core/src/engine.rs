//! The process's adapter: started by the first call that needs it, and bound to the process that has started it.
//!
//! A fork leaves the child without the adapter's thread, and with sockets that belong to the parent. So each generation
//! of processes has an adapter of its own: objects that were made before the fork answer `ENODEV` in the child, and the
//! child's first call starts another adapter, as programs expect that fork before they open anything.
//!
//! Connections end with their process: the kernel resets those that were not closed in order, and sends the FIN of
//! those that were.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hasher, RandomState},
    net::SocketAddr,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicU32, Ordering},
    },
};

use offload_engine::time::Instant;
use rdma_over_tcp::{
    access::{self, Access},
    rnic::{Config, Limits, Rnic, Urgency},
    transport::{Sockets, SocketsConfig},
};

use crate::{errno::Errno, latch::lock, qp::Qp};

/// Processes that descend from each other and each have an adapter, at most.
pub const GENERATIONS_MAX: usize = 64;

/// Forks so far, on the way to this process.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// A place for each generation: a child may find its parent's half-made, and does not look at it.
static ENGINES: [OnceLock<Engine>; GENERATIONS_MAX] = [const { OnceLock::new() }; GENERATIONS_MAX];

/// Has what was made before answer `ENODEV`: called in the child of a fork. It only counts.
pub fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Forks so far on the way to this process: what was made with another number is another process's. Below
/// [`GENERATIONS_MAX`] where there can be an adapter.
pub fn generation() -> usize {
    GENERATION.load(Ordering::Relaxed) as usize
}

/// How the adapter of this process is to be, before it is started.
#[derive(Debug, Default)]
pub struct Options {
    /// The adapter's configuration.
    pub adapter: Config,
    /// How the sockets' threads run.
    pub sockets: SocketsConfig,
}

/// The adapter of a process.
#[derive(Debug)]
pub struct Engine {
    sockets: Sockets,
    access: Access,
    limits: Limits,
    rfc7306: bool,
    generation: u32,
    /// Queue pairs by number: connection management may name one so.
    qps: Mutex<HashMap<u32, Weak<Qp>>>,
    /// Addresses that identifiers are bound to, and whether they are to be shared.
    bound: Mutex<Vec<(SocketAddr, bool)>>,
}

impl Engine {
    /// The adapter of this process; `options` says how it is to be if it has not been started.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`, `EAGAIN`: no descriptor, memory or thread is left. `ENODEV`: too many generations.
    pub fn get(options: impl FnOnce() -> Options) -> Result<&'static Self, Errno> {
        let generation = GENERATION.load(Ordering::Relaxed);
        let place = ENGINES.get(generation as usize).ok_or(Errno::NODEV)?;
        if let Some(engine) = place.get() {
            return Ok(engine);
        }
        let engine = Self::start(options(), generation)?;
        // Of two that were started at once one is dropped, before anything was made on it.
        Ok(place.get_or_init(|| engine))
    }

    fn start(options: Options, generation: u32) -> Result<Self, Errno> {
        let Options { adapter, sockets } = options;
        let random = || RandomState::new().build_hasher().finish();
        let seed = u128::from(random()) << 64 | u128::from(random());
        // A peer's FIN ends the connection: verbs know no half of one. A program may listen again while connections
        // live that were accepted there.
        let adapter =
            Config { seed, flush_on_peer_close: true, exclusive_endpoints: false, ..adapter };
        let (limits, rfc7306) = (adapter.limits, adapter.rfc7306);
        let (sockets, access) = access::open_sockets(sockets, adapter)?;
        Ok(Self {
            sockets,
            access,
            limits,
            rfc7306,
            generation,
            qps: Mutex::default(),
            bound: Mutex::default(),
        })
    }

    /// Whether the adapter can be used here and now.
    ///
    /// # Errors
    /// `ENODEV`: it is another process's.
    #[inline]
    pub fn check(&self) -> Result<(), Errno> {
        if self.generation != GENERATION.load(Ordering::Relaxed) {
            return Err(Errno::NODEV);
        }
        Ok(())
    }

    /// Limits of objects and requests.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Whether peers are taken to know atomics and immediate data (RFC 7306).
    pub const fn has_extensions(&self) -> bool {
        self.rfc7306
    }

    /// The sockets.
    pub const fn sockets(&self) -> &Sockets {
        &self.sockets
    }

    /// Calls the core. Callbacks may run on this thread before it returns: the caller holds no lock that they take.
    pub(crate) fn with<R>(&self, work: impl FnOnce(&mut Rnic, Instant) -> R) -> R {
        self.access.with(work)
    }

    /// Calls the core to post: what follows may wait as `work` says.
    #[inline]
    pub(crate) fn post<R>(&self, work: impl Fn(&mut Rnic) -> (R, Urgency)) -> R {
        self.access.post(work)
    }

    /// One pass over the sockets, for a consumer that polls.
    #[inline]
    pub(crate) fn progress(&self) {
        self.access.progress();
    }

    pub(crate) fn enter_qp(&self, qp: &Arc<Qp>) {
        lock(&self.qps).insert(qp.number(), Arc::downgrade(qp));
    }

    pub(crate) fn leave_qp(&self, number: u32) {
        lock(&self.qps).remove(&number);
    }

    /// The queue pair with this number.
    pub fn qp(&self, number: u32) -> Option<Arc<Qp>> {
        lock(&self.qps).get(&number)?.upgrade()
    }

    /// Notes that an identifier is bound to `address`.
    ///
    /// # Errors
    /// `EADDRINUSE`: another one is, and one of them does not share.
    pub(crate) fn bind(&self, address: SocketAddr, is_shared: bool) -> Result<(), Errno> {
        let mut bound = lock(&self.bound);
        let conflicts = |(other, other_is_shared): &(SocketAddr, bool)| {
            other.port() == address.port()
                && other.is_ipv4() == address.is_ipv4()
                && (other.ip() == address.ip()
                    || other.ip().is_unspecified()
                    || address.ip().is_unspecified())
                && !(is_shared && *other_is_shared)
        };
        if bound.iter().any(conflicts) {
            return Err(Errno::ADDRINUSE);
        }
        bound.push((address, is_shared));
        Ok(())
    }

    pub(crate) fn unbind(&self, address: SocketAddr) {
        let mut bound = lock(&self.bound);
        if let Some(at) = bound.iter().position(|(it, _)| *it == address) {
            bound.swap_remove(at);
        }
    }
}
