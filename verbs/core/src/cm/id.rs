//! Identifier: phases, addresses, listening, lifetime.

pub(super) mod channel;

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use flue_adapter::address_map::View;
use offload_engine::{
    address::{LocalAddress, source_for},
    descriptor::Guarded,
};
use rdma_over_tcp::{
    rnic::{ConnectorId, Key, ListenerConfig, ListenerId},
    transport::ListeningSocket,
};

use tracing::field::{DisplayValue, display};

use self::channel::{Event, EventChannel, EventKind};
use crate::{
    address,
    device::{Device, OwnerDevice},
    errno::Errno,
    event_queue::Acknowledgments,
    process::Registry,
    qp::Qp,
    sync::{OneShot, lock},
};

/// Identifiers of the process.
static IDS: Registry<Id> = Registry::new();

/// Returns the identifiers of the processes that this one descends from, without those that it has taken over.
pub(super) fn inherited() -> impl IntoIterator<Item = Arc<Id>> {
    IDS.inherited().into_iter().filter(|id| !id.owner.is_own())
}

/// Reports the failure of the device to the identifiers of this process.
pub(crate) fn remove_device() {
    IDS.members().iter().for_each(Id::remove_device);
}

/// Closes the connections of the identifiers of this process.
pub(crate) fn close_all() {
    for id in IDS.members() {
        let connector = id.lock().connector.take();
        if let Some(connector) = connector {
            id.close(Key::Connector(connector));
        }
    }
}

/// Default and maximum backlog of a listener, as in the CM of the kernel.
const BACKLOG: usize = 1024;

/// Port space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortSpace {
    /// TCP: connections.
    Tcp,
    /// Other port spaces, which an iWARP device does not support.
    Other,
}

/// Phase of an identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum IdPhase {
    Idle,
    Bound,
    AddressResolved,
    RouteResolved,
    Connecting,
    Listening,
    Requested,
    Accepting,
    Connected,
    Disconnecting,
    Closed,
}

/// Parameters of a connection.
#[derive(Clone, Debug, Default)]
pub struct ConnectParameters {
    /// Private data for the peer.
    pub private_data: Vec<u8>,
    /// Maximum number of outstanding Reads of the peer. `None`: as many as the peer requests, within the limit.
    pub responder_resources: Option<u8>,
    /// Maximum number of own outstanding Reads. `None`: as many as the peer serves, within the limit.
    pub initiator_depth: Option<u8>,
    /// True if the program establishes the connection after the response of the peer ([`Id::establish`]).
    pub is_two_step: bool,
}

/// Mutable state of an identifier.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) phase: IdPhase,
    pub(super) channel: Arc<EventChannel>,
    pub(super) local: Option<SocketAddr>,
    pub(super) remote: Option<SocketAddr>,
    /// Program's view of the local address.
    local_view: View,
    /// Program's view of the remote address.
    remote_view: View,
    /// Socket that reserves the port of a bound identifier.
    reservation: Option<Guarded<OwnedFd>>,
    /// Address recorded as bound.
    pub(super) bound: Option<LocalAddress>,
    pub(super) connector: Option<ConnectorId>,
    pub(super) listener: Option<ListenerId>,
    /// Kernel socket of the listener, for the child of a fork.
    pub(super) socket: Option<Arc<ListeningSocket>>,
    pub(super) backlog: i32,
    pub(super) qp: Option<Arc<Qp>>,
    /// Limits of the peer's request: its Reads, and the Reads that it serves.
    pub(super) offered: (u8, u8),
    /// Outstanding connect.
    pub(super) attempt: Option<ConnectAttempt>,
    /// True if the peer has accepted, and the program has to establish the connection.
    pub(super) has_response: bool,
    /// True if the queue pair was destroyed or reset, possibly before the event of the connection.
    pub(super) is_qp_detached: bool,
    pub(super) is_reuse: bool,
    is_family_only: bool,
    pub(super) is_destroyed: bool,
}

