//! RACK state (RFC 8985 §6): most recent delivery and reordering window.

use super::{Ack, scoreboard::Record};
use crate::{
    tcp::seq::Position,
    time::{Duration, Instant, nanos},
};

/// Recoveries without a DSACK after which the reordering window is reset (RFC 8985 §6.2 step 4).
const PERSIST_RECOVERIES: u32 = 16;
/// Largest multiple of a quarter RTT for the reordering window; SRTT bounds it too.
const MULTIPLIER_MAX: u32 = 64;

/// State of RFC 8985 §5.2.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rack {
    /// Number of the latest delivered transmission. RFC 8985 orders by time, which a batch shares.
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

    /// RFC 8985 §6.2 step 2: processes the delivery of `record`. A retransmitted record counts only if the
    /// retransmission itself was delivered: not if the RTT is too short, or the peer echoes an older timestamp.
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

    /// Records reordering on this path (RFC 8985 §6.2 step 3).
    pub(super) const fn record_reordering(&mut self) {
        self.reordering_seen = true;
    }

    /// RFC 8985 §6.2 step 4: an RTT with a DSACK widens the reordering window; 16 recoveries without one reset it.
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

    /// Time after its transmission at which a segment is lost: RACK.rtt + RACK.reo_wnd.
    pub(super) fn loss_delay(
        &self,
        threshold_reached: bool,
        rtt_min: Option<Duration>,
        srtt: Option<Duration>,
    ) -> Duration {
        Duration::from_nanos(self.rtt) + self.window(threshold_reached, rtt_min, srtt)
    }

    /// RACK.reo_wnd: tolerated delay beyond the expected time. `threshold_reached` is true in recovery, or after enough
    /// later deliveries.
    fn window(
        &self,
        threshold_reached: bool,
        rtt_min: Option<Duration>,
        srtt: Option<Duration>,
    ) -> Duration {
        if threshold_reached && !self.reordering_seen {
            return Duration::ZERO;
        }
        let window = rtt_min.unwrap_or_default() * self.multiplier / 4;
        srtt.map_or(window, |srtt| window.min(srtt))
    }
}

/// True if `echo`, in ms of our clock, is older than `sent_at`.
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

    // RFC 8985 §6.2 step 2: a retransmitted record counts only if neither RTT nor timestamp contradicts.
    #[test]
    fn contradicted_retransmission_is_not_counted() {
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
                state: RecordState::InFlight,
            };
            let ack = Ack {
                now: sent_at + ms(rtt),
                to: at(10),
                sacks: &[],
                dsack: None,
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
