//! Passive opens: handshakes of accepted connections, before smoltcp has a socket.
//!
//! The host answers a SYN itself, to the source Ethernet address, so an unresolvable source does not block. When the
//! handshake's ACK arrives, the handshake is replayed to a listening socket
//! ([`accept`](crate::handoff::accept::accept)), which then processes that ACK.
//!
//! A half-open connection is stored with its exact options while its listener has room. Further SYNs are answered with
//! SYN cookies, which need no state ([`Isns`](crate::cookie::Isns), RFC 4987 §3.6). So a SYN flood excludes no client.
//!
//! Limits: the listener's backlog, at most [`BACKLOG_MAX`](super::BACKLOG_MAX); with connections in the host
//! [`CONNECTIONS_MAX`].
//! Timers: SYN-ACKs are retransmitted after [`SYN_ACK_RTO`], doubling up to [`SYN_ACK_RTO_MAX`], for [`HANDSHAKE_MAX`].
//! While the listener is full, a new SYN replaces a half-open connection after [`HALF_OPEN_YIELDS`].

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use offload_engine::{
    chimney::client::OffloadHandle,
    engine::port::FromHost,
    frame::FlowKey,
    listing::{ConnectionRow, MigrationCounts, OffloadState, SocketState},
    state::MacAddress,
    tcp::{Ecn, Flags, SeqNum, Timestamps},
    time::{Duration, Instant},
};
use smoltcp::wire::IpListenEndpoint;

use super::{
    CONNECTIONS_MAX, HANDSHAKE_MAX, Host,
    connection::{Connection, Hold, Listener, Owner, ReceiveHalf, SendHalf, Stage, specified},
    history::History,
    ingress::Verdict,
    neighbors::SOLICIT_DELAY,
    shards::{ClientId, ShardId},
};
use crate::{
    clock::to_smoltcp,
    cookie::{Restored, timestamp_with},
    dad,
    handoff::accept::accept,
    observer::Flow,
    socket::ListenerId,
    window::scale_of_buffer,
    wire::{
        self, Acknowledgment, Frame, FrameAddresses, Segment, Syn, SynOptions, WINDOW_SCALE_MAX,
    },
};

/// Time until the first retransmission of a SYN-ACK (RFC 6298 §2.1).
const SYN_ACK_RTO: Duration = Duration::from_secs(1);
/// Maximum time between two SYN-ACKs (RFC 6298 §2.5).
const SYN_ACK_RTO_MAX: Duration = Duration::from_secs(60);
/// Age after which a half-open connection in a full backlog may be replaced: three SYN-ACKs are unanswered.
pub(super) const HALF_OPEN_YIELDS: Duration = Duration::from_secs(7);
/// Ethernet and IP headers without options, in bytes, as the host builds them.
const ETHERNET_HEADER_LEN: usize = 14;
const IPV4_HEADER_LEN: usize = 20;
const IPV6_HEADER_LEN: usize = 40;
const TCP_HEADER_LEN: usize = 20;

/// A peer's SYN.
#[derive(Clone, Copy, Debug)]
struct Offer {
    mac: MacAddress,
    irs: SeqNum,
    window: u16,
    options: SynOptions,
    /// TSval, if timestamps are used.
    timestamp: Option<u32>,
    ecn: bool,
    /// True if a CE mark on its data has arrived (RFC 3168 §6.1.3).
    marked: bool,
}

impl Offer {
    /// Timestamps of an answering segment, if they are used.
    fn answer(&self, clock: u32) -> Option<Timestamps> {
        self.timestamp.map(|echo| Timestamps { value: clock, echo })
    }
}

/// A connection in SYN-RECEIVED.
#[derive(Debug)]
pub(super) struct HalfOpen {
    shard: ShardId,
    pub(super) listener: ListenerId,
    tuple: FlowKey,
    offer: Offer,
    iss: SeqNum,
    opened_at: Instant,
    /// Number of SYN-ACKs sent, at least 1, and time of the next.
    sent: u32,
    next_at: Instant,
}

