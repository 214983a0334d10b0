//! Creation of connections: commands of the adapter, handshakes, listeners.

use alloc::sync::Arc;
use core::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use offload_engine::{
    address::LocalAddress,
    descriptor::{Guarded, log_shortage, move_to_high_number},
    socket::bind_without_port,
    state::KeepAlive,
    time::{Duration, Instant},
};
use rustix::{
    event::epoll::{self, EventData, EventFlags},
    io::Errno,
    net::{
        AddressFamily, SocketFlags, SocketType, accept_with, bind, connect, getsockname, ipproto,
        listen, socket_with, sockopt,
    },
};

use super::{Listening, SocketRnic, allocate};
use crate::{
    rnic::{
        ConnectError, SharedEndpointId, StreamId,
        objects::id::ListenerId,
        transport::{Command, Reservation},
    },
    transport::sockets::{
        connection::ConnectionSocket,
        kernel::{address, connect_error, ends, is_of_one_connection},
        listening::ListeningSocket,
        stream::{READABLE, SocketStream, Stage},
    },
};

/// Connections accepted by a listener before other sockets are served.
const ACCEPTS_MAX: usize = 64;

/// Pause after an accept that failed for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

impl SocketRnic {
    pub(super) fn execute(&mut self, now: Instant, command: Command) {
        match command {
            Command::Connect { stream, local, remote, timeout, endpoint: _ } => {
                match self.begin_connect(stream, local, remote) {
                    Ok(socket) => {
                        let made =
                            SocketStream::new(stream, socket, Stage::Connecting, self.is_aligned);
                        self.streams.insert(stream, made);
                        self.set_deadline(stream, Some(now + timeout));
                    }
                    Err(error) => self.rnic.handle_stream_lost(stream, error),
                }
            }
            Command::Bind { endpoint, local } => match self.begin_bind(endpoint, local) {
                Ok(local) => self.rnic.handle_bound(endpoint, local),
                Err(error) => {
                    self.rnic.handle_bind_failed(endpoint, connect_error(error, Some(local)));
                }
            },
            Command::Release { reservation: Reservation::Shared(endpoint) } => {
                self.endpoints.remove(&endpoint);
            }
            Command::Listen { listener, local, backlog } => {
                match self.begin_listen(listener, local, backlog) {
                    Ok(local) => self.rnic.handle_listening(listener, local),
                    Err(error) => {
                        let error = connect_error(error, Some(local.address));
                        self.rnic.handle_listen_failed(listener, error);
                    }
                }
            }
            Command::Unlisten { listener } => {
                let name = self.names.get(&listener);
                if let Some(listening) = name.and_then(|name| self.listeners.get_mut(name)) {
                    listening.is_closed = true;
                    // Its address stays bound until it is released.
                    let _ = listening.socket.with(|socket| {
                        let _ = epoll::delete(&self.poller, socket);
                        rustix::net::shutdown(socket, rustix::net::Shutdown::Both)
                    });
                }
            }
            Command::Release { reservation: Reservation::Listener(listener) } => {
                if let Some(name) = self.names.remove(&listener) {
                    self.listeners.remove(&name);
                }
            }
            // The kernel keeps the address of a connection as long as required.
            Command::Release { reservation: Reservation::Stream(_) } => {}
            Command::CloseDatagrams { port } => self.datagrams.close_port(port),
            Command::Abort { stream } => {
                if let Some(removed) = self.remove(stream) {
                    removed.reset_on_close();
                }
                self.rnic.handle_stream_lost(stream, ConnectError::Aborted);
            }
        }
    }

