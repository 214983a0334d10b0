//! Proportional rate reduction (RFC 9937): the in-flight limit of fast recovery.
//!
//! The flight is reduced to the slow start threshold over one RTT, in proportion to the delivered bytes. There is no
//! pause for half of it. If losses have reduced it further, as many bytes are sent as delivered. Each acknowledgment
//! with progress and without further loss allows one segment more.

/// State of one episode, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prr {
    /// Slow start threshold: flight at the end of the episode.
    target: u64,
    /// RecoverFS: flight at the start of the episode.
    flight: u64,
    /// prr_delivered.
    delivered: u64,
    /// prr_out.
    out: u64,
    /// In-flight limit until the next acknowledgment.
    window: u64,
}

impl Prr {
    pub(super) const fn new(target: u64, flight: u64) -> Self {
        // RFC 9937 §6.1 divides by the flight.
        let flight = if flight == 0 { 1 } else { flight };
        Self { target, flight, delivered: 0, out: 0, window: 0 }
    }

    /// In-flight limit.
    pub(super) const fn window(&self) -> u64 {
        self.window
    }

    pub(super) const fn sent(&mut self, bytes: u64) {
        self.out += bytes;
    }

    /// RFC 9937 §6.2. `delivered` bytes were newly delivered, by any indication, and `in_flight` remain. `safe` is true
    /// if SND.UNA has advanced and nothing more is presumed lost.
    pub(super) fn update(&mut self, delivered: u64, in_flight: u64, safe: bool, mss: u64) {
        self.delivered += delivered;
        let unsent = self.delivered.saturating_sub(self.out);
        let mut count = if in_flight > self.target {
            self.delivered
                .saturating_mul(self.target)
                .div_ceil(self.flight)
                .saturating_sub(self.out)
        } else {
            let grown = unsent.max(delivered) + if safe { mss } else { 0 };
            grown.min(self.target - in_flight)
        };
        if self.out == 0 {
            // The fast retransmit is sent immediately.
            count = count.max(mss);
        }
        self.window = in_flight + count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1000;

    // RFC 9937 §6.2: one segment per two delivered down to half, then one per one.
    #[test]
    fn flight_shrinks_in_proportion() {
        let mut prr = Prr::new(10 * MSS, 20 * MSS);
        let (mut in_flight, mut sent) = (19 * MSS, 0);
        for delivered in 1..=30 {
            in_flight -= MSS;
            prr.update(MSS, in_flight, false, MSS);
            while prr.window() >= in_flight + MSS {
                prr.sent(MSS);
                in_flight += MSS;
                sent += 1;
            }
            let expected = if delivered < 16 { (delivered / 2).max(1) } else { delivered - 9 };
            assert_eq!(sent, expected, "{delivered}");
        }
        assert_eq!(in_flight, 10 * MSS);
    }

    // RFC 9937 §6.2: below the threshold delivered bytes are replaced, plus one segment if safe, never beyond the
    // threshold.
    #[test]
    fn window_below_threshold_follows_deliveries() {
        let mut prr = Prr::new(10 * MSS, 20 * MSS);
        prr.update(MSS, 3 * MSS, false, MSS);
        assert_eq!(prr.window(), 4 * MSS);
        prr.sent(MSS);
        prr.update(2 * MSS, 2 * MSS, false, MSS);
        assert_eq!(prr.window(), 4 * MSS);
        prr.sent(2 * MSS);
        prr.update(2 * MSS, 2 * MSS, true, MSS);
        assert_eq!(prr.window(), 5 * MSS);
        prr.update(9 * MSS, 2 * MSS, true, MSS);
        assert_eq!(prr.window(), 10 * MSS);
    }

    // Sequence of Linux' script fast_recovery/prr-ss-30pkt-lost-1_4-11_16: ten segments and two by limited transmit.
    // The first four are lost, then a retransmission.
    #[test]
    fn window_matches_linux_script() {
        let mut prr = Prr::new(7 * MSS, 10 * MSS);
        let mut in_flight = 10 * MSS;
        let script = [
            // Delivered, lost, progress; sent.
            (1, 4, false, 1),
            (1, 0, false, 1),
            (1, 0, false, 1),
            (1, 0, false, 1),
            (1, 0, false, 1),
            (1, 0, false, 1),
            (1, 0, true, 2),
            (2, 1, false, 2),
            (1, 0, false, 1),
            (1, 0, false, 1),
        ];
        for (turn, (delivered, lost, safe, sent)) in script.into_iter().enumerate() {
            in_flight -= (delivered + lost) * MSS;
            prr.update(delivered * MSS, in_flight, safe, MSS);
            let count = (prr.window() - in_flight) / MSS;
            assert_eq!(count, sent, "turn {turn}");
            prr.sent(count * MSS);
            in_flight += count * MSS;
        }
    }
}
