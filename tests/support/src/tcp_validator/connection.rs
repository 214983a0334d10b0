//! One connection as observed on the wire of the host.
//!
//! Sequence numbers are unwrapped: 64 bits whose low half is the number in the header.

use std::collections::{HashSet, VecDeque};
use std::fmt::Write as _;

use super::packet::{Mac, Packet};
use super::{KEPT_BYTES_MAX, Way};
use crate::ranges::Ranges;

/// Added to an ISN, so that the number before it is positive too.
const ORIGIN: u64 = 1 << 32;
/// Letters of SYN, FIN, RST, ECE, CWR and a CE mark in a line of [`Connection::recent`].
const LETTERS: [char; 6] = ['S', 'F', 'R', 'E', 'W', 'C'];
/// Segments kept for the report of a violation.
const RECENT_MAX: usize = 40;

/// Number nearest to `near` whose low half is `number`.
pub(super) fn unwrap(near: u64, number: u32) -> u64 {
    let distance = number.wrapping_sub(near as u32).cast_signed();
    near.saturating_add_signed(i64::from(distance))
}

/// Fields of a SYN.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Syn {
    pub(super) isn: u64,
    pub(super) mss: Option<u16>,
    pub(super) window_scale: Option<u8>,
    pub(super) sack: bool,
    pub(super) timestamps: bool,
    pub(super) has_ack: bool,
    pub(super) ece: bool,
    pub(super) cwr: bool,
}

impl Syn {
    pub(super) fn of(packet: &Packet<'_>) -> Self {
        Self {
            isn: ORIGIN + u64::from(packet.seq),
            mss: packet.mss,
            window_scale: packet.window_scale,
            sack: packet.sack_permitted,
            timestamps: packet.timestamps.is_some(),
            has_ack: packet.ack.is_some(),
            ece: packet.ece,
            cwr: packet.cwr,
        }
    }
}

/// Options negotiated by both SYNs, from the host's point of view.
#[derive(Clone, Copy, Debug)]
pub(super) struct Agreed {
    /// Window scale of the host's advertised windows.
    pub(super) our_scale: u8,
    /// Window scale of the peer's advertised windows.
    pub(super) their_scale: u8,
    pub(super) sack: bool,
    pub(super) timestamps: bool,
    pub(super) ecn: bool,
}

/// Send direction of the host.
#[derive(Debug, Default)]
pub(super) struct Sending {
    /// SND.UNA that the host must have processed.
    pub(super) una_known: u64,
    /// SND.UNA that the host may have processed.
    pub(super) una: u64,
    /// Acknowledgments within the lag: arrival time and SND.UNA.
    pub(super) una_pending: VecDeque<(u64, u64)>,
    /// One beyond the highest sequence number sent.
    pub(super) max: u64,
    /// Sequence number of the FIN.
    pub(super) fin: Option<u64>,
    /// Bytes from `kept_from` on.
    pub(super) kept: VecDeque<u8>,
    pub(super) kept_from: u64,
    /// Rightmost edge of the peer's window.
    pub(super) edge: u64,
}

impl Sending {
    fn begin(&mut self, isn: u64) {
        *self = Self {
            una_known: isn,
            una: isn,
            max: isn + 1,
            kept_from: isn + 1,
            edge: isn + 1,
            ..Self::default()
        };
    }

    /// One beyond the last byte sent.
    pub(super) fn data_end(&self) -> u64 {
        self.kept_from + self.kept.len() as u64
    }

    /// Advances the time: acknowledgments older than the lag become binding.
    pub(super) fn advance(&mut self, time_ns: u64, lag_ns: u64) {
        while let Some(&(arrived_ns, una)) = self.una_pending.front()
            && arrived_ns + lag_ns < time_ns
        {
            self.una_known = self.una_known.max(una);
            self.una_pending.pop_front();
        }
        let old = self.una_known.saturating_sub(KEPT_BYTES_MAX).saturating_sub(self.kept_from);
        let old = (old as usize).min(self.kept.len());
        self.kept.drain(..old);
        self.kept_from += old as u64;
    }
}

/// Receive direction of the host.
#[derive(Debug, Default)]
pub(super) struct Receiving {
    pub(super) arrived: Ranges,
    /// End of the data received without a gap.
    pub(super) next: u64,
    pub(super) fin: Option<u64>,
    /// Highest SEG.ACK sent.
    pub(super) acknowledged: u64,
    /// Rightmost edge advertised.
    pub(super) edge: u64,
    /// Ranges reported in SACK blocks.
    pub(super) reported: Ranges,
    /// True if a segment has arrived since the host last sent one.
    pub(super) unanswered: bool,
}

/// Timestamps of both sides.
#[derive(Debug, Default)]
pub(super) struct Stamps {
    /// Time and value of the host's first TSval.
    pub(super) first: Option<(u64, u32)>,
    pub(super) last: Option<u32>,
    /// TSvals received.
    pub(super) arrived: HashSet<u32>,
    pub(super) newest_arrived: Option<u32>,
    pub(super) echoed: Option<u32>,
}

