//! UDP sockets of queue pairs without a connection, one for each port that the consumer opens.
//!
//! The sockets are in the epoll set of the streams, so the same loop serves them. They are bound to all addresses.
//! Packet information selects the source address of a datagram, and reports the destination address of a received one.
//! A batch of datagrams is received by one system call, and coalesced ones (GRO) are split. Datagrams are not
//! fragmented.
//!
//! A socket whose buffer is full is watched for room; the datagram waits in its queue pair. Any other error of a send
//! is a lost datagram, as it would be on the wire.

use alloc::sync::Arc;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::{
    io::{self, IoSliceMut},
    os::fd::OwnedFd,
};

use hashbrown::HashMap;
use offload_engine::{
    address::canonical,
    descriptor::{Guarded, move_to_high_number},
};
use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use rustix::{
    event::epoll::{self, EventData, EventFlags},
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, socket_with, sockopt},
};

use super::connection::ConnectionSocket;
use crate::rnic::{DatagramPath, Rnic, transport::DatagramIo};

/// Octets of the largest UDP packet, and of several that are coalesced.
const PACKET_OCTETS_MAX: usize = 64 * 1024;

/// Packets received by one system call.
const BATCH: usize = 4;

/// System calls of one turn of a socket.
const BATCHES_PER_TURN: usize = 16;

/// Requested octets of a receive buffer. A queue pair has no flow control: what arrives while the process does not run
/// waits in this buffer. Without CAP_NET_ADMIN the kernel limits it to net.core.rmem_max.
const RECEIVE_BUFFER_OCTETS: usize = 4 * 1024 * 1024;

/// UDP socket of a port.
#[derive(Debug)]
struct DatagramSocket {
    port: u16,
    name: u64,
    socket: ConnectionSocket,
    state: UdpSocketState,
    /// True if the socket is watched for room.
    is_blocked: bool,
    /// True if it is queued for another turn.
    is_ready: bool,
}

/// UDP sockets of an adapter.
#[derive(Debug)]
pub(super) struct DatagramSockets {
    poller: Arc<Guarded<OwnedFd>>,
    /// Sockets by port.
    sockets: HashMap<u16, DatagramSocket>,
    /// Ports by the name in the epoll set.
    ports: HashMap<u64, u16>,
}

/// Creates a socket at a port of all addresses: of both families, or of IPv4 if the kernel has no IPv6.
fn bound_socket(port: u16) -> Result<Guarded<OwnedFd>, Errno> {
    let open = |ip: IpAddr| {
        let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::DGRAM, flags, Some(ipproto::UDP))?;
        let socket = Guarded::from(move_to_high_number(socket));
        if ip.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, false)?;
        }
        bind(&socket, &SocketAddr::new(ip, port))?;
        Ok(socket)
    };
    match open(Ipv6Addr::UNSPECIFIED.into()) {
        Err(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT | Errno::INVAL) => {
            open(Ipv4Addr::UNSPECIFIED.into())
        }
        result => result,
    }
}

impl DatagramSocket {
    fn open(poller: &OwnedFd, port: u16, name: u64) -> io::Result<Self> {
        let socket = ConnectionSocket::create(|| bound_socket(port))?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        if sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_OCTETS).is_err() {
            sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER_OCTETS)?;
        }
        epoll::add(poller, &socket, EventData::new_u64(name), EventFlags::IN | EventFlags::ET)?;
        Ok(Self { port, name, socket, state, is_blocked: false, is_ready: false })
    }

    /// Receives a batch of packets. Returns true if none is left.
    fn receive_batch(&self, rnic: &mut Rnic, received: &mut [u8]) -> bool {
        let mut buffers: [&mut [u8]; BATCH] = Default::default();
        for (buffer, chunk) in buffers.iter_mut().zip(received.chunks_mut(PACKET_OCTETS_MAX)) {
            *buffer = chunk;
        }
        let mut packets = [RecvMeta::default(); BATCH];
        let mut slices = buffers.map(IoSliceMut::new);
        let result = self.state.recv(UdpSockRef::from(&self.socket), &mut slices, &mut packets);
        // Without a pending packet. Other errors leave nothing to read either.
        let Ok(count) = result else { return true };
        for (packet, octets) in packets[..count].iter().zip(&slices) {
            let source = canonical(packet.addr);
            let Some(destination) = packet.dst_ip.map(|ip| ip.to_canonical()) else { continue };
            let octets = octets.get(..packet.len).unwrap_or_default();
            for datagram in octets.chunks(packet.stride.max(1)) {
                rnic.handle_datagram(self.port, source, destination, datagram);
            }
        }
        count < BATCH
    }

    /// Watches the socket for room, or no longer. Without a need each sent packet would wake the loop.
    fn watch_room(&mut self, poller: &OwnedFd, is_blocked: bool) {
        self.is_blocked = is_blocked;
        let room = if is_blocked { EventFlags::OUT } else { EventFlags::empty() };
        let events = EventFlags::IN | EventFlags::ET | room;
        let _ = epoll::modify(poller, &self.socket, EventData::new_u64(self.name), events);
    }
}

