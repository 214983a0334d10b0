//! NewReno: slow start and congestion avoidance of RFC 5681, counted in bytes (RFC 3465).
//!
//! Initial window: 10 segments, at most 14,600 bytes where segments are large (RFC 6928). In slow
//! start the window grows by all bytes that an ACK covers, because coalescing receivers acknowledge
//! many segments at once; while a time-out is repaired by one MSS for each ACK (RFC 3465 s2.3). In
//! congestion avoidance by one MSS for each window of bytes. It does not grow while the producer or
//! the peer's window, not the congestion window, limits the flight.

use super::{AckSample, Congestion};
use crate::time::Instant;

/// Segments of the initial window (RFC 6928).
const INITIAL_SEGMENTS: u64 = 10;
/// Bytes of the initial window where that is less (RFC 6928).
const INITIAL_BYTES: u64 = 14_600;
/// Smallest slow start threshold in segments (RFC 5681 equation 4).
const SSTHRESH_SEGMENTS_MIN: u64 = 2;

/// The controller.
#[derive(Debug)]
pub(in super::super) struct NewReno {
    mss: u64,
    cwnd: u64,
    ssthresh: Option<u64>,
    /// Bytes acknowledged since the window last grew in congestion avoidance.
    credit: u64,
    /// Window and threshold before the last episode.
    before: Option<(u64, Option<u64>)>,
}

impl NewReno {
    /// Continues with `cwnd` and `ssthresh` bytes; 0 and `u32::MAX` stand for none yet.
    pub(super) fn new(mss: u64, cwnd: u32, ssthresh: u32) -> Self {
        let cwnd = if cwnd == 0 { Self::initial_window(mss) } else { u64::from(cwnd).max(mss) };
        let ssthresh = (ssthresh != u32::MAX).then(|| u64::from(ssthresh));
        Self { mss, cwnd, ssthresh, credit: 0, before: None }
    }

    fn initial_window(mss: u64) -> u64 {
        (INITIAL_SEGMENTS * mss).min(INITIAL_BYTES.max(2 * mss))
    }

    fn reduce(&mut self, in_flight: u64) -> u64 {
        self.before = Some((self.cwnd, self.ssthresh));
        let ssthresh = (in_flight / 2).max(SSTHRESH_SEGMENTS_MIN * self.mss);
        self.ssthresh = Some(ssthresh);
        self.credit = 0;
        ssthresh
    }
}

impl Congestion for NewReno {
    fn cwnd(&self) -> u64 {
        self.cwnd
    }

    fn ssthresh(&self) -> Option<u64> {
        self.ssthresh
    }

    fn in_slow_start(&self) -> bool {
        self.ssthresh.is_none_or(|ssthresh| self.cwnd < ssthresh)
    }

    fn on_ack(&mut self, sample: AckSample) {
        let AckSample { now: _, acked, limited, after_timeout, rtt: _ } = sample;
        if !limited {
            return;
        }
        let mut acked = acked;
        if self.in_slow_start() {
            let growth = if after_timeout { acked.min(self.mss) } else { acked };
            let room = self.ssthresh.map_or(u64::MAX, |ssthresh| ssthresh - self.cwnd);
            self.cwnd += growth.min(room);
            acked = growth.saturating_sub(room);
        }
        self.credit += acked;
        if self.credit >= self.cwnd {
            self.credit -= self.cwnd;
            self.cwnd += self.mss;
        }
    }

    fn on_loss(&mut self, _: Instant, in_flight: u64) {
        self.cwnd = self.reduce(in_flight);
    }

    fn on_rto(&mut self, _: Instant, in_flight: u64, first: bool) {
        // RFC 5681 s3.1: ssthresh stays when the same segment times out again.
        if first {
            self.reduce(in_flight);
        }
        self.cwnd = self.mss;
        self.credit = 0;
    }

    fn undo(&mut self) {
        if let Some((cwnd, ssthresh)) = self.before.take() {
            self.cwnd = self.cwnd.max(cwnd);
            self.ssthresh = match (self.ssthresh, ssthresh) {
                (Some(now), Some(before)) => Some(now.max(before)),
                _ => None,
            };
        }
    }