/// Connect, which is retried while the peer refuses it.
#[derive(Clone, Debug)]
pub(super) struct ConnectAttempt {
    pub(super) qp: Arc<Qp>,
    pub(super) parameters: ConnectParameters,
    pub(super) until: Instant,
}

/// Identifier (`rdma_cm_id`).
#[derive(Debug)]
pub struct Id {
    owner: OwnerDevice,
    space: PortSpace,
    inner: Mutex<Inner>,
    acknowledgments: Acknowledgments,
    /// Program's name: address of its structure.
    name: AtomicUsize,
}

impl Id {
    /// Creates an identifier whose events are queued on `channel`.
    ///
    /// # Errors
    /// As [`Device::check`].
    pub fn new(
        device: &'static Device,
        space: PortSpace,
        channel: Arc<EventChannel>,
    ) -> Result<Arc<Self>, Errno> {
        device.check()?;
        Ok(Self::in_phase(device, space, channel, IdPhase::Idle))
    }

    pub(super) fn in_phase(
        device: &'static Device,
        space: PortSpace,
        channel: Arc<EventChannel>,
        phase: IdPhase,
    ) -> Arc<Self> {
        let inner = Inner {
            phase,
            channel,
            local: None,
            remote: None,
            local_view: View::default(),
            remote_view: View::default(),
            reservation: None,
            bound: None,
            connector: None,
            listener: None,
            socket: None,
            backlog: 0,
            qp: None,
            offered: (0, 0),
            attempt: None,
            has_response: false,
            is_qp_detached: false,
            is_reuse: false,
            is_family_only: false,
            is_destroyed: false,
        };
        let id = Arc::new(Self {
            owner: OwnerDevice::of(device),
            space,
            inner: Mutex::new(inner),
            acknowledgments: Acknowledgments::default(),
            name: AtomicUsize::new(0),
        });
        IDS.enter(&id);
        id
    }

    /// Raises the removal event, unless the identifier is not bound to the device, or its connection request was not
    /// yet delivered to the program.
    fn remove_device(self: &Arc<Self>) {
        let is_unseen = || self.lock().phase == IdPhase::Requested && self.name() == 0;
        if self.lock().local.is_some() && !is_unseen() {
            Self::raise(Event::new(EventKind::DeviceRemoval, self));
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// Returns the locked state. `None`: another thread holds the lock.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, Inner>> {
        self.inner.try_lock().ok()
    }

    /// Changes the device.
    pub(super) fn enter(self: &Arc<Self>, device: &'static Device) {
        self.owner.change(device);
        IDS.enter(self);
    }

    /// Returns true if the identifier belongs to this process.
    pub fn is_own(&self) -> bool {
        self.owner.is_own()
    }

    /// Returns the channel of an inherited identifier. `None`: another thread held its lock at the fork.
    pub fn inherited_channel(&self) -> Option<Arc<EventChannel>> {
        self.try_lock().map(|inner| inner.channel.clone())
    }

    /// Returns the device.
    pub fn device(&self) -> &'static Device {
        self.owner.device()
    }

    /// Returns the port space.
    pub const fn space(&self) -> PortSpace {
        self.space
    }

    /// Returns the program's name. 0: not yet delivered to the program.
    pub fn name(&self) -> usize {
        self.name.load(Ordering::Relaxed)
    }

    /// Sets the program's name.
    pub fn set_name(&self, name: usize) {
        self.name.store(name, Ordering::Relaxed);
    }

    /// Returns the local and the remote address in the program's view.
    pub fn addresses(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        let Inner { local, remote, local_view, remote_view, .. } = *self.lock();
        let shown = |address: Option<SocketAddr>, view| Some(self.device().shown(address?, view));
        (shown(local, local_view), shown(remote, remote_view))
    }

    /// Returns the local and the remote address of the adapter.
    pub fn adapter_addresses(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        let Inner { local, remote, .. } = *self.lock();
        (local, remote)
    }

    /// Returns the remote address in the program's view, for the log. `None`: not set.
    pub(crate) fn peer(&self) -> Option<DisplayValue<SocketAddr>> {
        self.addresses().1.map(display)
    }

