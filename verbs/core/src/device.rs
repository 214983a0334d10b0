//! Device of the process: its adapter, address translation and bound addresses.
//!
//! The first call that requires the device starts it; it belongs to the process of that call. A fork leaves the child
//! without the adapter's thread, and with sockets that belong to the parent. So each generation of processes has a
//! device of its own: objects that were created before the fork return `ENODEV` in the child, and the child's first
//! call starts another device, as programs expect that fork before they open anything.
//!
//! On kernel sockets connections end with their process: the kernel resets those that were not closed in order, and
//! sends the FIN of those that were. A node ends with its process too: [`Device::finish`] gives it time for what is on
//! its way, and what is left then its launcher resets ([`flue_adapter::launched`]). A node belongs to one process: in
//! others, children included, the first call answers `EBUSY`.

use std::{
    net::SocketAddr,
    ops::{Deref, RangeInclusive},
    os::fd::OwnedFd,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use flue_adapter::{
    AdapterOptions, Error, NodeOptions,
    address_map::{AddressMap, View},
};
use offload_engine::{
    address::LocalAddress,
    descriptor::{self, Guarded, moved_up},
    time::Duration,
};
use rdma_over_tcp::{
    adapter::Adapter,
    rnic::{Config, Limits},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{PidfdFlags, getpid, pidfd_open},
};

use crate::{
    address::{self, Addresses},
    errno::Errno,
    process::{GENERATIONS_MAX, generation},
    sync::lock,
};

/// Ports of a node that identifiers get which ask for any: not those that its host stack gives to connections.
const PORTS: RangeInclusive<u16> = 32_768..=49_151;
/// How long a program that ends waits for FINs that are on their way on a node; longer than the shortest
/// retransmission time-out, 200 ms.
const LINGER_LIMIT: Duration = Duration::from_millis(500);

/// A place for each generation: a child may find its parent's half-made, and does not look at it.
static DEVICES: [OnceLock<Device>; GENERATIONS_MAX] = [const { OnceLock::new() }; GENERATIONS_MAX];

/// The adapter of a process, with what verbs add to it. It dereferences to the adapter.
#[derive(Debug)]
pub struct Device {
    adapter: Adapter,
    addresses: Addresses,
    map: AddressMap,
    /// Scope that the program is shown of link-local addresses that have none: those of a node.
    scope: u32,
    limits: Limits,
    rfc7306: bool,
    generation: usize,
    /// Addresses that identifiers are bound to, and whether they are to be shared.
    bound: Mutex<Vec<(LocalAddress, bool)>>,
    /// The process, for its children. `None`: the kernel has no such descriptors.
    process: Option<Guarded<OwnedFd>>,
    /// Identifiers that listen.
    listening: AtomicUsize,
}

/// Adapter of an object that the child of a fork can take over: then it is that of the child.
#[derive(Debug)]
pub(crate) struct OwnerDevice(AtomicUsize);

impl OwnerDevice {
    pub(crate) const fn of(device: &'static Device) -> Self {
        Self(AtomicUsize::new(device.generation))
    }

    pub(crate) fn device(&self) -> &'static Device {
        let device = DEVICES.get(self.0.load(Ordering::Relaxed)).and_then(OnceLock::get);
        device.expect("an object is made by an adapter that was started")
    }

    pub(crate) fn is_own(&self) -> bool {
        self.0.load(Ordering::Relaxed) == generation()
    }

    pub(crate) fn change(&self, device: &'static Device) {
        self.0.store(device.generation, Ordering::Relaxed);
    }
}

/// Returns the number of an error, and logs what it does not explain.
fn errno(node: Option<&NodeOptions>, error: &Error) -> Errno {
    match error {
        Error::Busy(_) => Errno::BUSY,
        Error::Sockets { errno, .. } => errno.map_or(Errno::IO, Errno),
        error => {
            match node {
                Some(node) => tracing::error!("TAP {}: {error}", node.tap),
                None => tracing::error!("{error}"),
            }
            match error {
                Error::Descriptors(_) => Errno::MFILE,
                _ => Errno::NODEV,
            }
        }
    }
}

