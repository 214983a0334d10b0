//! Validator: are the frames of a host those of one legal TCP stack.
//!
//! A [`Monitor`] observes the wire of a host: the frames sent and the frames received, in this order. It has no
//! notion of stacks, engines or migrations. It checks from the peer's point of view, with all rules and the
//! full history. A connection that changes stacks must pass like one that does not.
//!
//! The host is not bound by input that it may not have processed yet or may ignore. A received acknowledgment
//! binds the host only if its segment was acceptable and [`Rules::lag`] has passed. The host may use it
//! immediately.
//!
//! | module | content |
//! |---|---|
//! | `packet` | parsed frame and its integrity |
//! | `arrivals` | input that the host may have processed, and input that it must have processed |
//! | `checks` | legality of a sent segment, clause by clause ([`Clause`]) |
//! | `feed` | frames of a running capture |
//!
//! Limits: connections are observed from their SYN; [`KEPT_BYTES_MAX`] of the bytes that the peer has
//! acknowledged are kept; the first [`VIOLATIONS_MAX`] violations are reported.

mod arrivals;
mod checks;
mod connection;
mod feed;
mod packet;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

pub use self::feed::Feed;
pub use self::packet::Mac;
use self::{connection::Connection, packet::Packet};
use crate::seeds::{Class, fail};

/// Acknowledged bytes that are kept and compared with retransmissions.
pub const KEPT_BYTES_MAX: u64 = 1 << 20;
/// Maximum violations kept.
pub const VIOLATIONS_MAX: usize = 16;

/// Direction of a frame, from the point of view of the monitored host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Sent by the host.
    Sent,
    /// Received by the host.
    Received,
}

/// Configuration of a host, and requirements beyond the standards.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Ethernet address of the host.
    pub mac: Mac,
    /// Largest IP packet of the link, bytes.
    pub mtu: usize,
    /// True if the host passes GSO packets to its link, which are checked as a whole.
    pub gso_packets: bool,
    /// Largest window that the host is configured to advertise, bytes.
    pub window_max: u64,
    /// Maximum time until the host has processed a received frame. Zero in virtual time: frames of an earlier
    /// instant have been processed.
    pub lag: Duration,
    /// True if the host processes frames in the order of arrival. Frames that arrive through another queue may
    /// be overtaken by duplicates; data is then old, and its acknowledgment may be ignored (RFC 9293
    /// §3.10.7.4).
    pub in_order: bool,
    /// True if the host may send RST on an open connection.
    pub resets: bool,
    /// True if the host may echo the latest timestamp received, as smoltcp does (RFC 7323 §4.3 defines which to
    /// echo).
    pub echoes_latest_timestamp: bool,
}

/// Rule that a segment can violate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Clause {
    /// Checksums are correct, the reserved bits and URG are clear, ACK is set (RFC 9293 §3.1, §3.10).
    Header,
    /// A SYN keeps its ISN and options; only RST may precede it (RFC 9293 §3.5).
    Handshake,
    /// SEG.SEQ is at or after SND.UNA (one before it: a probe), and new bytes follow the sent ones without a gap
    /// (RFC 9293 §3.4).
    Sequence,
    /// A byte never changes when retransmitted (RFC 9293 §3.4).
    Content,
    /// The FIN keeps its sequence number, and no byte follows it (RFC 9293 §3.6).
    Fin,
    /// No byte beyond the peer's window, except the one that probes a closed window (RFC 9293 §3.8.6).
    PeerWindow,
    /// A segment does not exceed the peer's MSS and the link's MTU (RFC 9293 §3.7.1, RFC 6691).
    SegmentSize,
    /// SEG.ACK never decreases and never exceeds the received data (RFC 9293 §3.4).
    Acknowledgment,
    /// The right window edge moves left by less than a unit of the scale (RFC 7323 §2.4), which also verifies
    /// the scale.
    RightEdge,
    /// The window does not exceed the configured maximum of the host.
    WindowLimit,
    /// Timestamps are on all segments or on none; TSval never decreases and counts milliseconds (RFC 7323 §3.2,
    /// §5.4).
    Timestamps,
    /// TSecr is a received TSval, and never older than an earlier echo (RFC 7323 §4.3).
    Echo,
    /// SACK was negotiated, and SACK blocks cover received bytes (RFC 2018 §4, RFC 2883 §4).
    Sack,
    /// Bytes in a SACK block are acknowledged together with the bytes before them (RFC 2018 §8).
    Reneging,
    /// TTL, DSCP and addresses are constant, DF is set (RFC 1191 §3, RFC 6864 §4.1).
    Ip,
    /// ECN bits follow RFC 3168 §6.1, and ECE echoes a received mark.
    Ecn,
    /// An RST without cause. A segment for a connection that both sides have closed causes an RST (RFC 9293
    /// §3.10.7.1).
    Reset,
}

