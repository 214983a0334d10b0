//! NewReno: slow start and congestion avoidance of RFC 5681, counted in bytes (RFC 3465).
//!
//! In congestion avoidance the window grows by one MSS per window of bytes acknowledged; a loss halves it. It does not
//! grow while the producer or the peer's window, not the congestion window, limits the flight.

use super::{
    AckSample, Congestion,
    window::{Window, delegate_to_window},
};
use crate::time::Instant;

/// NewReno controller.
#[derive(Debug)]
pub(in super::super) struct NewReno {
    window: Window,
    /// Bytes acknowledged since the window last grew in congestion avoidance.
    credit: u64,
    /// Window and threshold before the last episode.
    saved: Option<(u64, Option<u64>)>,
}

impl NewReno {
    pub(super) const fn new(window: Window) -> Self {
        Self { window, credit: 0, saved: None }
    }

    fn reduce(&mut self, in_flight: u64) {
        self.saved = Some((self.window.cwnd, self.window.ssthresh));
        self.window.lower_threshold(in_flight / 2);
        self.credit = 0;
    }
}

impl Congestion for NewReno {
    delegate_to_window!();

    fn on_ack(&mut self, sample: AckSample) {
        let acked = self.window.slow_start(&sample);
        if self.in_slow_start() || !sample.limited {
            return;
        }
        self.credit += acked;
        if self.credit >= self.window.cwnd {
            self.credit -= self.window.cwnd;
            self.window.cwnd += self.window.mss;
        }
    }

    fn on_rto(&mut self, _: Instant, in_flight: u64, first: bool) {
        // RFC 5681 §3.1: ssthresh is unchanged if the same segment times out again.
        if first {
            self.reduce(in_flight);
        }
        self.window.cwnd = self.window.mss;
        self.credit = 0;
    }

    fn undo(&mut self) {
        if let Some((cwnd, ssthresh)) = self.saved.take() {
            self.window.restore(cwnd, ssthresh);
        }
    }

    fn on_idle(&mut self) {
        self.window.restart();
        self.credit = 0;
    }

    fn on_underuse(&mut self, used: u64) {
        self.window.decay(used);
    }

    fn on_resume(&mut self, _: Instant) {}
}
