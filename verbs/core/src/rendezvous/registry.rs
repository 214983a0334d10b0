//! Queue pairs of a device by number: its listeners, requests, lifetimes.

use std::{
    collections::HashMap,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Mutex, OnceLock},
};

use offload_engine::{address::LocalAddress, time::Instant};
use rdma_over_tcp::{
    rnic::{ConnectorId, Key, ListenerConfig, ListenerId, QpId, Rnic},
    transport::ListeningSocket,
};

use super::{
    endpoint::{Endpoint, Offer},
    held::HeldRequests,
    numbers::{QpNumbers, port},
    private_data::{Malformed, QpDescription, Refusal},
    request::{Request, close, refuse},
};
use crate::{
    async_event::EventNotifier,
    attributes::{IbvQpChange, IbvQpState, QpKind},
    device::Device,
    errno::Errno,
    process::GENERATIONS_MAX,
    sync::{OneShot, lock},
};

/// Connections of a listener in their TCP handshake.
const BACKLOG: usize = 1024;
/// Attempts to listen at a port that the kernel has chosen. Another process may listen on it in the meantime.
const ATTEMPTS_MAX: u32 = 8;

/// Queue pairs of a device that peers can dial.
#[derive(Debug, Default)]
struct Rendezvous {
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
    held: HeldRequests<Request>,
}

/// Closes the listeners that the child of a fork has inherited: the ports belong to the parent.
pub fn close_inherited() {
    for device in Device::inherited() {
        // The holder of the lock, if any, does not exist in this process.
        let Ok(sockets) = of(device).sockets.try_lock() else { continue };
        sockets.iter().for_each(|socket| socket.close_inherited());
    }
}

/// Returns the rendezvous of a device.
fn of(device: &Device) -> &'static Rendezvous {
    static ALL: [OnceLock<Rendezvous>; GENERATIONS_MAX] =
        [const { OnceLock::new() }; GENERATIONS_MAX];
    // A device exists for these generations only.
    ALL[device.generation()].get_or_init(Rendezvous::default)
}

/// Allocates a QP number, and starts a listener if all numbers are in use. For a queue pair that needs datagrams, the
/// port of the number also receives them.
///
/// # Errors
/// `ENOMEM`: no number left. `EMFILE`, `EADDRNOTAVAIL`: no descriptor or port available. `EOPNOTSUPP`: the transport
/// has no datagrams.
pub(crate) fn allocate_number(
    device: &'static Device,
    needs_datagrams: bool,
) -> Result<u32, Errno> {
    let rendezvous = of(device);
    let _creating = lock(&rendezvous.creating);
    for _ in 0..ATTEMPTS_MAX {
        if let Some(number) = lock(&rendezvous.state).numbers.allocate(needs_datagrams) {
            return Ok(number);
        }
        let without = lock(&rendezvous.state).numbers.without_datagrams();
        if needs_datagrams && open_datagrams(device, &without)? {
            continue;
        }
        let port = listen(device)?;
        lock(&rendezvous.state).numbers.add(port);
    }
    Err(Errno::NOMEM)
}

/// Makes one of these ports receive datagrams. Returns false if other processes have all of them.
fn open_datagrams(device: &'static Device, ports: &[u16]) -> Result<bool, Errno> {
    for port in ports {
        match device.open_datagrams(*port) {
            Ok(()) => {
                lock(&of(device).state).numbers.add_datagrams(*port);
                return Ok(true);
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => {
                tracing::error!(port, %error, "UDP port of queue pairs");
                return Err(error.raw_os_error().map_or(Errno::IO, Errno));
            }
        }
    }
    Ok(false)
}

/// Releases the number of a queue pair that was not added, with the value of [`allocate_number`].
pub(crate) fn release_number(device: &Device, number: u32, needs_datagrams: bool, core: &mut Rnic) {
    if lock(&of(device).state).numbers.release(number, needs_datagrams) {
        core.close_datagrams(port(number));
    }
}

/// Adds a queue pair under its number.
pub(crate) fn add(
    device: &'static Device,
    qp: QpId,
    (number, kind): (u32, QpKind),
    notifier: Arc<EventNotifier>,
) -> Arc<Endpoint> {
    let endpoint = Arc::new(Endpoint::new(device, qp, (number, kind), notifier));
    lock(&of(device).state).endpoints.insert(number, endpoint.clone());
    endpoint
}

/// Changes state and attributes of a queue pair, and returns the state.
///
/// # Errors
/// As [`Endpoint::modify`].
pub(crate) fn modify(endpoint: &Arc<Endpoint>, change: &IbvQpChange) -> Result<IbvQpState, Errno> {
    endpoint.modify(change, |core, now| {
        let rendezvous = of(endpoint.device());
        let held = lock(&rendezvous.state).held.take(endpoint.number());
        if let Some(held) = held {
            rendezvous.dispatch(core, now, held);
        }
    })
}

/// Removes a queue pair that is destroyed, and releases its number.
pub(crate) fn remove(endpoint: &Endpoint, core: &mut Rnic) {
    endpoint.end(core);
    let (device, number) = (endpoint.device(), endpoint.number());
    let held = {
        let mut state = lock(&of(device).state);
        state.endpoints.remove(&number);
        state.held.take(number)
    };
    release_number(device, number, endpoint.has_datagrams(), core);
    if let Some(held) = held {
        refuse(core, &held, Refusal::Unknown);
    }
}

impl Rendezvous {
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
                let displaced = lock(&self.state).held.hold(number, request);
                if let Some(displaced) = displaced {
                    refuse(core, &displaced, Refusal::Busy);
                }
            }
        }
    }
}

/// Handles a connection request of a listener.
fn handle_request(device: &'static Device, connector: ConnectorId) {
    device.with(|core, now| {
        let data = core.connection_data(connector).map(|data| data.private_data.clone());
        let peer = core.peer_address(connector);
        match QpDescription::decode(data.as_deref().unwrap_or_default()) {
            Ok(description) => {
                let request = Request { connector, description, peer };
                of(device).dispatch(core, now, request);
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
    let Some(range) = device.rendezvous_ports() else { return listen_on(device, 0) };
    for port in range.ports() {
        if lock(&of(device).state).numbers.has(port) {
            continue;
        }
        match listen_on(device, port) {
            Err(Errno::ADDRINUSE) => {}
            result => return result,
        }
    }
    tracing::error!(%range, "rendezvous ports: all in use: widen the range of --rendezvous-ports");
    Err(Errno::NOMEM)
}

/// Starts a listener at all addresses, and returns its port. Port 0: any.
fn listen_on(device: &'static Device, port: u16) -> Result<u16, Errno> {
    let everywhere = |ip| LocalAddress::from(SocketAddr::new(ip, port));
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
    let attempts = if at.address.port() == 0 { ATTEMPTS_MAX } else { 1 };
    for _ in 1..attempts {
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
        lock(&of(device).sockets).push(socket);
    }
    let address = device.with(|core, _| core.listener_address(listener));
    Ok(address.ok_or(Errno::ADDRNOTAVAIL)?.port())
}
