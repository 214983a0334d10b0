//! Neighbor discovery for connections in the handshake, and solicitations of other modules.
//!
//! smoltcp sends one solicitation per second for all sockets together, and the first socket in its set uses it. While
//! one connection solicits a neighbor that does not exist, no other is resolved. So the host solicits for each
//! connection whose SYN is unsent; the answers fill smoltcp's cache. It also answers probes for its own addresses
//! ([`dad`]), which smoltcp drops.

use core::net::IpAddr;

use offload_engine::{
    chimney::client::OffloadHandle,
    time::{Duration, Instant},
};

use super::Host;
use crate::dad;

/// Delay before the host solicits for an unsent SYN: smoltcp's own solicitation is sent first.
pub(super) const SOLICIT_DELAY: Duration = Duration::from_millis(20);
/// Interval between two solicitations (RFC 1122 §2.3.2.1, RFC 4861 RETRANS_TIMER).
pub(super) const SOLICIT_INTERVAL: Duration = Duration::from_secs(1);

impl Host {
    /// Solicits the next hop of a connection in its handshake, if that is due.
    pub(super) fn solicit_next_hop(&mut self, now: Instant, handle: OffloadHandle) -> bool {
        let Some(connection) = self.connections.get_mut(&handle) else { return false };
        if connection.flow.syn_sent() || now < connection.solicit_at {
            return false;
        }
        connection.solicit_at = now + SOLICIT_INTERVAL;
        let (source, remote) = (connection.tuple.local().ip(), connection.tuple.remote().ip());
        if let Some(next_hop) = self.config.next_hop(remote) {
            self.solicit_from(now, source, next_hop);
        }
        true
    }

    /// Solicits a neighbor, from our address of its family.
    pub(super) fn solicit(&mut self, now: Instant, next_hop: IpAddr) {
        let own = self.config.addresses.iter().map(|(own, _)| *own);
        let source = own.into_iter().find(|own| own.is_ipv4() == next_hop.is_ipv4());
        if let Some(source) = source {
            self.solicit_from(now, source, next_hop);
        }
    }

    /// Answers another station's probe for an address of ours. Returns true if the frame is such a probe.
    pub(super) fn defend(&mut self, now: Instant, frame: &[u8]) -> bool {
        let answer = dad::defense(frame, self.config.mac, |address| self.config.is_ours(address));
        let Some(answer) = answer else { return false };
        self.device.sent.push_back(answer);
        self.pass_sent_frames(now);
        true
    }

    pub(super) fn solicit_from(&mut self, now: Instant, source: IpAddr, next_hop: IpAddr) {
        if let Some(frame) = dad::solicitation(self.config.mac, source, next_hop) {
            self.device.sent.push_back(frame);
            self.pass_sent_frames(now);
        }
    }
}
