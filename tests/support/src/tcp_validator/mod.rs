//! Whether a host's frames are those of one legal TCP stack.
//!
//! A [`Monitor`] stands on the wire before a host and sees what it sends and what it has been sent, in this
//! order. It knows nothing of stacks, engines or hand-overs: it judges as the peer could, if the peer knew all
//! rules and forgot nothing. A connection that changes stacks in between must pass like one that does not.
//!
//! What the host has not looked at yet, or is free to ignore, is never held against it: a received
//! acknowledgement binds the host only if its segment was acceptable and [`Rules::lag`] has passed. What it may
//! use it may use at once.
//!
//! | module | decides |
//! |---|---|
//! | `packet` | what a frame says, and whether it is intact |
//! | `arrivals` | what the host can know, and what it must know |
//! | `judge` | whether a sent segment is legal, clause by clause ([`Clause`]) |
//! | `feed` | frames out of a running capture |
//!
//! Limits: connections are seen from their SYN; [`KEPT_BYTES_MAX`] of the bytes that the peer has acknowledged
//! are remembered; the first [`VIOLATIONS_MAX`] violations are told.

mod arrivals;
mod connection;
mod feed;
mod judge;
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

/// Bytes that are acknowledged and still compared with what is sent again.
pub const KEPT_BYTES_MAX: u64 = 1 << 20;
/// Violations that are kept.
pub const VIOLATIONS_MAX: usize = 16;

/// Which way a frame went, as the monitored host sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// The host has sent it.
    Sent,
    /// It has come to the host.
    Received,
}

/// What is asked of a host beyond the standards.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Its Ethernet address.
    pub mac: Mac,
    /// Largest IP packet of its link, bytes.
    pub mtu: usize,
    /// True if it gives its link super-segments, which are judged whole.
    pub super_segments: bool,
    /// The largest window that it is configured to advertise, bytes.
    pub window_max: u64,
    /// How long it may take until it has looked at what it was sent. Zero in virtual time: what came at an
    /// earlier moment is known.
    pub lag: Duration,
    /// True if it reads frames in the order in which they come. Those that take another queue's way may be overtaken by
    /// duplicates, behind which data are old, and their acknowledgement need not be taken (RFC 9293 §3.10.7.4).
    pub in_order: bool,
    /// True if it may send RST on a connection that is not over.
    pub resets: bool,
    /// True if it may echo the timestamp of whatever has come last, as smoltcp does (RFC 7323 §4.3 says which).
    pub like_smoltcp: bool,
}

/// What a segment can violate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Clause {
    /// Both checksums are right, no reserved bit and no URG is set, ACK is (RFC 9293 §3.1, §3.10).
    Header,
    /// A SYN keeps its ISN and options; nothing but RST comes before it (RFC 9293 §3.5).
    Handshake,
    /// SEG.SEQ is at or after SND.UNA (one before it: a probe), and new bytes follow the sent ones without a gap
    /// (RFC 9293 §3.4).
    Sequence,
    /// A byte never changes (RFC 9293 §3.4).
    Content,
    /// The FIN keeps its place, and no byte comes after it (RFC 9293 §3.6).
    Fin,
    /// No byte beyond the peer's window, except the one that probes a closed window (RFC 9293 §3.8.6).
    PeerWindow,
    /// No more in a segment than the peer's MSS and the link allow (RFC 9293 §3.7.1, RFC 6691).
    SegmentSize,
    /// SEG.ACK never goes back and is never beyond what has come (RFC 9293 §3.4).
    Acknowledgement,
    /// The right window edge moves left by less than a unit of the scale (RFC 7323 §2.4), which also fixes the
    /// scale.
    RightEdge,
    /// The window is at most what the host was configured for.
    WindowLimit,
    /// Timestamps on all segments or on none, TSval never goes back and counts milliseconds (RFC 7323 §3.2, §5.4).
    Timestamps,
    /// TSecr is a TSval that has come, and never older than one before (RFC 7323 §4.3).
    Echo,
    /// SACK blocks were agreed on and name what has come (RFC 2018 §4, RFC 2883 §4).
    Sack,
    /// What a SACK block has named is acknowledged with what leads up to it (RFC 2018 §8).
    Reneging,
    /// TTL, DSCP and addresses stay, DF is set (RFC 1191 §3, RFC 6864 §4.1).
    Ip,
    /// ECN bits where RFC 3168 §6.1 has them, and echoes of what has come.
    Ecn,
    /// RST although nobody asked for it. What comes for a connection that both have closed is answered so (RFC 9293
    /// §3.10.7.1).
    Reset,
}

