//! The round-trip time of a connection in the host, measured on the wire: smoltcp keeps its own to itself.
//!
//! One segment is timed at a time (RFC 6298 s3). What is sent twice is not timed, since nobody knows which
//! of the two an ACK answers (Karn's algorithm).

use offload_engine::{
    tcp::SeqNum,
    time::{Duration, Instant},
};

/// SRTT and RTTVAR of RFC 6298 s2.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RoundTrip {
    estimate: Option<(Duration, Duration)>,
    /// One beyond the segment that is timed, and when it left.
    timed: Option<(SeqNum, Instant)>,
}

impl RoundTrip {
    /// A segment that ends before `end` leaves; `again`: some of it was sent before.
    pub(crate) fn sent(&mut self, now: Instant, end: SeqNum, again: bool) {
        if again {
            self.timed = None;
        } else if self.timed.is_none() {
            self.timed = Some((end, now));
        }
    }

    /// Everything before `ack` is acknowledged.
    pub(crate) fn acknowledged(&mut self, now: Instant, ack: SeqNum) {
        let Some((end, at)) = self.timed else { return };
        if ack.is_before(end) {
            return;
        }
        self.timed = None;
        let sample = now.saturating_since(at);
        self.estimate = Some(match self.estimate {
            // RFC 6298 s2.2
            None => (sample, sample / 2),
            // RFC 6298 s2.3
            Some((srtt, rttvar)) => {
                ((srtt * 7 + sample) / 8, (rttvar * 3 + srtt.abs_diff(sample)) / 4)
            }
        });
    }

    /// As the chimney carries them: SRTT in eighths and RTTVAR in quarters of a millisecond; 0: no sample.
    pub(crate) fn export(&self) -> (u16, u16) {
        let Some((srtt, rttvar)) = self.estimate else { return (0, 0) };
        let units = |time: Duration, per_millisecond: u128| {
            let units = time.as_nanos() * per_millisecond / 1_000_000;
            u16::try_from(units).unwrap_or(u16::MAX)
        };
        // A LAN's round trip is a sample too.
        (units(srtt, 8).max(1), units(rttvar, 4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    /// RFC 6298 s2.2, s2.3: the first sample, and a second one of twice its length.
    #[test]
    fn samples_are_smoothed() {
        let mut round_trip = RoundTrip::default();
        assert_eq!(round_trip.export(), (0, 0));
        round_trip.sent(at(0), SeqNum(1), false);
        round_trip.acknowledged(at(100), SeqNum(1));
        assert_eq!(round_trip.export(), (800, 200));
        round_trip.sent(at(100), SeqNum(11), false);
        // Only one segment is timed at a time.
        round_trip.sent(at(290), SeqNum(21), false);
        round_trip.acknowledged(at(295), SeqNum(6));
        round_trip.acknowledged(at(300), SeqNum(21));
        // (7 * 100 + 200) / 8 = 112.5 and (3 * 50 + 100) / 4 = 62.5
        assert_eq!(round_trip.export(), (900, 250));
    }

    /// RFC 6298 s3: Karn's algorithm.
    #[test]
    fn what_was_sent_twice_is_not_timed() {
        let mut round_trip = RoundTrip::default();
        round_trip.sent(at(0), SeqNum(1), false);
        round_trip.sent(at(1000), SeqNum(1), true);
        round_trip.acknowledged(at(1100), SeqNum(1));
        assert_eq!(round_trip.export(), (0, 0));
    }

    /// A LAN's 50 microseconds are less than a unit, and not "no sample".
    #[test]
    fn a_short_round_trip_is_a_sample() {
        let mut round_trip = RoundTrip::default();
        round_trip.sent(at(0), SeqNum(1), false);
        round_trip.acknowledged(Instant::from_micros(50), SeqNum(1));
        assert_eq!(round_trip.export(), (1, 0));
    }
}