    /// Returns true if the local address is specific, which selects the device.
    pub fn has_device(&self) -> bool {
        self.lock().local.is_some_and(|local| !local.ip().is_unspecified())
    }

    /// Returns the event channel.
    pub fn channel(&self) -> Arc<EventChannel> {
        self.lock().channel.clone()
    }

    pub(super) const fn acknowledgments(&self) -> &Acknowledgments {
        &self.acknowledgments
    }

    /// Counts an acknowledged event.
    pub fn acknowledge(&self) {
        self.acknowledgments.acknowledged(1);
    }

    /// Queues an event, unless its owner is destroyed. Returns true if it was queued.
    pub(super) fn raise(event: Event) -> bool {
        let owner = event.owner().clone();
        let inner = owner.lock();
        if !inner.is_destroyed {
            inner.channel.push(event);
        }
        !inner.is_destroyed
    }

    fn check(&self) -> Result<(), Errno> {
        self.device().check()?;
        match self.space {
            PortSpace::Tcp => Ok(()),
            PortSpace::Other => Err(Errno::NODEV),
        }
    }

    /// Allows other identifiers with the same option to share the address.
    ///
    /// # Errors
    /// `EINVAL`: the identifier is bound.
    pub fn set_reuse(&self, is_reuse: bool) -> Result<(), Errno> {
        let mut inner = self.lock();
        if inner.phase != IdPhase::Idle {
            return Err(Errno::INVAL);
        }
        inner.is_reuse = is_reuse;
        Ok(())
    }

    /// Restricts an unspecified IPv6 address to IPv6.
    ///
    /// # Errors
    /// `EINVAL`: the identifier is bound.
    pub fn set_family_only(&self, is_only: bool) -> Result<(), Errno> {
        let mut inner = self.lock();
        if inner.phase != IdPhase::Idle {
            return Err(Errno::INVAL);
        }
        inner.is_family_only = is_only;
        Ok(())
    }

    /// Binds to a local address of the program. For port 0, a free port is chosen.
    ///
    /// # Errors
    /// `EINVAL`: the identifier is bound, the address is IPv4-mapped although the identifier is restricted to IPv6, or
    /// a link-local address has no scope. `EADDRNOTAVAIL`: not a local address. `EADDRINUSE`. `EACCES`: privileged
    /// port. As [`Device::check`].
    pub fn bind(&self, address: SocketAddr) -> Result<(), Errno> {
        self.check()?;
        let mut inner = self.lock();
        if inner.phase != IdPhase::Idle {
            return Err(Errno::INVAL);
        }
        let (address, view) = self.device().translate(address);
        if view.is_mapped && inner.is_family_only {
            return Err(Errno::INVAL);
        }
        let at = LocalAddress { address, v6_only: inner.is_family_only };
        let (reservation, local) = self.device().reserve(at, inner.is_reuse)?;
        inner.phase = IdPhase::Bound;
        inner.local = Some(local.address);
        inner.local_view = view;
        inner.bound = Some(local);
        inner.reservation = reservation.map(Guarded::from);
        Ok(())
    }