impl HalfOpen {
    pub(super) fn row(&self, handle: OffloadHandle) -> ConnectionRow {
        ConnectionRow {
            handle,
            local: self.tuple.local(),
            remote: Some(self.tuple.remote()),
            state: Some(SocketState::SynReceived),
            offload: OffloadState::InHost,
            recv_q: Some(0),
            send_q: Some(0),
            moves: MigrationCounts::default(),
        }
    }

    fn syn_ack_sent(&mut self, now: Instant) {
        let timeout = SYN_ACK_RTO * 2_u32.saturating_pow(self.sent.min(6));
        self.sent = self.sent.saturating_add(1);
        self.next_at = now + timeout.min(SYN_ACK_RTO_MAX);
    }
}

impl Host {
    /// Handles a SYN for a 4-tuple without a connection.
    pub(super) fn handle_new_syn(
        &mut self,
        now: Instant,
        arrived: ShardId,
        segment: &Segment<'_>,
    ) -> Verdict {
        let tuple = segment.received_on();
        let covers = |(_, listener): &(&u64, &Listener)| listener.covers(tuple.local());
        if !self.listeners.iter().any(|listener| covers(&listener)) {
            return Verdict::Process;
        }
        // RFC 9293 MUST-57, RFC 1122 §4.2.3.10: no broadcast or multicast address on either side.
        if !self.config.is_ours(tuple.local().ip()) || !self.may_open(tuple.remote()) {
            return Verdict::Drop;
        }
        // Matching listeners conflict, or share an address on different shards.
        let place = |host: &Self, only_open: bool| {
            let of_port = host.listeners.iter().filter(covers);
            let open = of_port.filter(|(_, listener)| !only_open || listener.has_room());
            let open = open.map(|(id, listener)| (ListenerId(*id), listener.shard));
            let shard = host.shards.place(arrived, open.clone().map(|(_, shard)| shard))?;
            open.clone().find(|(_, of)| *of == shard)
        };
        let has_place = self.connections.len() + self.half_open.len() < CONNECTIONS_MAX;
        let mut found = place(self, true).filter(|_| has_place);
        if found.is_none() {
            self.stats.listen_overflows += 1;
            if self.make_room(now, tuple.local()) {
                found = place(self, true);
            }
        }
        let offer = self.offer_of(segment);
        if let Some((listener, shard)) = found {
            self.open_half(now, (listener, shard), tuple, offer);
        } else if let Some((_, shard)) = place(self, false) {
            self.send_cookie(now, shard, tuple, &offer);
        }
        Verdict::Drop
    }

    /// True if the peer address may open a connection: it is unicast, not an own address, and has a route.
    fn may_open(&self, remote: SocketAddr) -> bool {
        self.config.is_reachable(remote)
            && self.config.has_route(remote.ip())
            && !self.config.is_ours(remote.ip())
    }

    /// Removes the oldest half-open connection to `local` if it is old enough to be replaced.
    fn make_room(&mut self, now: Instant, local: SocketAddr) -> bool {
        // Handles ascend.
        let oldest = self.half_open.iter().find(|(_, half)| half.tuple.local() == local);
        let yields = oldest.filter(|(_, half)| half.opened_at + HALF_OPEN_YIELDS <= now);
        let Some(handle) = yields.map(|(handle, _)| *handle) else { return false };
        self.stats.attempt_fails += 1;
        self.drop_half_open(handle).is_some()
    }

    fn offer_of(&self, segment: &Segment<'_>) -> Offer {
        let timestamps = segment.timestamps.filter(|_| self.config.timestamps);
        Offer {
            mac: segment.source_mac,
            irs: segment.seq,
            window: segment.window,
            options: segment.syn_options,
            timestamp: timestamps.map(|timestamps| timestamps.value),
            ecn: self.config.ecn && segment.offers_ecn(),
            marked: false,
        }
    }

