//! UDP ports of clients.
//!
//! A port is bound on all addresses of the node. smoltcp validates received datagrams and queues them; its socket
//! sends nothing. The host builds the frames to send: a smoltcp socket that waits for a neighbor delays its datagrams
//! to all others. A datagram for an own address returns to smoltcp as a received frame. Datagrams are not fragmented.
//!
//! Each next hop has an entry ([`Hop`]) with its Ethernet address, or with the frames that wait for it. An entry is
//! confirmed by ARP and neighbor discovery, and solicited again after [`HOP_STALE`]; meanwhile it is used. The storage
//! of a waiting datagram returns to the client when it is sent, or after [`HOLD_MAX`]: a burst to a new neighbor makes
//! the client wait, and one to an absent neighbor does not delay others for long.
//!
//! Limits: [`PORTS_MAX`] ports, [`HOPS_MAX`] next hops, [`WAITING_OF_HOP_MAX`] frames that wait for one,
//! [`WAITING_MAX`] for all. A received datagram waits in the buffer of its port ([`RECEIVE_BUFFER_OCTETS`]) if the
//! client holds [`DATAGRAMS_DELIVERED_MAX`]. Further datagrams are dropped.
//! Timers: [`SOLICIT_INTERVAL`] between [`SOLICITATIONS_MAX`] solicitations of a next hop; [`HOLD_MAX`].

use alloc::{collections::BTreeMap, vec, vec::Vec};
use core::net::{IpAddr, SocketAddr};

use offload_engine::{
    state::MacAddress,
    time::{Duration, Instant},
};
use smoltcp::{
    iface::SocketHandle,
    socket::udp::{PacketBuffer, PacketMetadata, Socket},
};

use super::{
    Host,
    neighbors::SOLICIT_INTERVAL,
    shards::{ClientId, ShardId},
};
use crate::{
    socket::{DATAGRAMS_DELIVERED_MAX, DATAGRAMS_SENT_MAX, HostError, Notice},
    wire::{self, FrameAddresses},
};

/// Maximum number of UDP ports of a node.
pub(super) const PORTS_MAX: usize = 256;
/// Octets of a port's receive buffer.
pub(super) const RECEIVE_BUFFER_OCTETS: usize = 1024 * 1024;
/// Datagrams in a port's receive buffer.
const RECEIVE_BUFFER_DATAGRAMS: usize = 2048;
/// Maximum number of next hops of datagrams. Above it, the one that was confirmed first is removed.
pub(super) const HOPS_MAX: usize = 1024;
/// Maximum number of frames that wait for the Ethernet address of one next hop: a burst of one client, at least.
pub(super) const WAITING_OF_HOP_MAX: usize = 256;
const _: () = assert!(WAITING_OF_HOP_MAX >= DATAGRAMS_SENT_MAX);
/// Maximum number of frames that wait for Ethernet addresses of next hops, in total.
pub(super) const WAITING_MAX: usize = 1024;
/// Time after the first solicitation for which storage is held.
pub(super) const HOLD_MAX: Duration = Duration::from_millis(100);
/// Validity of an Ethernet address: the lifetime of smoltcp's neighbor cache.
pub(super) const HOP_STALE: Duration = Duration::from_secs(60);
/// Maximum number of solicitations without an answer (RFC 4861 §10: MAX_MULTICAST_SOLICIT).
const SOLICITATIONS_MAX: u32 = 3;

/// UDP port of a client.
#[derive(Debug)]
struct Port {
    client: ClientId,
    socket: SocketHandle,
    /// Datagrams delivered to the client and not consumed.
    delivered: usize,
}

/// Next hop of datagrams.
#[derive(Debug)]
struct Hop {
    /// Ethernet address; `None`: unknown.
    mac: Option<MacAddress>,
    /// Time of its last confirmation, or of the first solicitation.
    since: Instant,
    /// Solicitations without an answer.
    solicitations: u32,
    /// Time of the next solicitation, or of the removal after the last one.
    solicit_at: Instant,
    /// Frames that wait for the address, with the shard that sends them.
    waiting: Vec<(ShardId, Vec<u8>)>,
    /// Storage of these datagrams, which returns to the clients.
    held: Vec<(ClientId, Vec<u8>)>,
}

/// Outcome of a datagram.
enum Outcome {
    Sent,
    /// Waits for this next hop.
    Waiting(IpAddr),
}

/// UDP ports of the clients of a node, and the next hops of their datagrams.
#[derive(Default, Debug)]
pub(super) struct Datagrams {
    ports: BTreeMap<u16, Port>,
    hops: BTreeMap<IpAddr, Hop>,
    /// Storage of consumed datagrams.
    spare: Vec<Vec<u8>>,
}

impl Datagrams {
    /// Time at which a next hop has to be solicited again.
    pub(super) fn next_solicitation(&self) -> Option<Instant> {
        // A confirmed address becomes stale without an effect until it is used.
        let unconfirmed = self.hops.values().filter(|hop| hop.solicitations > 0);
        let next = |hop: &Hop| match hop.held.is_empty() {
            true => hop.solicit_at,
            false => hop.solicit_at.min(hop.since + HOLD_MAX),
        };
        unconfirmed.map(next).min()
    }

