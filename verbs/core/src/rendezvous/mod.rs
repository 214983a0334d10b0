//! Rendezvous of queue pairs that programs connect themselves, over TCP.
//!
//! A program exchanges GID, QP number and PSN with its peer, and calls `ibv_modify_qp`. The GID is an address of this
//! machine or node, and the QP number contains a port on which this process listens ([`numbers`]). So the peer can dial
//! the queue pair without a daemon. A connection is MPA, DDP and RDMAP over TCP; the private data of MPA names the queue
//! pair ([`private_data`]).
//!
//! From RTR on, the end with the larger GID and QP number dials, until it has a connection; the other end only accepts
//! ([`endpoint`]). A Request for a queue pair that is not yet in RTR is kept unanswered ([`held`]). A queue pair has one
//! connection until its next reset. Its loss is not reported: posted requests fail after the retry budget ([`timing`]).
//!
//! # Locks
//!
//! Changes are made within closures of [`Device::with`](crate::device::Device::with), so the lock of the adapter orders
//! them. The locks of this module are taken in such closures, one at a time. Callbacks of the core take the lock of the
//! adapter first.

pub(crate) mod endpoint;
mod held;
mod numbers;
mod private_data;
mod timing;

use std::{
    collections::HashMap,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex},
};

use offload_engine::{address::LocalAddress, time::Instant};
use rdma_over_tcp::{
    rnic::{ConnectorId, Key, ListenerConfig, ListenerId, Rnic},
    transport::ListeningSocket,
};

use self::{
    endpoint::{Endpoint, Offer},
    held::HeldRequests,
    numbers::QpNumbers,
    private_data::{Malformed, QpDescription, Refusal},
};
use crate::{
    device::Device,
    errno::Errno,
    sync::{OneShot, lock},
};

/// Connections of a listener in their TCP handshake.
const BACKLOG: usize = 1024;
/// Attempts to listen at a port that the kernel has chosen. Another process may listen on it in the meantime.
const ATTEMPTS_MAX: u32 = 8;

/// Queue pairs of a device that peers can dial.
#[derive(Debug, Default)]
pub(crate) struct Rendezvous {
    /// Serializes the creation of listeners. Callbacks do not take it.
    creating: Mutex<()>,
    state: Mutex<State>,
    /// Kernel sockets of the listeners, for the child of a fork.
    sockets: Mutex<Vec<Arc<ListeningSocket>>>,
}

#[derive(Debug, Default)]
struct State {
    numbers: QpNumbers,
    endpoints: HashMap<u32, Arc<Endpoint>>,
    held: HeldRequests,
}

/// Connection request for a queue pair.
#[derive(Clone, Copy, Debug)]
struct Request {
    connector: ConnectorId,
    description: QpDescription,
    /// Address of the peer.
    peer: Option<SocketAddr>,
}

/// Closes the listeners that the child of a fork has inherited: the ports belong to the parent.
pub fn close_inherited() {
    for device in Device::inherited() {
        // The holder of the lock, if any, does not exist in this process.
        let Ok(sockets) = device.rendezvous().sockets.try_lock() else { continue };
        sockets.iter().for_each(|socket| socket.close_inherited());
    }
}

impl Rendezvous {
    /// Allocates a QP number, and starts a listener if all numbers are in use.
    ///
    /// # Errors
    /// `ENOMEM`: no number left. `EMFILE`, `EADDRNOTAVAIL`: no descriptor or port available.
    pub(crate) fn allocate(&self, device: &'static Device) -> Result<u32, Errno> {
        let _creating = lock(&self.creating);
        if let Some(number) = lock(&self.state).numbers.allocate() {
            return Ok(number);
        }
        let port = listen(device)?;
        let mut state = lock(&self.state);
        state.numbers.add(port);
        state.numbers.allocate().ok_or(Errno::NOMEM)
    }

    /// Releases a QP number without a queue pair.
    pub(crate) fn release(&self, number: u32) {
        lock(&self.state).numbers.release(number);
    }

    /// Adds a queue pair under its number.
    fn add(&self, endpoint: Arc<Endpoint>) {
        lock(&self.state).endpoints.insert(endpoint.number(), endpoint);
    }

    /// Removes a queue pair, releases its number, and returns the connector of its request.
    fn remove(&self, number: u32) -> Option<Request> {
        let mut state = lock(&self.state);
        state.endpoints.remove(&number);
        state.numbers.release(number);
        state.held.take(number)
    }

    /// Takes the request that waits for a queue pair.
    fn take_held(&self, number: u32) -> Option<Request> {
        lock(&self.state).held.take(number)
    }