    fn open_half(
        &mut self,
        now: Instant,
        (listener, shard): (ListenerId, ShardId),
        tuple: FlowKey,
        offer: Offer,
    ) {
        let Some(found) = self.listeners.get_mut(&listener.0) else { return };
        found.half_open += 1;
        let iss = self.isns.isn(now, &tuple);
        let handle = self.shards.new_handle();
        self.shards[shard].connections += 1;
        self.owners.insert(tuple, Owner::HalfOpen(handle));
        let (opened_at, next_at) = (now, now + SYN_ACK_RTO);
        let half = HalfOpen { shard, listener, tuple, offer, iss, opened_at, sent: 1, next_at };
        self.half_open.insert(handle, half);
        self.half_open_at = earlier(self.half_open_at, next_at);
        let clock = self.timestamps.at(now);
        self.send_syn_ack(shard, tuple, &offer, iss, clock);
    }

    /// Answers a SYN without keeping state.
    fn send_cookie(&mut self, now: Instant, shard: ShardId, tuple: FlowKey, offer: &Offer) {
        self.stats.cookies_sent += 1;
        let mut offer = *offer;
        let iss = self.isns.cookie(now, &tuple, offer.irs, offer.options.mss);
        if offer.timestamp.is_none() {
            offer.ecn = false;
            (offer.options.window_scale, offer.options.sack) = (None, false);
        }
        let kept = Restored { options: offer.options, ecn: offer.ecn };
        let clock = timestamp_with(self.timestamps.at(now), kept);
        self.send_syn_ack(shard, tuple, &offer, iss, clock);
    }

    fn send_syn_ack(
        &mut self,
        shard: ShardId,
        tuple: FlowKey,
        offer: &Offer,
        iss: SeqNum,
        clock: u32,
    ) {
        let Some(frame) = self.syn_ack(tuple, offer, iss, clock) else { return };
        self.send_frame(shard, frame);
    }

    /// Builds the answer to an offer, with the options of smoltcp's sockets.
    fn syn_ack(&self, tuple: FlowKey, offer: &Offer, iss: SeqNum, clock: u32) -> Option<Vec<u8>> {
        let ip_header = match tuple.local().ip().is_ipv4() {
            true => IPV4_HEADER_LEN,
            false => IPV6_HEADER_LEN,
        };
        let mss = u16::try_from(self.config.mtu - ip_header - TCP_HEADER_LEN).unwrap_or(u16::MAX);
        let buffer = self.config.receive_buffer;
        let scale = self.receive_scale();
        let syn = Syn {
            seq: iss,
            ack: Some(offer.irs + 1),
            window: u16::try_from(buffer).unwrap_or(u16::MAX),
            options: SynOptions {
                mss: Some(mss),
                window_scale: offer.options.window_scale.map(|_| scale),
                sack: offer.options.sack,
            },
            timestamps: offer.answer(clock),
            ecn: offer.ecn,
        };
        wire::syn_frame(self.reply_addresses(&tuple, offer), self.config.tcp.ttl_or_hop_limit, &syn)
    }

    /// Addresses of frames to the peer.
    fn reply_addresses(&self, tuple: &FlowKey, offer: &Offer) -> FrameAddresses {
        FrameAddresses {
            macs: (self.config.mac, offer.mac),
            from: tuple.local(),
            to: tuple.remote(),
        }
    }

    /// Window scale offered by SYN-ACKs.
    fn receive_scale(&self) -> u8 {
        let scale = scale_of_buffer(self.config.receive_buffer) + self.config.scale_raise();
        scale.min(WINDOW_SCALE_MAX)
    }

    pub(super) fn send_frame(&mut self, shard: ShardId, frame: Vec<u8>) {
        self.stats.frames_out += 1;
        self.shards[shard].send_to_engine(FromHost::Frame(frame));
    }