/// ECN state (RFC 3168).
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// True if a CE mark has arrived on data.
    pub(super) ce_received: bool,
    /// Arrival time and end of the first marked data that the host must echo, until CWR arrives.
    pub(super) echo_due: Option<(u64, u64)>,
    /// Arrival time of the last CWR.
    pub(super) cwr_at: Option<u64>,
}

/// Fields that are constant in all frames of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ConnectionConstants {
    pub(super) source_mac: Mac,
    pub(super) ttl: u8,
    pub(super) dscp: u8,
}

/// State of one connection.
#[derive(Debug, Default)]
pub(super) struct Connection {
    pub(super) ours: Option<Syn>,
    pub(super) theirs: Option<Syn>,
    pub(super) sending: Sending,
    pub(super) receiving: Receiving,
    pub(super) stamps: Stamps,
    pub(super) marks: Marks,
    pub(super) constants: Option<ConnectionConstants>,
    /// True if the host, or possibly the peer, has reset it; a later SYN then starts a new connection.
    pub(super) is_reset: bool,
    recent: VecDeque<RecentSegment>,
}

#[derive(Debug)]
struct RecentSegment {
    time_ns: u64,
    way: Way,
    seq: u32,
    ack: Option<u32>,
    bytes: usize,
    window: u16,
    /// Flags in the order of [`LETTERS`].
    flags: [bool; 6],
    timestamps: Option<(u32, u32)>,
    sack: Vec<(u32, u32)>,
}

impl Connection {
    /// Records the host's first SYN.
    pub(super) fn open(&mut self, syn: Syn) {
        self.ours = Some(syn);
        self.sending.begin(syn.isn);
    }

    /// Records the peer's first SYN.
    pub(super) fn opened(&mut self, syn: Syn) {
        self.theirs = Some(syn);
        self.receiving = Receiving {
            next: syn.isn + 1,
            acknowledged: syn.isn,
            edge: syn.isn + 1,
            ..Receiving::default()
        };
    }

    /// Negotiated options; `None` before both SYNs were observed.
    pub(super) fn agreed(&self) -> Option<Agreed> {
        let (ours, theirs) = (self.ours?, self.theirs?);
        let scales = ours.window_scale.zip(theirs.window_scale).unwrap_or((0, 0));
        let (offer, answer) = if ours.has_ack { (theirs, ours) } else { (ours, theirs) };
        Some(Agreed {
            our_scale: scales.0,
            their_scale: scales.1,
            sack: ours.sack && theirs.sack,
            timestamps: ours.timestamps && theirs.timestamps,
            // RFC 3168 §6.1.1.
            ecn: offer.ece && offer.cwr && answer.ece && !answer.cwr,
        })
    }

    /// True if both FINs were sent and acknowledged.
    pub(super) fn is_closed(&self) -> bool {
        let is_acknowledged = self.sending.fin.is_some_and(|fin| self.sending.una > fin);
        is_acknowledged && self.receiving.fin.is_some_and(|fin| self.receiving.acknowledged > fin)
    }

    /// Records a segment for the report of a violation.
    pub(super) fn record(&mut self, time_ns: u64, way: Way, packet: &Packet<'_>) {
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        let Packet { syn, fin, rst, ece, cwr, ip, .. } = packet;
        self.recent.push_back(RecentSegment {
            time_ns,
            way,
            seq: packet.seq,
            ack: packet.ack,
            bytes: packet.payload.len(),
            window: packet.window,
            flags: [*syn, *fin, *rst, *ece, *cwr, ip.ecn == 3],
            timestamps: packet.timestamps,
            sack: packet.sack.clone(),
        });
    }

    /// Recent segments, one per line, with numbers relative to the ISNs.
    pub(super) fn recent(&self) -> String {
        let isn = |syn: Option<Syn>| syn.map_or(0, |syn| syn.isn as u32);
        let (ours, theirs) = (isn(self.ours), isn(self.theirs));
        let mut text = String::from("\n");
        for noted in &self.recent {
            let RecentSegment { time_ns, way, seq, ack, bytes, window, flags, timestamps, sack } =
                noted;
            let letters = LETTERS.iter().zip(flags).filter(|(_, set)| **set);
            let letters: String = letters.map(|(letter, _)| letter).collect();
            let (arrow, from, to) = match way {
                Way::Sent => ("->", ours, theirs),
                Way::Received => ("  <-", theirs, ours),
            };
            let millis = *time_ns as f64 / 1e6;
            let (seq, ack) = (seq.wrapping_sub(from), ack.map(|ack| ack.wrapping_sub(to)));
            let sack: Vec<_> = sack
                .iter()
                .map(|(start, end)| (start.wrapping_sub(to), end.wrapping_sub(to)))
                .collect();
            let _ = writeln!(
                text,
                "  {millis:>12.6} {arrow} {letters} {seq}+{bytes} ack {ack:?} win {window} ts \
                 {timestamps:?} sack {sack:?}"
            );
        }
        text
    }
}
