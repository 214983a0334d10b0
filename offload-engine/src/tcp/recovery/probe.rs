//! Tail loss probes (RFC 8985 s7).
//!
//! What differs from the RFC:
//!
//! - Two numbers are larger. They guard against peers whose TCP runs in a process: it may wait for a
//!   processor for a scheduler's slice, several ms, and a probe sent meanwhile is wasted. A card that probes
//!   200 us after the last segment of each message would send most of them twice.
//! - In fast recovery silence is asked about too, once each time: the last retransmissions are a tail like any
//!   other, and PRR may hold the next one back for an acknowledgement that cannot come. Eight times at most.
//! - There are probes without SACK: a duplicate ACK that comes after one, for less than it, is taken for its
//!   answer, and counts for as many as fast retransmit needs.

use super::Ack;
use crate::{tcp::seq::Position, time::Duration};

/// TLP.max_ack_delay: assumed delay of a peer's delayed ACK when one segment is in flight. Twice Linux' and our
/// own 40 ms and a bit, so that an ACK sent at the last moment, by a timer that is late, is still in time.
const PEER_ACK_DELAY: Duration = Duration::from_millis(100);
/// Smallest probe time-out; RFC 8985 has none, Linux has 2 ms more than twice the RTT.
const TIMEOUT_MIN: Duration = Duration::from_millis(10);
/// Probe time-out without an RTT sample (RFC 8985 s7.2).
const TIMEOUT_INITIAL: Duration = Duration::from_secs(1);

/// A probe that is not answered yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct TailProbe {
    /// TLP.end_seq.
    pub(super) end: Position,
    /// TLP.is_retrans.
    pub(super) retransmission: bool,
}

/// What an acknowledgement says about a probe.
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
    /// RFC 8985 s7.4.2.
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

/// Delay of a probe (RFC 8985 s7.2); `lone`: one segment is in flight.
pub(super) fn timeout(srtt: Option<Duration>, lone: bool) -> Duration {
    let timeout = srtt.map_or(TIMEOUT_INITIAL, |srtt| srtt * 2);
    let timeout = timeout + if lone { PEER_ACK_DELAY } else { Duration::ZERO };
    timeout.max(TIMEOUT_MIN)
}