    /// A segment for a half-open connection (RFC 9293 §3.10.7.4, SYN-RECEIVED).
    pub(super) fn handle_half_open(
        &mut self,
        now: Instant,
        handle: OffloadHandle,
        segment: &Segment<'_>,
    ) -> Verdict {
        let Some(half) = self.half_open.get_mut(&handle) else { return Verdict::Drop };
        let rcv_nxt = half.offer.irs + 1;
        let has = |flag| segment.flags.contains(flag);
        if segment.is_reset() {
            // RFC 5961 §3.2.
            if segment.seq == rcv_nxt {
                self.stats.attempt_fails += 1;
                self.drop_half_open(handle);
            }
            return Verdict::Drop;
        }
        let (shard, tuple, iss) = (half.shard, half.tuple, half.iss);
        if segment.is_open_request() && segment.seq == half.offer.irs {
            self.stats.duplicate_syns += 1;
            // The peer's Ethernet address may have changed.
            half.offer.mac = segment.source_mac;
            let repeated = segment.timestamps.map(|timestamps| timestamps.value);
            half.offer.timestamp = half.offer.timestamp.and(repeated);
            half.sent = half.sent.saturating_add(1);
            let offer = half.offer;
            let clock = self.timestamps.at(now);
            self.send_syn_ack(shard, tuple, &offer, iss, clock);
            return Verdict::Drop;
        }
        let window = u32::try_from(self.config.receive_buffer).unwrap_or(u32::MAX);
        let window = window.min(u16::MAX.into());
        let is_acceptable = segment.seq.is_at_or_after(rcv_nxt)
            && segment.seq.is_before(rcv_nxt + window)
            && !has(Flags::SYN);
        let is_marked = segment.frame.ecn == Ecn::Congestion && segment.payload_len > 0;
        half.offer.marked |= half.offer.ecn && is_marked && !has(Flags::SYN);
        if !is_acceptable {
            self.stats.duplicate_syns += u64::from(has(Flags::SYN));
            let (offer, clock) = (half.offer, self.timestamps.at(now));
            self.challenge(shard, tuple, &offer, iss, clock);
            return Verdict::Drop;
        }
        if !has(Flags::ACK) {
            return Verdict::Drop;
        }
        if segment.ack != iss + 1 {
            // smoltcp answers with RST: it has no socket.
            return Verdict::Process;
        }
        if self.connections.len() >= CONNECTIONS_MAX {
            return Verdict::Drop;
        }
        let Some(mut half) = self.half_open.remove(&handle) else { return Verdict::Drop };
        half.offer.mac = segment.source_mac;
        match self.complete(now, handle, &half) {
            true => self.handle_known(now, handle, segment),
            false => {
                self.half_open.insert(handle, half);
                self.drop_half_open(handle);
                Verdict::Process
            }
        }
    }

    /// Sends a challenge ACK (RFC 5961 §4.2).
    fn challenge(
        &mut self,
        shard: ShardId,
        tuple: FlowKey,
        offer: &Offer,
        iss: SeqNum,
        clock: u32,
    ) {
        // The window that the SYN-ACK offered, as far as its scale permits.
        let window = u16::try_from(self.config.receive_buffer).unwrap_or(u16::MAX);
        let scale = offer.options.window_scale.map_or(0, |_| self.receive_scale());
        let ack = Acknowledgment {
            seq: iss + 1,
            ack: offer.irs + 1,
            window: window >> scale,
            timestamps: offer.answer(clock),
            ece: offer.marked,
            fin: false,
        };
        let way = self.reply_addresses(&tuple, offer);
        if let Some(frame) = wire::ack_frame(way, self.config.tcp.ttl_or_hop_limit, &ack) {
            self.send_frame(shard, frame);
        }
    }