    /// True if frames wait for next hops.
    pub(super) fn are_waiting(&self) -> bool {
        self.hops.values().any(|hop| !hop.waiting.is_empty())
    }

    /// Number of next hops.
    #[cfg(test)]
    pub(super) fn next_hops(&self) -> usize {
        self.hops.len()
    }

    /// Makes room for another next hop. Returns the one that was removed.
    fn make_room(&mut self) -> Option<Hop> {
        if self.hops.len() < HOPS_MAX {
            return None;
        }
        let oldest = self.hops.iter().min_by_key(|(_, hop)| hop.since).map(|(address, _)| *address);
        self.hops.remove(&oldest?)
    }
}

impl Host {
    /// Opens a UDP port for a client.
    pub(super) fn open_datagrams(&mut self, client: ClientId, port: u16) -> Result<(), HostError> {
        if port == 0 {
            return Err(HostError::AddressNotAvailable);
        }
        if self.datagrams.ports.contains_key(&port) {
            return Err(HostError::AddressInUse);
        }
        if self.datagrams.ports.len() >= PORTS_MAX {
            return Err(HostError::TooManyPorts);
        }
        let buffer = |datagrams, octets| {
            PacketBuffer::new(vec![PacketMetadata::EMPTY; datagrams], vec![0; octets])
        };
        let received = buffer(RECEIVE_BUFFER_DATAGRAMS, RECEIVE_BUFFER_OCTETS);
        let mut socket = Socket::new(received, buffer(0, 0));
        socket.bind(port).map_err(|_| HostError::AddressNotAvailable)?;
        let socket = self.sockets.add(socket);
        self.datagrams.ports.insert(port, Port { client, socket, delivered: 0 });
        Ok(())
    }

    /// Closes a UDP port of a client. Undelivered datagrams are dropped.
    pub(super) fn close_datagrams(&mut self, client: ClientId, port: u16) {
        if self.datagrams.ports.get(&port).is_some_and(|found| found.client == client)
            && let Some(Port { socket, .. }) = self.datagrams.ports.remove(&port)
        {
            self.sockets.remove(socket);
        }
    }

    /// Closes all UDP ports of a client.
    pub(super) fn close_datagrams_of(&mut self, client: ClientId) {
        let own = self.datagrams.ports.iter().filter(|(_, port)| port.client == client);
        for port in own.map(|(port, _)| *port).collect::<Vec<_>>() {
            self.close_datagrams(client, port);
        }
    }

    /// Sends a datagram from a port of the client, and returns its storage at once or later.
    pub(super) fn send_datagram(
        &mut self,
        now: Instant,
        client: ClientId,
        (from, to): (SocketAddr, SocketAddr),
        data: Vec<u8>,
    ) {
        let outcome = self.try_send_datagram(now, client, (from, to), &data);
        match outcome {
            Some(Outcome::Sent) => self.stats.datagrams_out += 1,
            Some(Outcome::Waiting(address)) => {
                self.stats.datagrams_out += 1;
                let hop = self.datagrams.hops.get_mut(&address);
                if let Some(hop) = hop.filter(|hop| now < hop.since + HOLD_MAX) {
                    hop.held.push((client, data));
                    return;
                }
            }
            None => self.stats.datagrams_out_dropped += 1,
        }
        self.notify(client, Notice::DatagramSent { data });
    }

    /// `None`: the datagram is dropped.
    fn try_send_datagram(
        &mut self,
        now: Instant,
        client: ClientId,
        (from, to): (SocketAddr, SocketAddr),
        data: &[u8],
    ) -> Option<Outcome> {
        self.datagrams.ports.get(&from.port()).filter(|port| port.client == client)?;
        if !self.config.is_ours(from.ip()) || !self.config.is_reachable(to) {
            return None;
        }
        let (ttl, is_own) = (self.config.tcp.ttl_or_hop_limit, self.config.is_ours(to.ip()));
        let unknown = if is_own { self.config.mac } else { MacAddress::default() };
        let ends = FrameAddresses { macs: (self.config.mac, unknown), from, to };
        let mtu = u32::try_from(self.config.mtu).unwrap_or(u32::MAX);
        let mtu = self.paths.mtu(now, to.ip(), mtu) as usize;
        let frame =
            wire::udp_frame(ends, ttl, data).filter(|frame| wire::ip_octets(frame) <= mtu)?;
        if is_own {
            // A closed port of this node is not reported by ICMP.
            self.datagrams.ports.get(&to.port())?;
            self.process(now, frame);
            self.deliver_datagrams();
            return Some(Outcome::Sent);
        }
        let hop = self.config.next_hop(to.ip())?;
        self.send_to_hop(now, (client.shard, from.ip(), hop), frame)
    }