impl Device {
    /// The adapter of this process. `options` returns its options, and the defaults of the program for what these do
    /// not have, if it has not been started.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`, `EAGAIN`: no descriptor, memory or thread is left. `ENODEV`: too many generations,
    /// or the node cannot be started, which the log explains. `EBUSY`: another process has the node.
    pub fn get(options: impl FnOnce() -> (AdapterOptions, Config)) -> Result<&'static Self, Errno> {
        let generation = generation();
        let place = DEVICES.get(generation).ok_or(Errno::NODEV)?;
        if let Some(device) = place.get() {
            return Ok(device);
        }
        let (options, config) = options();
        let device = Self::start(options, config, generation)?;
        // Of two that were started at once one is dropped, before anything was made on it.
        Ok(place.get_or_init(|| device))
    }

    /// The adapter of this process, if it has been started.
    pub fn started() -> Option<&'static Self> {
        DEVICES.get(generation())?.get()
    }

    /// Adapters of the processes that this one was forked from, the nearest first.
    pub fn inherited() -> impl Iterator<Item = &'static Self> {
        DEVICES[..generation().min(GENERATIONS_MAX)].iter().rev().filter_map(OnceLock::get)
    }

    /// Waits until the process of this adapter has ended, for at most `timeout`. Returns whether it has.
    pub fn wait_for_end_of_process(&self, timeout: Option<Duration>) -> bool {
        let Some(process) = &self.process else { return false };
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        loop {
            match poll(&mut [PollFd::new(process, PollFlags::IN)], timeout.as_ref()) {
                Ok(count) => return count > 0,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// Identifiers of this adapter that listen.
    pub fn listening(&self) -> usize {
        self.listening.load(Ordering::Relaxed)
    }

    pub(crate) fn count_listening(&self, by: isize) {
        self.listening.fetch_add(by as usize, Ordering::Relaxed);
    }

    fn start(options: AdapterOptions, config: Config, generation: usize) -> Result<Self, Errno> {
        descriptor::watch()?;
        // A peer's FIN ends the connection: verbs know no half of one. A program may listen again while connections
        // live that were accepted there.
        let config = Config { flush_on_peer_close: true, exclusive_endpoints: false, ..config };
        let options = options.completed().map_err(|error| errno(None, &error))?;
        let config = options.configure(config);
        let (limits, rfc7306) = (config.limits, config.rfc7306);
        let opened =
            options.open(config).map_err(|error| errno(options.transport.node(), &error))?;
        let adapter = opened.first().clone();
        let AdapterOptions { transport, map, .. } = options;
        let node = transport.node().cloned().map(Box::new);
        let addresses = node.map_or(Addresses::Machine, Addresses::Node);
        let scope = addresses.scope();
        let process =
            pidfd_open(getpid(), PidfdFlags::empty()).map(moved_up).map(Guarded::from).ok();
        let (bound, listening) = (Mutex::default(), AtomicUsize::new(0));
        Ok(Self {
            adapter,
            addresses,
            map,
            scope,
            limits,
            rfc7306,
            generation,
            bound,
            process,
            listening,
        })
    }

    /// Whether the adapter can be used here and now.
    ///
    /// # Errors
    /// `ENODEV`: it is another process's.
    #[inline]
    pub fn check(&self) -> Result<(), Errno> {
        if self.generation != generation() {
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

    /// The adapter.
    pub const fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    /// Addresses of its connections.
    pub const fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Prepares for the exit of the process in order ([`Driver::finish`](rdma_over_tcp::adapter::Driver::finish)).
    pub fn finish(&self) {
        self.adapter.finish(LINGER_LIMIT);
    }

    /// Returns the address of the adapter that the program's address stands for, and the program's view of it. On a
    /// node, which has one link, a scope is dropped.
    pub(crate) fn translate(&self, given: SocketAddr) -> (SocketAddr, View) {
        let (address, view) = self.map.translate(given);
        (self.addresses.of_adapter(address), view)
    }

    /// Returns the address that the program is shown for one of the adapter.
    pub(crate) fn shown(&self, address: SocketAddr, view: View) -> SocketAddr {
        address::with_scope(self.map.shown(address, view), self.scope)
    }

    /// Takes a port without listening ([`Addresses::reserve`]), and notes that an identifier is bound to it.
    ///
    /// # Errors
    /// `EADDRINUSE`; `EADDRNOTAVAIL`; `EACCES`.
    pub(crate) fn reserve(
        &self,
        at: LocalAddress,
        is_shared: bool,
    ) -> Result<(Option<OwnedFd>, LocalAddress), Errno> {
        let reserved = self.addresses.reserve(at);
        let (reservation, mut local) =
            reserved.inspect_err(|error| self.explain(*error, at, false))?;
        if local.address.port() != 0 {
            self.bind(local, is_shared)?;
            return Ok((reservation, local));
        }
        let mut is_free = |port: u16| {
            local.address.set_port(port);
            self.bind(local, false).is_ok()
        };
        if PORTS.into_iter().any(&mut is_free) {
            Ok((None, local))
        } else {
            Err(Errno::ADDRNOTAVAIL)
        }
    }

    /// Logs the cause of a refused bind or listen, unless another identifier has the address. `is_bound`: the
    /// identifier itself is noted with it.
    pub(crate) fn explain(&self, error: Errno, at: LocalAddress, is_bound: bool) {
        if error != Errno::ADDRINUSE {
            return;
        }
        let noted = lock(&self.bound).iter().filter(|(other, _)| other.overlaps(&at)).count();
        if noted == usize::from(is_bound) {
            self.addresses.log_port_in_use(at.address);
        }
    }

    /// Notes that an identifier is bound to `address`.
    ///
    /// # Errors
    /// `EADDRINUSE`: another one is, and one of them does not share.
    pub(crate) fn bind(&self, address: LocalAddress, is_shared: bool) -> Result<(), Errno> {
        let mut bound = lock(&self.bound);
        let conflicts = |(other, other_is_shared): &(LocalAddress, bool)| {
            other.overlaps(&address) && !(is_shared && *other_is_shared)
        };
        if bound.iter().any(conflicts) {
            return Err(Errno::ADDRINUSE);
        }
        bound.push((address, is_shared));
        Ok(())
    }

    pub(crate) fn unbind(&self, address: LocalAddress) {
        let mut bound = lock(&self.bound);
        if let Some(at) = bound.iter().position(|(it, _)| *it == address) {
            bound.swap_remove(at);
        }
    }
}

impl Deref for Device {
    type Target = Adapter;

    #[inline]
    fn deref(&self) -> &Adapter {
        &self.adapter
    }
}