    /// Handles a segment without a connection. Returns `None` unless it returns a cookie, or may be data after one.
    pub(super) fn handle_cookie(
        &mut self,
        now: Instant,
        arrived: ShardId,
        segment: &Segment<'_>,
    ) -> Option<Verdict> {
        let tuple = segment.received_on();
        let has = |flag| segment.flags.contains(flag);
        if !self.isns.expects_cookies(now)
            || !has(Flags::ACK)
            || has(Flags::SYN)
            || has(Flags::RST)
            || !self.config.is_ours(tuple.local().ip())
            || !self.may_open(tuple.remote())
        {
            return None;
        }
        let of_port = self.listeners.iter().filter(|(_, found)| found.covers(tuple.local()));
        let of_port = of_port.map(|(id, listener)| (ListenerId(*id), listener.shard));
        let shard = self.shards.place(arrived, of_port.clone().map(|(_, shard)| shard))?;
        let (listener, _) = of_port.clone().find(|(_, of)| *of == shard)?;
        let (irs, iss) = (segment.seq - 1, segment.ack - 1);
        let timestamps = segment.timestamps.filter(|_| self.config.timestamps);
        let echo = timestamps.map(|timestamps| timestamps.echo);
        let Some(restored) = self.isns.restore(now, &tuple, (irs, iss), echo) else {
            // The opening ACK may be lost, and the first data with it. The peer retransmits them; an RST would abort
            // the connection.
            return (segment.payload_len > 0).then_some(Verdict::Drop);
        };
        if self.connections.len() >= CONNECTIONS_MAX {
            return Some(Verdict::Drop);
        }
        let offer = Offer {
            mac: segment.source_mac,
            irs,
            window: segment.window,
            options: restored.options,
            timestamp: timestamps.map(|timestamps| timestamps.value),
            ecn: self.config.ecn && restored.ecn,
            marked: false,
        };
        // The number of SYN-ACKs sent is unknown. As after a retransmission, the RTT is not measured.
        let (opened_at, next_at) = (now, now);
        let half = HalfOpen { shard, listener, tuple, offer, iss, opened_at, sent: 2, next_at };
        self.listeners.get_mut(&listener.0)?.half_open += 1;
        self.shards[shard].connections += 1;
        let handle = self.shards.new_handle();
        if !self.complete(now, handle, &half) {
            self.half_open.insert(handle, half);
            self.drop_half_open(handle);
            return None;
        }
        self.stats.cookies_accepted += 1;
        Some(self.handle_known(now, handle, segment))
    }

    /// Handles the peer's ACK: creates a smoltcp socket in SYN-RECEIVED, which receives the ACK next. Returns false if
    /// smoltcp rejects the connection.
    fn complete(&mut self, now: Instant, handle: OffloadHandle, half: &HalfOpen) -> bool {
        let &HalfOpen { shard, listener, tuple, offer, iss, opened_at, sent, next_at: _ } = half;
        let Some(found) = self.listeners.get(&listener.0) else { return false };
        let (client, at_once) = (found.client, found.at_once);
        let endpoint = IpListenEndpoint {
            addr: specified(found.local.address).map(Into::into),
            port: found.local.address.port(),
        };
        let listening = || {
            let mut socket = self.make_socket(ClientId { shard, tag: client });
            // Fails only for port 0, which `listen` has replaced.
            socket.listen(endpoint).ok().map(|()| socket)
        };
        let syn = Syn {
            seq: offer.irs,
            ack: None,
            window: offer.window,
            options: offer.options,
            timestamps: offer.timestamp.map(|value| Timestamps { value, echo: 0 }),
            ecn: offer.ecn,
        };
        let way = FrameAddresses {
            macs: (offer.mac, self.config.mac),
            from: tuple.remote(),
            to: tuple.local(),
        };
        let Some(syn) = wire::syn_frame(way, u8::MAX, &syn) else { return false };
        let Some(syn_ack) = self.syn_ack(tuple, &offer, iss, 0) else { return false };
        // Karn's algorithm: the RTT is measured only if the SYN-ACK was sent once.
        let sent_at = if sent == 1 { opened_at } else { now };
        let packet = &syn[ETHERNET_HEADER_LEN..];
        let Some(socket) = accept(to_smoltcp(sent_at), tuple, iss, packet, listening) else {
            tracing::error!(?tuple, "accepted connection rejected by smoltcp");
            return false;
        };
        let mut flow = Flow::new(opened_at);
        if let Frame::Tcp(syn) = wire::parse(&syn) {
            flow.incoming(opened_at, &syn);
        }
        for _ in 0..sent.min(2) {
            if let Frame::Tcp(mut syn_ack) = wire::parse(&syn_ack) {
                flow.outgoing(sent_at, &mut syn_ack);
            }
        }
        flow.ecn_echo = offer.marked;
        self.owners.insert(tuple, Owner::Host(handle));
        let connection = Connection {
            shard,
            client,
            listener: Some(listener),
            tuple,
            socket: self.sockets.add(socket),
            flow,
            scale_raise: self.config.scale_raise(),
            hold: Hold::No,
            offload_requested: self.config.offloads_immediately(at_once, &tuple),
            history: History::new(now),
            stage: Stage::Handshake(now + HANDSHAKE_MAX),
            is_limit_extended: false,
            solicit_at: now + SOLICIT_DELAY,
            forced_retransmit: None,
            send: SendHalf::default(),
            receive: ReceiveHalf::default(),
        };
        self.connections.insert(handle, connection);
        self.cache_neighbor(now, tuple, offer.mac);
        true
    }

