//! Stalled connections in smoltcp.
//!
//! smoltcp stops its retransmission timer before a fast retransmission. If that segment is dropped since the next hop
//! is unresolved, smoltcp still considers it sent. Then no timer runs, and nothing is sent until the peer times out.
//! Data in flight are normally retransmitted within smoltcp's longest timeout. If nothing was sent for longer, the host
//! generates three duplicate acknowledgments, and smoltcp retransmits the oldest segment.

use offload_engine::{
    chimney::client::OffloadHandle,
    engine::port::FromHost,
    time::{Duration, Instant},
};
use smoltcp::socket::tcp;

use super::{
    Host,
    connection::{Connection, ForcedRetransmit},
    neighbors::SOLICIT_INTERVAL,
};
use crate::{
    observer::Flow,
    wire::{self, Acknowledgment, FrameAddresses},
};

/// Longer than smoltcp's maximum retransmission timeout, one minute.
pub(super) const STALL: Duration = Duration::from_secs(64);
/// The first may have a different window, which starts the count; then RFC 5681 §3.2.
const ACKNOWLEDGMENTS: usize = 5;

impl Host {
    /// Forces a retransmission if data or a FIN is in flight and smoltcp has sent nothing for [`STALL`].
    pub(super) fn wake_stalled(&mut self, now: Instant, handle: OffloadHandle) -> bool {
        let Some(connection) = self.connections.get_mut(&handle) else { return false };
        if connection.stalls_at().is_none_or(|at| now < at) {
            return false;
        }
        let Flow { last_received_at, in_flight_since, .. } = connection.flow;
        let idle = now.saturating_since(last_received_at.max(in_flight_since));
        connection.forced_retransmit = Some(ForcedRetransmit { at: now, idle });
        let socket = self.sockets.get::<tcp::Socket<'_>>(connection.socket);
        if socket.send_queue() == 0 {
            return self.repeat_fin(now, handle);
        }
        let ack = connection.flow.oldest_acknowledgment(connection.rcv_nxt(socket));
        let (local, remote) = (connection.tuple.local(), connection.tuple.remote());
        let macs = (connection.flow.peer_mac, self.config.mac);
        for count in 0..ACKNOWLEDGMENTS {
            let window = if count == 0 { ack.window ^ 1 } else { ack.window };
            let ack = Acknowledgment { window, ..ack };
            let way = FrameAddresses { macs, from: remote, to: local };
            let Some(frame) = wire::ack_frame(way, u8::MAX, &ack) else { return false };
            self.process(now, frame);
        }
        true
    }

    /// Retransmits a FIN that is alone in flight: fast retransmission covers only data.
    fn repeat_fin(&mut self, now: Instant, handle: OffloadHandle) -> bool {
        let Some(connection) = self.connections.get_mut(&handle) else { return false };
        let (local, remote) = (connection.tuple.local(), connection.tuple.remote());
        let (shard, seen) = (connection.shard, connection.flow.peer_mac);
        if !connection.send.shutdown || connection.flow.snd_una != connection.send.end() {
            return false;
        }
        let ack = connection.flow.acknowledgment(self.timestamps.at(now));
        let fin = Acknowledgment { seq: connection.flow.snd_una, fin: true, ..ack };
        let hop = self.config.reply_hop(remote.ip());
        let Some(mac) = self.mac_of_hop(now, hop, remote.ip(), seen) else {
            self.solicit(now, hop);
            return true;
        };
        if let Some(connection) = self.connections.get_mut(&handle) {
            connection.flow.repeats_fin(now);
        }
        let way = FrameAddresses { macs: (self.config.mac, mac), from: local, to: remote };
        if let Some(frame) = wire::ack_frame(way, self.config.tcp.ttl_or_hop_limit, &fin) {
            self.stats.frames_out += 1;
            self.shards[shard].send_to_engine(FromHost::Frame(frame));
        }
        true
    }
}

impl Connection {
    /// Time of the next [`Host::wake_stalled`] if nothing is sent before. It is repeated every second: the next hop may
    /// still be unresolved.
    pub(super) fn stalls_at(&self) -> Option<Instant> {
        let is_in_flight = self.flow.stack_max != self.flow.snd_una;
        let again =
            self.forced_retransmit.map(|forced_retransmit| forced_retransmit.at + SOLICIT_INTERVAL);
        is_in_flight.then(|| (self.flow.last_sent_at + STALL).max(again.unwrap_or(Instant::ZERO)))
    }

    /// Time without segments of the peer before the forced retransmission, if none has arrived since.
    pub(super) fn idle_before_forced_retransmit(&self) -> Option<Duration> {
        let forced_retransmit = self
            .forced_retransmit
            .filter(|forced_retransmit| forced_retransmit.at > self.flow.last_received_at);
        forced_retransmit.map(|forced_retransmit| forced_retransmit.idle)
    }
}
