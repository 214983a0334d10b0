//! Device of the process: its adapter, address translation and bound addresses.
//!
//! The first call that requires the device starts it; it belongs to the process of that call. A fork leaves the child
//! without the adapter's thread, and with sockets that belong to the parent. So each generation of processes has a
//! device of its own: objects that were created before the fork return `ENODEV` in the child, and the child's first
//! call starts another device, as programs expect that fork before they open anything.
//!
//! On kernel sockets, connections end with their process: the kernel resets those that are open, and sends the FIN of
//! those that were closed. A node ends with its process too: [`Device::finish`] waits for outstanding FINs, and the
//! launcher resets the remaining connections ([`flue_adapter::launched`]). A node belongs to one process: in others,
//! children included, the first call returns `EBUSY`.

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
    AdapterOptions, Error, NodeOptions, OpenAdapter, PortRange, SocketsOptions, TransportOptions,
    address_map::{AddressMap, View},
};
use offload_engine::{
    address::LocalAddress,
    descriptor::{self, Guarded, move_to_high_number},
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
    identity::Identity,
    process::{GENERATIONS_MAX, generation},
    sync::lock,
};

/// Ports of a node for identifiers that bind to port 0. They are disjoint from the ephemeral ports of its host stack.
const PORTS: RangeInclusive<u16> = 32_768..=49_151;
/// Maximum time for which an exiting program waits for outstanding FINs of a node: longer than the minimum
/// retransmission timeout, 200 ms.
const LINGER_LIMIT: Duration = Duration::from_millis(500);

/// Locks of the start of each device: a second thread waits, because two adapters would share one capture file.
static STARTS: [Mutex<()>; GENERATIONS_MAX] = [const { Mutex::new(()) }; GENERATIONS_MAX];

/// Devices by generation. A child never reads the slot of its parent while it may be partly initialized.
static DEVICES: [OnceLock<Device>; GENERATIONS_MAX] = [const { OnceLock::new() }; GENERATIONS_MAX];

/// Device of a process. It dereferences to its adapter.
#[derive(Debug)]
pub struct Device {
    adapter: Adapter,
    addresses: Addresses,
    map: AddressMap,
    /// Scope reported to the program for link-local addresses without one: those of a node.
    scope: u32,
    limits: Limits,
    rfc7306: bool,
    generation: usize,
    /// Addresses of bound identifiers. True if the identifier allows others to share it.
    bound: Mutex<Vec<(LocalAddress, bool)>>,
    /// Process, for its children. `None`: the kernel does not support pidfds.
    process: Option<Guarded<OwnedFd>>,
    /// Number of listening identifiers.
    listening: AtomicUsize,
    identity: &'static Identity,
    rendezvous_ports: Option<PortRange>,
}

/// Device of an object. The child of a fork may take the object over; its device is then that of the child.
#[derive(Debug)]
pub(crate) struct OwnerDevice(AtomicUsize);

impl OwnerDevice {
    pub(crate) const fn of(device: &'static Device) -> Self {
        Self(AtomicUsize::new(device.generation))
    }

    pub(crate) fn device(&self) -> &'static Device {
        let device = DEVICES.get(self.0.load(Ordering::Relaxed)).and_then(OnceLock::get);
        device.expect("the device of an object is started")
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

/// Opens the adapter. A capture that cannot be created is logged, and does not prevent it.
fn open(options: &mut AdapterOptions, config: Config) -> Result<OpenAdapter, Error> {
    let error = match options.open(config.clone()) {
        Err(error) => error,
        opened => return opened,
    };
    match &mut options.transport {
        TransportOptions::Sockets(SocketsOptions { pcap: pcap @ Some(_), .. }) => *pcap = None,
        _ => return Err(error),
    }
    tracing::error!("{error}");
    options.open(config)
}

impl Device {
    /// Returns the device of this process, and starts it at the first call. `options` returns the options, the
    /// defaults of the program for those without a value, and the identity.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`, `EAGAIN`: no descriptor, memory or thread available. `ENODEV`: too many
    /// generations, or the node cannot be started; the log has the cause. `EBUSY`: in use by another process.
    pub fn get(
        options: impl FnOnce() -> (AdapterOptions, Config, &'static Identity),
    ) -> Result<&'static Self, Errno> {
        let generation = generation();
        let place = DEVICES.get(generation).ok_or(Errno::NODEV)?;
        if let Some(device) = place.get() {
            return Ok(device);
        }
        let _starting = lock(&STARTS[generation]);
        if let Some(device) = place.get() {
            return Ok(device);
        }
        let (options, config, identity) = options();
        let device = Self::start(options, config, identity, generation)?;
        Ok(place.get_or_init(|| device))
    }

    /// Returns the device of this process if it is started.
    pub fn started() -> Option<&'static Self> {
        DEVICES.get(generation())?.get()
    }