    fn on_idle(&mut self) {
        self.cwnd = self.cwnd.min(Self::initial_window(self.mss));
        self.credit = 0;
    }

    fn set_mss(&mut self, mss: u64) {
        self.mss = mss;
        self.cwnd = self.cwnd.max(mss);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u64 = 1448;

    fn ack(acked: u64) -> AckSample {
        AckSample { now: Instant::ZERO, acked, limited: true, after_timeout: false, rtt: None }
    }

    // RFC 6928 s2.
    #[test]
    fn initial_window() {
        assert_eq!(NewReno::new(MSS, 0, u32::MAX).cwnd(), 10 * MSS);
        assert_eq!(NewReno::new(1460, 0, u32::MAX).cwnd(), 14_600);
        assert_eq!(NewReno::new(8960, 0, u32::MAX).cwnd(), 2 * 8960);
        assert_eq!(NewReno::new(1, 0, u32::MAX).cwnd(), 10);
        assert_eq!(NewReno::new(MSS, 5_000, 9_000).cwnd(), 5_000);
    }

    // RFC 5681 s3.1: exponential below ssthresh, one MSS for each window above.
    #[test]
    fn slow_start_then_avoidance() {
        let mut reno = NewReno::new(MSS, 0, 20 * 1448);
        reno.on_ack(ack(10 * MSS));
        assert_eq!(reno.cwnd(), 20 * MSS);
        assert!(!reno.in_slow_start());
        reno.on_ack(ack(19 * MSS));
        assert_eq!(reno.cwnd(), 20 * MSS);
        reno.on_ack(ack(MSS));
        assert_eq!(reno.cwnd(), 21 * MSS);
    }

    // RFC 5681 s3.2 and equation 4; RFC 3465 s2.3.
    #[test]
    fn losses_and_timeouts() {
        let mut reno = NewReno::new(MSS, 0, u32::MAX);
        reno.on_ack(ack(90 * MSS));
        reno.on_loss(Instant::ZERO, 100 * MSS);
        assert_eq!((reno.cwnd(), reno.ssthresh()), (50 * MSS, Some(50 * MSS)));
        reno.on_rto(Instant::ZERO, 40 * MSS, true);
        assert_eq!((reno.cwnd(), reno.ssthresh()), (MSS, Some(20 * MSS)));
        reno.on_rto(Instant::ZERO, MSS, false);
        assert_eq!(reno.ssthresh(), Some(20 * MSS));
        reno.on_ack(AckSample { after_timeout: true, ..ack(9 * MSS) });
        assert_eq!(reno.cwnd(), 2 * MSS);
        reno.on_loss(Instant::ZERO, MSS);
        assert_eq!(reno.ssthresh(), Some(2 * MSS));
    }

    // RFC 5681 s4.1, RFC 7661: an unused window does not grow.
    #[test]
    fn an_unused_window_does_not_grow() {
        let mut reno = NewReno::new(MSS, 0, u32::MAX);
        reno.on_ack(AckSample { limited: false, ..ack(8 * MSS) });
        assert_eq!(reno.cwnd(), 10 * MSS);
        reno.on_ack(ack(30 * MSS));
        reno.on_idle();
        assert_eq!(reno.cwnd(), 10 * MSS);
    }

    // RFC 5682 s4: a reduction for nothing is taken back, once.
    #[test]
    fn undo_restores() {
        let mut reno = NewReno::new(MSS, 0, u32::MAX);
        reno.on_ack(ack(90 * MSS));
        reno.on_rto(Instant::ZERO, 100 * MSS, true);
        reno.on_rto(Instant::ZERO, MSS, false);
        reno.undo();
        assert_eq!((reno.cwnd(), reno.ssthresh()), (100 * MSS, None));
        reno.on_ack(ack(MSS));
        reno.undo();
        assert_eq!(reno.cwnd(), 101 * MSS);
    }
}
