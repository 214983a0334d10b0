//! RACK (RFC 8985 §6): the most recent delivery, and how much reordering is to be expected.

use super::{Ack, scoreboard::Record};
use crate::{
    tcp::seq::Position,
    time::{Duration, Instant, nanos},
};

/// Recoveries without a report of a duplicate, after which the reordering window is small again (RFC 8985
/// §6.2 step 4).
const PERSIST_RECOVERIES: u32 = 16;
/// Largest multiple of a quarter RTT that the reordering window has: SRTT bounds it anyhow.
const MULTIPLIER_MAX: u32 = 64;

/// State of RFC 8985 §5.2.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rack {
    /// Number of the latest transmission known to be delivered; RFC 8985 orders by time, which a batch
    /// shares.
    pub(super) number: u64,
    /// RACK.end_seq.
    pub(super) end: Position,
    /// RACK.rtt, in nanoseconds.
    rtt: u64,
    /// Highest byte delivered (RACK.fack).
    pub(super) highest: Position,
    reordering_seen: bool,
    /// RACK.reo_wnd_mult.
    multiplier: u32,
    /// RACK.reo_wnd_persist.
    persist: u32,
    /// RACK.dsack_round.
    round: Option<Position>,
}

impl Rack {
    pub(super) const fn new(una: Position) -> Self {
        Self {
            number: 0,
            end: una,
            rtt: 0,
            highest: una,
            reordering_seen: false,
            multiplier: 1,
            persist: 0,
            round: None,
        }
    }

    /// RFC 8985 §6.2 step 2: `record` is delivered. What was resent counts only if this is about the
    /// retransmission: not if it is too fast, or if the peer echoes something older.
    pub(super) fn deliver(&mut self, record: &Record, ack: &Ack<'_>) {
        let rtt = ack.now.nanos_since(record.sent_at);
        if record.resent {
            let echoes_older = ack.echo.is_some_and(|echo| is_older(echo, record.sent_at));
            if echoes_older || ack.rtt_min.is_some_and(|min| rtt < nanos(min)) {
                return;
            }
        }
        if (record.number, record.end) > (self.number, self.end) {
            self.number = record.number;
            self.end = record.end;
            self.rtt = rtt;
        }
    }

    /// Segments overtake each other on this path (RFC 8985 §6.2 step 3).
    pub(super) const fn note_reordering(&mut self) {
        self.reordering_seen = true;
    }

    /// RFC 8985 §6.2 step 4: a round trip with a report of a duplicate widens the window, 16 recoveries without
    /// make it small again.
    pub(super) fn adapt(&mut self, una: Position, nxt: Position, duplicate: bool, ended: bool) {
        if self.round.is_some_and(|round| una >= round) {
            self.round = None;
        }
        if duplicate && self.round.is_none() {
            self.round = Some(nxt);
            self.multiplier = (self.multiplier + 1).min(MULTIPLIER_MAX);
            self.persist = PERSIST_RECOVERIES;
        } else if ended {
            self.persist = self.persist.saturating_sub(1);
            if self.persist == 0 {
                self.multiplier = 1;
            }
        }
    }

    /// How long after its transmission a segment is late: RACK.rtt + RACK.reo_wnd.
    pub(super) fn patience(
        &self,
        certain: bool,
        rtt_min: Option<Duration>,
        srtt: Option<Duration>,
    ) -> Duration {
        Duration::from_nanos(self.rtt) + self.window(certain, rtt_min, srtt)
    }

    /// RACK.reo_wnd: how much later than expected a segment may be. `certain`: a recovery is under way, or enough
    /// segments above it have arrived.
    fn window(&self, certain: bool, rtt_min: Option<Duration>, srtt: Option<Duration>) -> Duration {
        if certain && !self.reordering_seen {
            return Duration::ZERO;
        }
        let window = rtt_min.unwrap_or_default() * self.multiplier / 4;
        srtt.map_or(window, |srtt| window.min(srtt))
    }
}

/// Whether `echo`, in ms of our clock, names a segment sent before `sent_at`.
pub(super) const fn is_older(echo: u32, sent_at: Instant) -> bool {
    echo.wrapping_sub(sent_at.as_millis() as u32).cast_signed() < 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::{SeqNum, recovery::scoreboard::RecordState};

    fn at(offset: u64) -> Position {
        Position::first(SeqNum(7)) + offset
    }

    // RFC 8985 §6.2 step 2: what was resent is delivered only if neither time nor timestamp contradicts.
    #[test]
    fn whose_acknowledgement() {
        let sent_at = Instant::from_millis(1_000);
        let ms = Duration::from_millis;
        for (resent, rtt, echo, counts) in [
            (false, 1, Some(900), true),
            (true, 1, None, false),
            (true, 10, None, true),
            (true, 10, Some(999), false),
            (true, 10, Some(1_000), true),
        ] {
            let record = Record {
                start: at(0),
                end: at(10),
                sent_at,
                number: 5,
                resent,
                fate: RecordState::InFlight,
            };
            let ack = Ack {
                now: sent_at + ms(rtt),
                to: at(10),
                sacks: &[],
                duplicate_report: None,
                bare: true,
                can_send_new: false,
                echo,
                mss: 10,
                rtt_min: Some(ms(10)),
                srtt: None,
            };
            let mut rack = Rack::new(at(0));
            rack.deliver(&record, &ack);
            assert_eq!(rack.number == 5, counts, "{resent} {rtt} {echo:?}");
        }
    }
}