    /// Returns the devices of the processes that this one descends from, the parent's first.
    pub fn inherited() -> impl Iterator<Item = &'static Self> {
        DEVICES[..generation().min(GENERATIONS_MAX)].iter().rev().filter_map(OnceLock::get)
    }

    /// Waits for the exit of the process of this device, for at most `timeout`. Returns true if it has exited.
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

    /// Returns the number of listening identifiers.
    pub fn listening(&self) -> usize {
        self.listening.load(Ordering::Relaxed)
    }

    pub(crate) fn count_listening(&self, by: isize) {
        self.listening.fetch_add(by as usize, Ordering::Relaxed);
    }

    fn start(
        options: AdapterOptions,
        config: Config,
        identity: &'static Identity,
        generation: usize,
    ) -> Result<Self, Errno> {
        descriptor::watch()?;
        // Verbs have no half-closed connections, so a peer's FIN closes the connection. A program may listen again on
        // an address that accepted connections still use.
        let config = Config { flush_on_peer_close: true, exclusive_endpoints: false, ..config };
        let mut options = options.completed().map_err(|error| errno(None, &error))?;
        let opened = open(&mut options, config);
        let opened = opened.map_err(|error| errno(options.transport.node(), &error))?;
        let adapter = opened.first().clone();
        let Config { limits, rfc7306, .. } = opened.config;
        let AdapterOptions { transport, map, rendezvous_ports, .. } = options;
        let node = transport.node().cloned().map(Box::new);
        let addresses = node.map_or(Addresses::Machine, Addresses::Node);
        let scope = addresses.scope();
        let process = pidfd_open(getpid(), PidfdFlags::empty())
            .map(move_to_high_number)
            .map(Guarded::from)
            .ok();
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
            identity,
            rendezvous_ports,
        })
    }

    /// Checks that the device belongs to this process.
    ///
    /// # Errors
    /// `ENODEV`: it belongs to another process.
    #[inline]
    pub fn check(&self) -> Result<(), Errno> {
        if self.generation != generation() {
            return Err(Errno::NODEV);
        }
        Ok(())
    }

    /// Returns the limits of objects and requests.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns true if atomics and immediate data (RFC 7306) are enabled.
    pub const fn has_extensions(&self) -> bool {
        self.rfc7306
    }

    /// Returns the ports of listeners for queue pairs that the program connects; `None`: any.
    pub(crate) const fn rendezvous_ports(&self) -> Option<PortRange> {
        self.rendezvous_ports
    }

    /// Returns the identity.
    pub const fn identity(&self) -> &'static Identity {
        self.identity
    }

    /// Returns the generation of its process.
    pub(crate) const fn generation(&self) -> usize {
        self.generation
    }

    /// Returns the adapter.
    pub const fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    /// Returns the addresses that its connections can have.
    pub const fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Completes outgoing FINs before the exit of the process
    /// ([`Driver::finish`](rdma_over_tcp::adapter::Driver::finish)).
    pub fn finish(&self) {
        self.adapter.finish(LINGER_LIMIT);
    }

    /// Translates an address of the program to that of the adapter, and returns the program's view of it. On a node,
    /// which has one link, the scope is removed.
    pub(crate) fn translate(&self, given: SocketAddr) -> (SocketAddr, View) {
        let (address, view) = self.map.translate(given);
        (self.addresses.of_adapter(address), view)
    }

    /// Translates an address of the adapter to the one that is reported to the program.
    pub(crate) fn shown(&self, address: SocketAddr, view: View) -> SocketAddr {
        address::with_scope(self.map.shown(address, view), self.scope)
    }

    /// Reserves a port without listening ([`Addresses::reserve`]), and records an identifier as bound to it.
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

    /// Logs the cause of a failed bind or listen, unless another identifier is bound to the address. `is_bound`: true
    /// if the identifier itself is recorded as bound.
    pub(crate) fn explain(&self, error: Errno, at: LocalAddress, is_bound: bool) {
        if error != Errno::ADDRINUSE {
            return;
        }
        let noted = lock(&self.bound).iter().filter(|(other, _)| other.overlaps(&at)).count();
        if noted == usize::from(is_bound) {
            self.addresses.log_port_in_use(at.address);
        }
    }

    /// Records an identifier as bound to `address`.
    ///
    /// # Errors
    /// `EADDRINUSE`: another identifier is bound to it, and one of the two does not allow sharing.
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

#[cfg(test)]
mod tests {
    use std::{env, process};

    use super::*;

    // A program must not fail because its capture cannot be created.
    #[test]
    fn adapter_opens_without_a_capture_that_cannot_be_created() {
        let absent = env::temp_dir().join(format!("flue-absent-{}/pcap", process::id()));
        let sockets = SocketsOptions { pcap: Some(absent), seed: None };
        let transport = TransportOptions::Sockets(sockets);
        let mut options = AdapterOptions { transport, ..AdapterOptions::default() };
        assert!(options.open(Config::default()).is_err());
        assert_eq!(open(&mut options, Config::default()).unwrap().adapters.len(), 1);
        assert_eq!(options, AdapterOptions::default());
    }
}