    /// Resolves the address of a peer. An event reports the result.
    ///
    /// # Errors
    /// `EINVAL`: wrong phase, two address families, or a link-local address without a scope. `ENETUNREACH`,
    /// `EHOSTUNREACH`: no route. As [`Id::bind`].
    pub fn resolve_address(
        self: &Arc<Self>,
        source: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<(), Errno> {
        self.check()?;
        if let Some(source) = source
            && self.lock().phase == IdPhase::Idle
            && !(source.ip().is_unspecified() && source.port() == 0)
        {
            self.bind(source)?;
        }
        let mut inner = self.lock();
        if !matches!(inner.phase, IdPhase::Idle | IdPhase::Bound) {
            return Err(Errno::INVAL);
        }
        let (remote, view) = self.device().translate(remote);
        if view.is_mapped && inner.is_family_only {
            return Err(Errno::NETUNREACH);
        }
        // An identifier bound to `[::]` may have an IPv4 peer, given as an IPv4-mapped address.
        let of_peer = |local| if view.is_mapped { source_for(local, remote) } else { local };
        let bound = inner.local.map(of_peer);
        if bound.is_some_and(|local| local.is_ipv4() != remote.is_ipv4()) {
            return Err(Errno::INVAL);
        }
        // As in the CM of the kernel, the unspecified address is the local host.
        let remote = match remote.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => {
                SocketAddr::new(Ipv4Addr::LOCALHOST.into(), remote.port())
            }
            IpAddr::V6(ip) if ip.is_unspecified() => {
                SocketAddr::new(Ipv6Addr::LOCALHOST.into(), remote.port())
            }
            _ => remote,
        };
        let specific = bound.filter(|local| !local.ip().is_unspecified());
        let mut local = self.device().addresses().source_of(remote, specific)?;
        local.set_port(bound.map_or(0, |local| local.port()));
        inner.local = Some(local);
        inner.remote = Some(address::with_scope(remote, address::scope(local)));
        inner.local_view.is_mapped |= view.is_mapped;
        inner.remote_view = view;
        inner.phase = IdPhase::AddressResolved;
        drop(inner);
        Self::raise(Event::new(EventKind::AddressResolved, self));
        Ok(())
    }

    /// Resolves the route, which needs no query. An event reports the result.
    ///
    /// # Errors
    /// `EINVAL`: the address is not resolved. As [`Device::check`].
    pub fn resolve_route(self: &Arc<Self>) -> Result<(), Errno> {
        self.check()?;
        let mut inner = self.lock();
        if inner.phase != IdPhase::AddressResolved {
            return Err(Errno::INVAL);
        }
        inner.phase = IdPhase::RouteResolved;
        drop(inner);
        Self::raise(Event::new(EventKind::RouteResolved, self));
        Ok(())
    }