    /// Passes a request to its queue pair.
    fn dispatch(&self, core: &mut Rnic, now: Instant, request: Request) {
        let number = request.description.destination;
        let endpoint = lock(&self.state).endpoints.get(&number).cloned();
        let offer = match endpoint {
            Some(endpoint) => endpoint.offer(core, now, &request),
            None => Offer::Refused(Refusal::Unknown),
        };
        match offer {
            Offer::Taken => {}
            Offer::Refused(refusal) => refuse(core, &request, refusal),
            Offer::Early => {
                let displaced = lock(&self.state).held.hold(request);
                if let Some(displaced) = displaced {
                    refuse(core, &displaced, Refusal::Busy);
                }
            }
        }
    }
}

/// Refuses a request with a reason.
fn refuse(core: &mut Rnic, request: &Request, refusal: Refusal) {
    let Request { connector, description, peer } = request;
    tracing::info!(
        qpn = description.destination,
        peer_qpn = description.source,
        peer = peer.map(tracing::field::display),
        reason = %refusal,
        "connection of a queue pair refused"
    );
    let reply = QpDescription {
        destination: description.source,
        source: description.destination,
        refusal: Some(refusal),
        ..*description
    };
    // A request that the peer has aborted needs no reply.
    let _ = core.reject(*connector, &reply.encode());
    close(core, *connector);
}

/// Closes a connector. The completion has no receiver.
fn close(core: &mut Rnic, connector: ConnectorId) {
    let _ = core.close(Key::Connector(connector), Box::new(|| {}));
}

/// Handles a connection request of a listener.
fn handle_request(device: &'static Device, connector: ConnectorId) {
    device.with(|core, now| {
        let data = core.connection_data(connector).map(|data| data.private_data.clone());
        let peer = core.peer_address(connector);
        match QpDescription::decode(data.as_deref().unwrap_or_default()) {
            Ok(description) => {
                let request = Request { connector, description, peer };
                device.rendezvous().dispatch(core, now, request);
            }
            Err(malformed) => {
                let peer = peer.map(tracing::field::display);
                let is_version = malformed == Malformed::Version;
                tracing::info!(
                    peer,
                    is_version,
                    "connection of a queue pair refused: private data"
                );
                let _ = core.reject(connector, &[]);
                close(core, connector);
            }
        }
    });
}

/// Starts a listener at all addresses, and returns its port.
fn listen(device: &'static Device) -> Result<u16, Errno> {
    let everywhere = |ip| LocalAddress::from(SocketAddr::new(ip, 0));
    let dual = everywhere(Ipv6Addr::UNSPECIFIED.into());
    match listen_at(device, dual) {
        // Without IPv6.
        Err(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT | Errno::INVAL) => {
            listen_at(device, everywhere(Ipv4Addr::UNSPECIFIED.into()))
        }
        result => result,
    }
}

fn listen_at(device: &'static Device, at: LocalAddress) -> Result<u16, Errno> {
    for _ in 1..ATTEMPTS_MAX {
        match try_listen(device, at) {
            Err(Errno::ADDRINUSE) => {}
            result => return result,
        }
    }
    try_listen(device, at)
}

fn try_listen(device: &'static Device, at: LocalAddress) -> Result<u16, Errno> {
    // A node has no port 0: the port is reserved first.
    let at = match device.addresses().node() {
        Some(_) => device.reserve(at, false)?.1,
        None => at,
    };
    let config = ListenerConfig::with_backlog(BACKLOG);
    let event = Arc::new(move |connector| handle_request(device, connector));
    let listener = device.with(|core, _| core.create_listener(event))?;
    let listening = Arc::new(OneShot::default());
    let outcome = listening.clone();
    let completion = Box::new(move |result| outcome.set(result));
    let begun = device.with(|core, _| core.listen(listener, at.address, config, completion));
    let result = begun.and_then(|()| listening.wait()).map_err(Errno::from);
    let port = result.and_then(|()| started(device, listener));
    if port.is_err() {
        let _ = device.with(|core, _| core.close(Key::Listener(listener), Box::new(|| {})));
        if device.addresses().node().is_some() {
            device.unbind(at);
        }
    }
    port
}

/// Records a listener, and returns its port.
fn started(device: &'static Device, listener: ListenerId) -> Result<u16, Errno> {
    if let Some(socket) = device.listening_socket(listener) {
        lock(&device.rendezvous().sockets).push(socket);
    }
    let address = device.with(|core, _| core.listener_address(listener));
    Ok(address.ok_or(Errno::ADDRNOTAVAIL)?.port())
}