    fn begin_connect(
        &self,
        stream: StreamId,
        local: Option<SocketAddr>,
        remote: SocketAddr,
    ) -> Result<ConnectionSocket, ConnectError> {
        let bound = ConnectionSocket::create(|| self.socket(remote)).and_then(|socket| {
            match local {
                // Selected by the connect: a port can have connections to several peers.
                Some(local) if local.port() == 0 => {
                    bind_without_port(socket.as_fd())?;
                    bind(&socket, &local)?;
                }
                Some(local) => {
                    // The port may have connections, earlier ones or those of a shared endpoint.
                    sockopt::set_socket_reuseaddr(&socket, true)?;
                    bind(&socket, &local)?;
                }
                None => {}
            }
            Ok(socket)
        });
        let socket = bound.map_err(|error| connect_error(error, local))?;
        match connect(&socket, &remote) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            // The address is bound: the pair of addresses is in use.
            Err(Errno::ADDRNOTAVAIL) if local.is_some_and(|local| local.port() != 0) => {
                return Err(ConnectError::ConnectionExists);
            }
            // The address is bound, without a port.
            Err(error) => return Err(connect_error(error, None)),
        }
        let watched = self.watch(&socket, stream.0, EventFlags::OUT);
        watched.map_err(|error| connect_error(error, local))?;
        Ok(socket)
    }

    /// Reserves the address of a shared endpoint. The kernel allows sockets with SO_REUSEADDR to bind it too, as long
    /// as none of them listens: the endpoint's connections, but also those of other processes. It refuses an address
    /// with a listener or with a socket without SO_REUSEADDR.
    fn begin_bind(
        &mut self,
        endpoint: SharedEndpointId,
        local: SocketAddr,
    ) -> Result<SocketAddr, Errno> {
        let socket = self.socket(local)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &local)?;
        let local = address(getsockname(&socket)?)?;
        self.endpoints.insert(endpoint, socket);
        Ok(local)
    }

    fn begin_listen(
        &mut self,
        listener: ListenerId,
        local: LocalAddress,
        backlog: usize,
    ) -> Result<SocketAddr, Errno> {
        let inherited = self.inherited.iter().position(|(at, _)| *at == local.address);
        let socket = match inherited {
            Some(at) => self.inherited.swap_remove(at).1,
            None => self.bound_socket(local)?,
        };
        listen(&socket, i32::try_from(backlog.max(1)).unwrap_or(i32::MAX))?;
        let local = address(getsockname(&socket)?)?;
        let name = allocate(&self.next_name);
        self.watch(&socket, name, EventFlags::IN)?;
        self.names.insert(listener, name);
        let socket = Arc::new(ListeningSocket::new(socket, self.poller.clone(), local));
        let (is_closed, paused_until) = (false, None);
        let listening = Listening { id: listener, socket, backlog, is_closed, paused_until };
        self.listeners.insert(name, listening);
        Ok(local)
    }

    fn bound_socket(&self, local: LocalAddress) -> Result<Guarded<OwnedFd>, Errno> {
        let LocalAddress { address: at, v6_only } = local;
        let socket = self.socket(at)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if at.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, v6_only)?;
        }
        bind(&socket, &at)?;
        Ok(socket)
    }

    /// Creates a socket with the options of connections; accepted connections inherit them from the listener.
    fn socket(&self, of: SocketAddr) -> Result<Guarded<OwnedFd>, Errno> {
        let family = if of.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        let socket = Guarded::from(move_to_high_number(socket));
        sockopt::set_tcp_nodelay(&socket, true)?;
        sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
        if let Some(KeepAlive { idle, interval, probes }) = self.rnic.config().keep_alive {
            sockopt::set_socket_keepalive(&socket, true)?;
            sockopt::set_tcp_keepidle(&socket, idle)?;
            sockopt::set_tcp_keepintvl(&socket, interval)?;
            sockopt::set_tcp_keepcnt(&socket, probes.into())?;
        }
        Ok(socket)
    }

    fn watch(&self, socket: &OwnedFd, name: u64, events: EventFlags) -> Result<(), Errno> {
        epoll::add(&self.poller, socket, EventData::new_u64(name), events | EventFlags::ET)
    }

    pub(super) fn handle_connected(&mut self, now: Instant, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let outcome = sockopt::socket_error(&stream.socket).and_then(|outcome| outcome);
        let connected = outcome.and_then(|()| {
            let data = EventData::new_u64(id.0);
            epoll::modify(&self.poller, &stream.socket, data, READABLE | EventFlags::ET)?;
            ends(stream.socket.as_fd())
        });
        match connected {
            Ok(addresses) => self.open(now, id, None, addresses),
            Err(error) => {
                self.remove(id);
                self.rnic.handle_stream_lost(id, connect_error(error, None));
            }
        }
    }

    fn open(
        &mut self,
        now: Instant,
        id: StreamId,
        listener: Option<ListenerId>,
        addresses: (SocketAddr, SocketAddr),
    ) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.stage = Stage::Open;
            stream.adapt_to(addresses);
        }
        if let Some(capture) = &mut self.capture {
            capture.open(now, id, addresses, listener.is_some());
        }
        self.rnic.handle_established(now, id, listener, addresses);
        self.call(now, id, |rnic, io| rnic.handle_open(id, io));
        self.advance(now, id);
    }

    pub(super) fn accept(&mut self, now: Instant, name: u64) {
        for _ in 0..ACCEPTS_MAX {
            let Some(listening) = self.listeners.get_mut(&name).filter(|it| !it.is_closed) else {
                return;
            };
            if listening.paused_until.is_some_and(|end| now < end) {
                return;
            }
            let listener = listening.id;
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let accept = |socket: BorrowedFd<'_>| {
                accept_with(socket, flags).map(|it| Guarded::from(move_to_high_number(it)))
            };
            let accepted = match ConnectionSocket::create(|| listening.socket.with(accept)) {
                Ok(accepted) => accepted,
                Err(Errno::AGAIN) => return,
                // Error of a connection that was reset meanwhile, or a signal.
                Err(error) if is_of_one_connection(error) => continue,
                Err(error) => {
                    let end = now + ACCEPT_PAUSE;
                    if listening.paused_until.replace(end).is_none() {
                        if matches!(error, Errno::MFILE | Errno::NFILE) {
                            log_shortage();
                        }
                        tracing::warn!(%error, "accept failed: pending connections wait");
                    }
                    self.deadlines.insert((end, name));
                    return;
                }
            };
            listening.paused_until = None;
            let id = StreamId(allocate(&self.next_name));
            let addresses =
                self.watch(&accepted, id.0, READABLE).and_then(|()| ends(accepted.as_fd()));
            let addresses = match addresses {
                Ok(addresses) => addresses,
                // An unusable connection is reset. The peer may have reset it before.
                Err(error) => {
                    if error != Errno::NOTCONN {
                        tracing::warn!(%error, "connection not accepted: reset");
                    }
                    continue;
                }
            };
            self.streams.insert(id, SocketStream::new(id, accepted, Stage::Open, self.is_aligned));
            self.open(now, id, Some(listener), addresses);
        }
        self.ready.push_back(name);
    }
}