    /// Sends a frame to a next hop, or queues it until the Ethernet address is known. `None`: it is dropped.
    fn send_to_hop(
        &mut self,
        now: Instant,
        (shard, source, address): (ShardId, IpAddr, IpAddr),
        mut frame: Vec<u8>,
    ) -> Option<Outcome> {
        if !self.datagrams.hops.contains_key(&address)
            && let Some(removed) = self.datagrams.make_room()
        {
            self.drop_hop(removed);
        }
        let hops = &self.datagrams.hops;
        let is_known = hops.get(&address).is_some_and(|hop| hop.mac.is_some());
        let waiting = || hops.values().map(|hop| hop.waiting.len()).sum::<usize>();
        let may_wait = !is_known && waiting() < WAITING_MAX;
        let hop = self.datagrams.hops.entry(address).or_insert_with(|| Hop {
            mac: None,
            since: now,
            solicitations: 0,
            solicit_at: now,
            waiting: Vec::new(),
            held: Vec::new(),
        });
        let is_due = hop.solicitations == 0 && now >= hop.solicit_at;
        if is_due {
            hop.solicitations = 1;
            hop.solicit_at = now + SOLICIT_INTERVAL;
        }
        let outcome = match hop.mac {
            Some(mac) => {
                wire::set_destination(&mut frame, mac);
                self.send_frame(shard, frame);
                Some(Outcome::Sent)
            }
            None if may_wait && hop.waiting.len() < WAITING_OF_HOP_MAX => {
                hop.waiting.push((shard, frame));
                Some(Outcome::Waiting(address))
            }
            None => None,
        };
        if is_due {
            self.solicit_from(now, source, address);
        }
        outcome
    }

    /// Drops the frames that wait for a next hop.
    fn drop_hop(&mut self, hop: Hop) {
        self.stats.datagrams_out_dropped += hop.waiting.len() as u64;
        self.return_held(hop.held);
    }

    fn return_held(&mut self, held: Vec<(ClientId, Vec<u8>)>) {
        for (client, data) in held {
            self.notify(client, Notice::DatagramSent { data });
        }
    }

    /// Records the Ethernet address of a next hop, and sends the frames that wait for it.
    pub(super) fn confirm_hop(&mut self, now: Instant, address: IpAddr, mac: MacAddress) {
        let Some(hop) = self.datagrams.hops.get_mut(&address) else { return };
        (hop.mac, hop.since) = (Some(mac), now);
        (hop.solicitations, hop.solicit_at) = (0, now + HOP_STALE);
        let (waiting, held) = (core::mem::take(&mut hop.waiting), core::mem::take(&mut hop.held));
        for (shard, mut frame) in waiting {
            wire::set_destination(&mut frame, mac);
            self.send_frame(shard, frame);
        }
        self.return_held(held);
    }

    /// Solicits the next hops that are due, and removes those that do not answer. Returns true if there were any.
    pub(super) fn serve_hops(&mut self, now: Instant) -> bool {
        if self.datagrams.next_solicitation().is_none_or(|at| at > now) {
            return false;
        }
        let (mut due, mut held) = (Vec::new(), Vec::new());
        for (address, hop) in &mut self.datagrams.hops {
            if now >= hop.since + HOLD_MAX {
                held.append(&mut hop.held);
            }
            if hop.solicitations > 0 && now >= hop.solicit_at {
                due.push(*address);
            }
        }
        self.return_held(held);
        for address in due {
            match self.datagrams.hops.get_mut(&address) {
                Some(hop) if hop.solicitations < SOLICITATIONS_MAX => {
                    hop.solicitations += 1;
                    hop.solicit_at = now + SOLICIT_INTERVAL;
                    self.solicit(now, address);
                }
                _ => {
                    let removed = self.datagrams.hops.remove(&address);
                    removed.into_iter().for_each(|hop| self.drop_hop(hop));
                }
            }
        }
        true
    }

    /// Delivers received datagrams to the clients, as far as their credit permits. Returns true if there were any.
    pub(super) fn deliver_datagrams(&mut self) -> bool {
        let Self { datagrams: Datagrams { ports, spare, .. }, sockets, shards, stats, .. } = self;
        let mut work = false;
        for (number, Port { client, socket, delivered }) in ports {
            let socket = sockets.get_mut::<Socket<'_>>(*socket);
            while *delivered < DATAGRAMS_DELIVERED_MAX
                && let Ok((octets, meta)) = socket.recv()
            {
                // The destination address of a received datagram is always set.
                let Some(destination) = meta.local_address else { continue };
                let mut data = spare.pop().unwrap_or_default();
                data.clear();
                data.extend_from_slice(octets);
                let source = SocketAddr::new(meta.endpoint.addr.into(), meta.endpoint.port);
                let destination = SocketAddr::new(destination.into(), *number);
                *delivered += 1;
                stats.datagrams_in += 1;
                work = true;
                let notice = Notice::Datagram { source, destination, data };
                shards[client.shard].notify(client.tag, notice);
            }
        }
        work
    }

    /// Handles the client's consumption of a delivered datagram.
    pub(super) fn consumed_datagram(&mut self, client: ClientId, port: u16, data: Vec<u8>) {
        let Some(found) = self.datagrams.ports.get_mut(&port) else { return };
        if found.client == client {
            found.delivered = found.delivered.saturating_sub(1);
            if self.datagrams.spare.len() < DATAGRAMS_DELIVERED_MAX {
                self.datagrams.spare.push(data);
            }
        }
    }
}