impl DatagramSockets {
    pub(super) fn new(poller: Arc<Guarded<OwnedFd>>) -> Self {
        Self { poller, sockets: HashMap::new(), ports: HashMap::new() }
    }

    fn named(&mut self, name: u64) -> Option<&mut DatagramSocket> {
        self.sockets.get_mut(self.ports.get(&name)?)
    }

    /// Returns true if the port has a socket.
    pub(super) fn has(&self, port: u16) -> bool {
        self.sockets.contains_key(&port)
    }

    /// Opens the socket of a port, with a name in the epoll set.
    ///
    /// # Errors
    /// Those of the socket: AddrInUse if another process has the port.
    pub(super) fn open(&mut self, port: u16, name: u64) -> io::Result<()> {
        self.sockets.insert(port, DatagramSocket::open(&self.poller, port, name)?);
        self.ports.insert(name, port);
        Ok(())
    }

    /// Handles room in a socket that had none. Returns true if datagrams wait for it.
    pub(super) fn handle_room(&mut self, name: u64) -> bool {
        let Self { poller, sockets, ports } = self;
        let socket = ports.get(&name).and_then(|port| sockets.get_mut(port));
        let Some(socket) = socket.filter(|socket| socket.is_blocked) else { return false };
        socket.watch_room(poller, false);
        true
    }

    /// Receives until no datagram is left, or for one turn. Returns true if another turn has to be scheduled; `None`:
    /// there is no such socket.
    pub(super) fn receive(
        &mut self,
        name: u64,
        is_scheduled: bool,
        rnic: &mut Rnic,
        received: &mut [u8],
    ) -> Option<bool> {
        let socket = self.named(name)?;
        socket.is_ready &= !is_scheduled;
        let is_drained = (0..BATCHES_PER_TURN).any(|_| socket.receive_batch(rnic, received));
        rnic.handle_datagrams_end();
        Some(!is_drained && !core::mem::replace(&mut socket.is_ready, true))
    }

    /// Closes the socket of a port.
    pub(super) fn close_port(&mut self, port: u16) {
        if let Some(socket) = self.sockets.remove(&port) {
            self.ports.remove(&socket.name);
        }
    }

    /// Closes all sockets.
    pub(super) fn close(&mut self) {
        self.sockets.clear();
        self.ports.clear();
    }
}

impl DatagramIo for DatagramSockets {
    fn send(&mut self, port: u16, path: &DatagramPath, datagram: &[u8]) -> bool {
        let &DatagramPath { local, remote } = path;
        let Self { sockets, poller, .. } = self;
        // A destination without a port is a queue pair that cannot exist.
        let Some(socket) = sockets.get_mut(&port).filter(|_| remote.port() != 0) else {
            return true;
        };
        let transmit = Transmit {
            destination: remote,
            ecn: None,
            contents: datagram,
            segment_size: None,
            src_ip: Some(local),
        };
        match socket.state.try_send(UdpSockRef::from(&socket.socket), &transmit) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                socket.watch_room(poller, true);
                false
            }
            _ => true,
        }
    }
}