/// A segment that no legal stack would have sent.
#[derive(Clone, Debug)]
pub struct Violation {
    /// What it violates.
    pub clause: Clause,
    /// When it was sent, in nanoseconds of the capture's clock.
    pub time_ns: u64,
    /// The host's end and the peer's.
    pub connection: (SocketAddr, SocketAddr),
    /// How.
    pub detail: String,
    /// The segments of the connection up to it, one a line.
    pub before: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clause, time_ns, connection: (local, remote), detail, before } = self;
        write!(f, "{before}{clause:?} at {time_ns} ns, {local} to {remote}: {detail}")
    }
}

/// What a host has sent, and RSTs that it was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Connections seen.
    pub connections: u64,
    /// Segments.
    pub segments: u64,
    /// Bytes of payload sent for the first time.
    pub bytes: u64,
    /// Segments with a byte or FIN that was sent before.
    pub retransmitted: u64,
    /// Bytes of payload sent before.
    pub bytes_retransmitted: u64,
    /// Empty segments that say nothing new: same acknowledgement, same edge, no SACK block, and no segment that
    /// they could answer.
    pub idle_acks: u64,
    /// Segments with SACK blocks.
    pub with_sack: u64,
    /// Probes of closed windows, and keep-alive probes.
    pub probes: u64,
    /// Segments with ECE.
    pub echoes: u64,
    /// RSTs.
    pub resets: u64,
    /// RSTs of the peer's, on connections that are not over.
    pub resets_heard: u64,
    /// FINs, each once.
    pub fins: u64,
}

/// Stands before a host and judges what it sends.
#[derive(Debug)]
pub struct Monitor {
    rules: Rules,
    connections: HashMap<(SocketAddr, SocketAddr), Connection>,
    violations: Vec<Violation>,
    violations_not_kept: usize,
    counts: Counts,
}

impl Monitor {
    /// For a host of these rules.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            connections: HashMap::new(),
            violations: Vec::new(),
            violations_not_kept: 0,
            counts: Counts::default(),
        }
    }

    /// The next frame on the host's wire. What is not TCP is nobody's business here.
    pub fn frame(&mut self, time_ns: u64, way: Way, frame: &[u8]) {
        let Some(packet) = Packet::parse(frame) else { return };
        match way {
            Way::Sent => self.sent(time_ns, &packet),
            // Damaged on the way, or flooded by a switch: as if it had not come.
            Way::Received if !packet.is_intact || packet.destination_mac != self.rules.mac => {}
            Way::Received => {
                let connection = self.connections.entry((packet.to, packet.from)).or_default();
                if packet.syn && packet.ack.is_none() && connection.is_reset {
                    *connection = Connection::default();
                }
                connection.note(time_ns, way, &packet);
                let is_reset = packet.rst && !connection.is_closed();
                self.counts.resets_heard += u64::from(is_reset);
                let may_bind = self.rules.in_order || packet.payload.is_empty();
                connection.arrived(time_ns, &packet, may_bind);
            }
        }
    }

    fn sent(&mut self, time_ns: u64, packet: &Packet<'_>) {
        let ends = (packet.from, packet.to);
        let connection = self.connections.entry(ends).or_default();
        connection.note(time_ns, Way::Sent, packet);
        let Err((clause, detail)) =
            connection.judge(time_ns, packet, &self.rules, &mut self.counts)
        else {
            return;
        };
        if self.violations.len() < VIOLATIONS_MAX {
            let before = connection.recent();
            self.violations.push(Violation { clause, time_ns, connection: ends, detail, before });
        } else {
            self.violations_not_kept += 1;
        }
    }

    /// What was not legal so far.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// What was sent so far.
    pub fn counts(&self) -> Counts {
        Counts { connections: self.connections.len() as u64, ..self.counts }
    }

    /// Asserts that all was legal, and returns what was sent.
    ///
    /// # Panics
    ///
    /// With the first violations, and the segments before the first of them.
    #[track_caller]
    pub fn expect_legal(&self, who: &str) -> Counts {
        let Some(first) = self.violations.first() else { return self.counts() };
        let others: Vec<_> = self.violations[1..]
            .iter()
            .map(|Violation { clause, time_ns, detail, .. }| {
                format!("\n  then {clause:?} at {time_ns} ns: {detail}")
            })
            .collect();
        let more = self.violations_not_kept;
        let Violation { clause, time_ns, detail, .. } = first;
        let text = format!(
            "{clause:?} at {time_ns} ns: {detail}\n{who}: {first}{}\n  and {more} more",
            others.concat()
        );
        fail(Class::IllegalOnTheWire, &text);
    }
}