    /// Adds the Ethernet address of a peer to smoltcp's neighbor cache. The handshake has proven it reachable, so
    /// smoltcp does not solicit it while other connections wait for their neighbors. The address of a gateway is taken
    /// from its ARP or ND (see `mac_of_hop`).
    fn cache_neighbor(&mut self, now: Instant, tuple: FlowKey, mac: MacAddress) {
        let remote = tuple.remote().ip();
        let hop = self.config.reply_hop(remote);
        if let Some(mac) = self.mac_of_hop(now, hop, remote, mac)
            && let Some(frame) =
                dad::advertisement((hop, mac), (tuple.local().ip(), self.config.mac))
        {
            self.process(now, frame);
        }
    }

    /// Updates the Ethernet address of a peer.
    pub(super) fn move_half_open(&mut self, address: IpAddr, mac: MacAddress) {
        for half in self.half_open.values_mut() {
            if self.config.reply_hop(half.tuple.remote().ip()) == address {
                half.offer.mac = mac;
            }
        }
    }

    /// Drops the state of a half-open connection without sending a segment.
    fn drop_half_open(&mut self, handle: OffloadHandle) -> Option<HalfOpen> {
        let half = self.half_open.remove(&handle)?;
        self.owners.remove(&half.tuple);
        self.shards[half.shard].connections -= 1;
        if let Some(listener) = self.listeners.get_mut(&half.listener.0) {
            listener.half_open -= 1;
        }
        Some(half)
    }

    /// Resets the half-open connections of removed listeners.
    pub(super) fn reset_orphans(&mut self) {
        let orphans = self
            .half_open
            .iter()
            .filter(|(_, half)| !self.listeners.contains_key(&half.listener.0));
        for handle in orphans.map(|(handle, _)| *handle).collect::<Vec<_>>() {
            let Some(half) = self.drop_half_open(handle) else { continue };
            let HalfOpen { shard, tuple, offer, iss, .. } = half;
            let way = self.reply_addresses(&tuple, &offer);
            let ends = (iss + 1, offer.irs + 1);
            if let Some(frame) = wire::bare_reset(way, self.config.tcp.ttl_or_hop_limit, ends) {
                self.send_frame(shard, frame);
            }
        }
    }

    /// Retransmits due SYN-ACKs, and aborts expired handshakes. Returns true if there were any.
    pub(super) fn serve_half_open(&mut self, now: Instant) -> bool {
        if self.half_open_at.is_none_or(|at| now < at) {
            return false;
        }
        let due = self.half_open.iter().filter(|(_, half)| half.next_at <= now);
        for handle in due.map(|(handle, _)| *handle).collect::<Vec<_>>() {
            let Some(half) = self.half_open.get_mut(&handle) else { continue };
            let deadline = half.opened_at + HANDSHAKE_MAX;
            if deadline <= now {
                self.stats.attempt_fails += 1;
                self.drop_half_open(handle);
                continue;
            }
            half.syn_ack_sent(now);
            half.next_at = half.next_at.min(deadline);
            let (shard, tuple, offer, iss) = (half.shard, half.tuple, half.offer, half.iss);
            let clock = self.timestamps.at(now);
            self.send_syn_ack(shard, tuple, &offer, iss, clock);
        }
        self.half_open_at = self.half_open.values().map(|half| half.next_at).min();
        true
    }
}

fn earlier(one: Option<Instant>, other: Instant) -> Option<Instant> {
    Some(one.map_or(other, |one| one.min(other)))
}

#[cfg(test)]
impl HalfOpen {
    pub(super) const fn iss(&self) -> SeqNum {
        self.iss
    }
}