/// A segment that no legal stack would have sent.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Violated rule.
    pub clause: Clause,
    /// Time of the segment, in nanoseconds of the capture's clock.
    pub time_ns: u64,
    /// Endpoints of the host and of the peer.
    pub connection: (SocketAddr, SocketAddr),
    /// Description.
    pub detail: String,
    /// Segments of the connection up to the violation, one per line.
    pub before: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clause, time_ns, connection: (local, remote), detail, before } = self;
        write!(f, "{before}{clause:?} at {time_ns} ns, {local} to {remote}: {detail}")
    }
}

/// Counters of the host's segments, and of received RSTs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Connections seen.
    pub connections: u64,
    /// Segments.
    pub segments: u64,
    /// Payload bytes sent for the first time.
    pub bytes: u64,
    /// Segments that repeat a byte or the FIN.
    pub retransmitted: u64,
    /// Payload bytes retransmitted.
    pub bytes_retransmitted: u64,
    /// Empty segments without new information: same acknowledgment, same right edge, no SACK block, and no
    /// received segment to acknowledge.
    pub idle_acks: u64,
    /// Segments with SACK blocks.
    pub with_sack: u64,
    /// Probes of closed windows, and keep-alive probes.
    pub probes: u64,
    /// Segments with ECE.
    pub echoes: u64,
    /// RSTs.
    pub resets: u64,
    /// RSTs of the peer, on open connections.
    pub peer_resets: u64,
    /// FINs, each counted once.
    pub fins: u64,
}

/// Monitor of a host, which checks the frames that it sends.
#[derive(Debug)]
pub struct Monitor {
    rules: Rules,
    connections: HashMap<(SocketAddr, SocketAddr), Connection>,
    violations: Vec<Violation>,
    violations_dropped: usize,
    counts: Counts,
}

impl Monitor {
    /// Creates a monitor for a host with these rules.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            connections: HashMap::new(),
            violations: Vec::new(),
            violations_dropped: 0,
            counts: Counts::default(),
        }
    }

    /// Processes the next frame on the host's wire. Ignores frames other than TCP.
    pub fn frame(&mut self, time_ns: u64, way: Way, frame: &[u8]) {
        let Some(packet) = Packet::parse(frame) else { return };
        match way {
            Way::Sent => self.sent(time_ns, &packet),
            // A damaged frame, or one flooded by a switch, is treated as lost.
            Way::Received if !packet.is_intact || packet.destination_mac != self.rules.mac => {}
            Way::Received => {
                let connection = self.connections.entry((packet.to, packet.from)).or_default();
                if packet.syn && packet.ack.is_none() && connection.is_reset {
                    *connection = Connection::default();
                }
                connection.record(time_ns, way, &packet);
                let is_reset = packet.rst && !connection.is_closed();
                self.counts.peer_resets += u64::from(is_reset);
                let may_bind = self.rules.in_order || packet.payload.is_empty();
                connection.arrived(time_ns, &packet, may_bind);
            }
        }
    }

    fn sent(&mut self, time_ns: u64, packet: &Packet<'_>) {
        let ends = (packet.from, packet.to);
        let connection = self.connections.entry(ends).or_default();
        connection.record(time_ns, Way::Sent, packet);
        let Err((clause, detail)) =
            connection.validate(time_ns, packet, &self.rules, &mut self.counts)
        else {
            return;
        };
        if self.violations.len() < VIOLATIONS_MAX {
            let before = connection.recent();
            self.violations.push(Violation { clause, time_ns, connection: ends, detail, before });
        } else {
            self.violations_dropped += 1;
        }
    }

    /// Violations so far.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// Counters so far.
    pub fn counts(&self) -> Counts {
        Counts { connections: self.connections.len() as u64, ..self.counts }
    }

    /// Asserts that all segments were legal, and returns the counters.
    ///
    /// # Panics
    ///
    /// With the first violations, and the segments before the first one.
    #[track_caller]
    pub fn expect_legal(&self, host: &str) -> Counts {
        let Some(first) = self.violations.first() else { return self.counts() };
        let further: Vec<_> = self.violations[1..]
            .iter()
            .map(|Violation { clause, time_ns, detail, .. }| {
                format!("\n  then {clause:?} at {time_ns} ns: {detail}")
            })
            .collect();
        let more = self.violations_dropped;
        let Violation { clause, time_ns, detail, .. } = first;
        let text = format!(
            "{clause:?} at {time_ns} ns: {detail}\n{host}: {first}{}\n  and {more} more",
            further.concat()
        );
        fail(Class::IllegalOnTheWire, &text);
    }
}
