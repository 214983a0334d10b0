//! Tail loss probes (RFC 8985 §7).
//!
//! Differences from the RFC:
//!
//! - Two constants are larger, for peers whose TCP runs in a process. Such a peer may wait for a CPU for a scheduler
//!   slice, several ms, and a probe in that time is wasted. A sender that probes 200 us after the last segment of each
//!   message would send most of them twice.
//! - A probe is also sent in fast recovery, once per pause. The last retransmissions are a tail too, and PRR may hold
//!   the next one back for an acknowledgment that cannot arrive. At most eight times.
//! - Probes are also sent without SACK. A duplicate ACK after a probe, below its end, is taken as its response, and
//!   counts as many times as fast retransmit needs.

use super::{Ack, Episode, Recovery, Scoreboard};
use crate::{
    tcp::seq::Position,
    time::{Duration, Instant},
};

/// TLP.max_ack_delay: assumed delay of a peer's delayed ACK if one segment is in flight. More than twice the 40 ms of
/// Linux and of this engine, so that an ACK by a late delayed-ACK timer is still in time.
const PEER_ACK_DELAY: Duration = Duration::from_millis(100);
/// Smallest probe timeout; RFC 8985 has none, Linux uses 2 ms more than twice the RTT.
const TIMEOUT_MIN: Duration = Duration::from_millis(10);
/// Probe timeout without an RTT sample (RFC 8985 §7.2).
const TIMEOUT_INITIAL: Duration = Duration::from_secs(1);

/// Probes per fast recovery. A probe repairs at most one segment; if a peer has reneged on sacked data, a timeout is
/// needed, which repairs all (RFC 2018 §8).
const EPISODE_PROBES_MAX: u8 = 8;

/// Probe without a response yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct TailProbe {
    /// TLP.end_seq.
    pub(super) end: Position,
    /// TLP.is_retrans.
    pub(super) retransmission: bool,
}

/// Result of an acknowledgment for a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ProbeOutcome {
    /// Undecided.
    Pending,
    /// The probe was new data, or the probe and the original have arrived: no loss.
    NoLoss,
    /// The probe has arrived and the original has not.
    Repaired,
}

impl TailProbe {
    /// RFC 8985 §7.4.2.
    pub(super) fn evaluate(&self, ack: &Ack<'_>, acked: u64, dsack: bool) -> ProbeOutcome {
        if ack.to < self.end {
            return ProbeOutcome::Pending;
        }
        let reported = dsack && ack.dsack.is_some_and(|(_, end)| end == self.end);
        let plain = ack.bare && ack.sacks.is_empty() && ack.dsack.is_none();
        if !self.retransmission || reported {
            ProbeOutcome::NoLoss
        } else if ack.to > self.end {
            ProbeOutcome::Repaired
        } else if plain && acked == 0 {
            ProbeOutcome::NoLoss
        } else {
            ProbeOutcome::Pending
        }
    }
}

/// Deadline of a probe (RFC 8985 §7.2); `single` is true if one segment is in flight.
fn due(now: Instant, srtt: Option<Duration>, single: bool) -> Instant {
    let timeout = srtt.map_or(now + TIMEOUT_INITIAL, |srtt| now + srtt + srtt);
    let timeout = if single { timeout + PEER_ACK_DELAY } else { timeout };
    timeout.max(now + TIMEOUT_MIN)
}

impl Recovery {
    /// True if a tail loss probe may be sent (RFC 8985 §7.2).
    #[inline]
    pub(in super::super) fn may_probe(&self) -> bool {
        let permitted = match self.episode {
            Episode::Open => self.board.sacked() == 0,
            Episode::Fast { .. } => self.episode_probes < EPISODE_PROBES_MAX,
            Episode::Timeout { .. } => false,
        };
        self.options.tail_loss_probe
            && permitted
            && self.probe.is_none()
            && (self.is_fast() || !self.board.has_lost())
            && self.board.in_flight() > 0
    }

    /// Deadline of a tail loss probe; `None` if none is allowed (RFC 8985 §7.2). `timeout` is the deadline of the
    /// retransmission timer; if it is earlier, the probe replaces it once. A probe without SACK is an extension of the
    /// RFC and does not.
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

    /// Records the transmission of a tail loss probe that ends at `end`.
    pub(in super::super) fn probe_sent(&mut self, end: Position, retransmission: bool) {
        self.probe = Some(TailProbe { end, retransmission });
        self.episode_probes = self.episode_probes.saturating_add(1);
    }

    /// Bytes that a probe without new data retransmits: the last segment in flight. In fast recovery the first lost
    /// segment not yet sent, otherwise the first in flight, as its loss would block all progress.
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

    /// True if a probe sends new data if possible (RFC 8985 §7.3).
    pub(in super::super) fn probes_with_new_data(&self) -> bool {
        self.episode == Episode::Open
    }
}
