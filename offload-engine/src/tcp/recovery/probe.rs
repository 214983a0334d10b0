//! Tail loss probes (RFC 8985 §7).
//!
//! What differs from the RFC:
//!
//! - Two numbers are larger. They guard against peers whose TCP runs in a process: it may wait for a
//!   processor for a scheduler's slice, several ms, and a probe sent meanwhile is wasted. A card that probes
//!   200 us after the last segment of each message would send most of them twice.
//! - In fast recovery there is a probe too, once in each pause: the last retransmissions are a tail like any
//!   other, and PRR may hold the next one back for an acknowledgement that cannot come. Eight times at most.
//! - There are probes without SACK: a duplicate ACK that comes after one, for less than it, is taken for its
//!   answer, and counts for as many as fast retransmit needs.

use super::{Ack, Episode, Recovery, Scoreboard};
use crate::{
    tcp::seq::Position,
    time::{Duration, Instant},
};

/// TLP.max_ack_delay: assumed delay of a peer's delayed ACK when one segment is in flight. Twice Linux' and our
/// own 40 ms and a bit, so that an ACK sent at the last moment, by a timer that is late, is still in time.
const PEER_ACK_DELAY: Duration = Duration::from_millis(100);
/// Smallest probe time-out; RFC 8985 has none, Linux has 2 ms more than twice the RTT.
const TIMEOUT_MIN: Duration = Duration::from_millis(10);
/// Probe time-out without an RTT sample (RFC 8985 §7.2).
const TIMEOUT_INITIAL: Duration = Duration::from_secs(1);

/// Probes of one fast recovery. One repairs a segment at most; a peer that has thrown away what it had selectively
/// acknowledged needs a time-out, which repairs all (RFC 2018 §8).
const EPISODE_PROBES_MAX: u8 = 8;

/// A probe that is not answered yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct TailProbe {
    /// TLP.end_seq.
    pub(super) end: Position,
    /// TLP.is_retrans.
    pub(super) retransmission: bool,
}

/// An acknowledgement's verdict on a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Nothing yet.
    Waits,
    /// It was new data, or it and the original have arrived: no loss.
    Over,
    /// It has arrived and the original has not.
    Repaired,
}

impl TailProbe {
    /// RFC 8985 §7.4.2.
    pub(super) fn judge(&self, ack: &Ack<'_>, acked: u64, dsack: bool) -> Verdict {
        if ack.to < self.end {
            return Verdict::Waits;
        }
        let reported = dsack && ack.duplicate_report.is_some_and(|(_, end)| end == self.end);
        let plain = ack.bare && ack.sacks.is_empty() && ack.duplicate_report.is_none();
        if !self.retransmission || reported {
            Verdict::Over
        } else if ack.to > self.end {
            Verdict::Repaired
        } else if plain && acked == 0 {
            Verdict::Over
        } else {
            Verdict::Waits
        }
    }
}

/// When a probe is due (RFC 8985 §7.2); `lone`: one segment is in flight.
fn due(now: Instant, srtt: Option<Duration>, lone: bool) -> Instant {
    let timeout = srtt.map_or(now + TIMEOUT_INITIAL, |srtt| now + srtt + srtt);
    let timeout = if lone { timeout + PEER_ACK_DELAY } else { timeout };
    timeout.max(now + TIMEOUT_MIN)
}

impl Recovery {
    /// Whether a tail loss probe may be sent (RFC 8985 §7.2).
    #[inline]
    pub(in super::super) fn may_probe(&self) -> bool {
        let quiet = match self.episode {
            Episode::Open => self.board.sacked() == 0,
            Episode::Fast { .. } => self.episode_probes < EPISODE_PROBES_MAX,
            Episode::Timeout { .. } => false,
        };
        self.options.tail_loss_probe
            && quiet
            && self.probe.is_none()
            && (self.is_fast() || !self.board.has_lost())
            && self.board.in_flight() > 0
    }

    /// When a tail loss probe is due; `None` when none is allowed (RFC 8985 §7.2). `timeout` is when the
    /// retransmission timer is: if that is sooner the probe takes its place, once. A probe without SACK is beyond
    /// the RFC and does not.
    #[inline]
    pub(in super::super) fn probe_deadline(
        &self,
        now: Instant,
        srtt: Option<Duration>,
        mss: u64,
        timeout: Instant,
    ) -> Option<Instant> {
        if !self.may_probe() {
            return None;
        }
        let probe = due(now, srtt, self.board.in_flight() <= mss);
        let allowed = self.sack || srtt.is_some() && probe < timeout;
        allowed.then(|| probe.min(timeout))
    }

    /// A tail loss probe was sent that ends at `end`.
    pub(in super::super) fn probe_sent(&mut self, end: Position, retransmission: bool) {
        self.probe = Some(TailProbe { end, retransmission });
        self.episode_probes = self.episode_probes.saturating_add(1);
    }

    /// The bytes that a probe without new data resends: the last segment in flight, or in fast recovery the first
    /// that is lost and waits for the window, or the first in flight, because its loss would hold up everything.
    pub(in super::super) fn probe_bytes(&mut self, mss: u64) -> Option<(Position, Position)> {
        let mss = mss.max(1);
        if self.episode == Episode::Open {
            let last = self.board.last()?;
            let skip = last.len().saturating_sub(mss);
            return Some((last.start + skip, last.end));
        }
        let in_flight = |board: &Scoreboard| board.first_in_flight().map(|r| (r.start, r.end));
        let (start, end) = self.board.next_lost(mss).or_else(|| in_flight(&self.board))?;
        Some((start, end.min(start + mss)))
    }

    /// Whether a probe prefers new data to old (RFC 8985 §7.3).
    pub(in super::super) fn probes_with_new_data(&self) -> bool {
        self.episode == Episode::Open
    }
}