    /// Listens. An unbound identifier is bound to a free port at all addresses first.
    ///
    /// # Errors
    /// `EINVAL`: wrong phase. `EADDRINUSE`: another listener has the address. As [`Device::check`].
    pub fn listen(self: &Arc<Self>, backlog: i32) -> Result<(), Errno> {
        self.check()?;
        if self.lock().phase == IdPhase::Idle {
            self.bind(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0))?;
        }
        let at = {
            let mut inner = self.lock();
            if inner.phase != IdPhase::Bound {
                return Err(Errno::INVAL);
            }
            inner.phase = IdPhase::Listening;
            inner.bound.ok_or(Errno::INVAL)?
        };
        let listened = self.begin_to_listen(at, backlog);
        match listened {
            Ok(listener) => {
                self.listening(listener, backlog);
                Ok(())
            }
            Err(error) => {
                self.lock().phase = IdPhase::Bound;
                self.device().explain(error, at, true);
                Err(error)
            }
        }
    }

    /// Records the listener.
    pub(super) fn listening(&self, listener: ListenerId, backlog: i32) {
        let socket = self.device().listening_socket(listener);
        let mut inner = self.lock();
        inner.socket = socket;
        inner.backlog = backlog;
        inner.listener = Some(listener);
        // The listener now holds the port.
        inner.reservation = None;
        self.device().count_listening(1);
    }

    pub(super) fn begin_to_listen(
        self: &Arc<Self>,
        at: LocalAddress,
        backlog: i32,
    ) -> Result<ListenerId, Errno> {
        let backlog = match usize::try_from(backlog) {
            Ok(backlog @ 1..=BACKLOG) => backlog,
            _ => BACKLOG,
        };
        // Programs accept late, so requests that wait for an accept do not count against the backlog.
        let config = ListenerConfig {
            backlog,
            requests_per_peer_max: BACKLOG,
            v6_only: at.v6_only,
            ..Default::default()
        };
        let this = self.clone();
        let event = Arc::new(move |connector| this.handle_request(connector));
        let listener = self.device().with(|core, _| core.create_listener(event))?;
        let listening = Arc::new(OneShot::default());
        let outcome = listening.clone();
        let completion = Box::new(move |result| outcome.set(result));
        let begun =
            self.device().with(|core, _| core.listen(listener, at.address, config, completion));
        match begun.and_then(|()| listening.wait()) {
            Ok(()) => Ok(listener),
            Err(error) => {
                self.close(Key::Listener(listener));
                Err(error.into())
            }
        }
    }

    pub(super) fn close(&self, key: Key) {
        // The completion has no receiver.
        let _ = self.device().with(|core, _| core.close(key, Box::new(|| {})));
    }

    /// Creates an identifier for a connection request, and queues the event on the channel of the listener.
    fn handle_request(self: &Arc<Self>, connector: ConnectorId) {
        let (data, local, remote) = self.device().with(|core, _| {
            let data = core.connection_data(connector).cloned().unwrap_or_default();
            (data, core.local_address(connector), core.peer_address(connector))
        });
        let (channel, local_view) = {
            let inner = self.lock();
            let is_listening = !inner.is_destroyed && inner.phase == IdPhase::Listening;
            (is_listening.then(|| inner.channel.clone()), inner.local_view)
        };
        let Some(channel) = channel else { return self.close(Key::Connector(connector)) };
        let child = Self::in_phase(self.device(), self.space, channel, IdPhase::Requested);
        let mut event = Event::new(EventKind::ConnectRequest, &child);
        event.listener = Some(self.clone());
        event.set_data(&data);
        {
            let mut inner = child.lock();
            inner.connector = Some(connector);
            inner.local = local;
            inner.remote = remote;
            inner.local_view = local_view;
            inner.remote_view = View { port: None, ..local_view };
            inner.offered = (event.responder_resources, event.initiator_depth);
        }
        if !Self::raise(event) {
            self.close(Key::Connector(connector));
        }
    }

    /// Moves the identifier and its queued events to another channel.
    ///
    /// # Errors
    /// As [`Device::check`].
    pub fn migrate(&self, channel: &Arc<EventChannel>) -> Result<(), Errno> {
        self.device().check()?;
        let mut inner = self.lock();
        let before = std::mem::replace(&mut inner.channel, channel.clone());
        if !Arc::ptr_eq(&before, channel) {
            let mine = |event: &Event| std::ptr::eq(&**event.owner(), self);
            let moved = before.events().withdraw(mine);
            moved.into_iter().for_each(|event| channel.push(event));
        }
        Ok(())
    }

    /// Destroys the identifier: resets the connection, rejects the request, closes the listener. Withdraws events that
    /// the program has not taken, and waits for the acknowledgment of those that it has.
    ///
    /// # Errors
    /// As [`Device::check`].
    pub fn destroy(self: &Arc<Self>) -> Result<(), Errno> {
        if !self.owner.is_own() {
            // The parent's identifier is not affected.
            let socket = self.try_lock().and_then(|mut inner| inner.socket.take());
            if let Some(socket) = socket {
                socket.close_inherited();
            }
            return Ok(());
        }
        let (connector, listener, bound, withdrawn) = {
            let mut inner = self.lock();
            inner.is_destroyed = true;
            inner.phase = IdPhase::Closed;
            inner.reservation = None;
            inner.qp = None;
            inner.attempt = None;
            let mine = |event: &Event| std::ptr::eq(&**event.owner(), &**self);
            let withdrawn = inner.channel.events().withdraw(mine);
            inner.socket = None;
            (inner.connector.take(), inner.listener.take(), inner.bound.take(), withdrawn)
        };
        if listener.is_some() {
            self.device().count_listening(-1);
        }
        if let Some(bound) = bound {
            self.device().unbind(bound);
        }
        if self.device().check().is_ok() {
            if let Some(listener) = listener {
                self.close(Key::Listener(listener));
            }
            // Requests that were not delivered to the program are rejected.
            let unseen = withdrawn.iter().filter(|event| event.kind == EventKind::ConnectRequest);
            for connector in unseen.filter_map(|event| event.id.lock().connector.take()) {
                self.close(Key::Connector(connector));
            }
            if let Some(connector) = connector {
                self.close(Key::Connector(connector));
            }
        }
        self.acknowledgments.wait();
        Ok(())
    }
}
