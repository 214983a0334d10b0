//! Congestion window, threshold and slow start: common part of the RFC 5681 controllers.
//!
//! Initial window: 10 segments, at most 14,600 bytes for large segments (RFC 6928). In slow start the window grows by
//! all bytes that an ACK covers, because coalescing receivers acknowledge many segments at once (RFC 3465; `hystart`
//! bounds the growth per ACK). While a timeout is repaired it grows by one MSS per ACK (RFC 3465 §2.3).

use super::{AckSample, hystart::HyStart};
use crate::tcp::CongestionOptions;

/// Segments of the initial window (RFC 6928).
const INITIAL_SEGMENTS: u64 = 10;
/// Limit of the initial window in bytes (RFC 6928).
const INITIAL_BYTES: u64 = 14_600;
/// Smallest slow start threshold in segments (RFC 5681 equation 4, RFC 9438 figure 5).
const SSTHRESH_SEGMENTS_MIN: u64 = 2;

/// Congestion window and slow start threshold.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) mss: u64,
    pub(super) cwnd: u64,
    /// `None` before the first loss.
    pub(super) ssthresh: Option<u64>,
    hystart: Option<HyStart>,
}

/// Methods that a controller delegates to its `window`. A loss sets the window to the threshold of its own `reduce`.
macro_rules! delegate_to_window {
    () => {
        fn cwnd(&self) -> u64 {
            self.window.cwnd
        }

        fn ssthresh(&self) -> Option<u64> {
            self.window.ssthresh
        }

        fn in_slow_start(&self) -> bool {
            self.window.in_slow_start()
        }

        fn on_loss(&mut self, _: Instant, in_flight: u64) {
            self.reduce(in_flight);
            self.window.cwnd = self.window.ssthresh.unwrap_or(self.window.cwnd);
        }

        fn set_mss(&mut self, mss: u64) {
            self.window.set_mss(mss);
        }
    };
}

pub(super) use delegate_to_window;

impl Window {
    /// Starts with `cwnd` and `ssthresh` bytes; 0 and `u32::MAX` mean none yet.
    pub(super) fn new(mss: u64, cwnd: u32, ssthresh: u32, options: CongestionOptions) -> Self {
        let CongestionOptions { hystart, ack_train, idle_restart: _, cwnd_validation: _, pacing } =
            options;
        let cwnd = if cwnd == 0 { initial_window(mss) } else { u64::from(cwnd).max(mss) };
        let ssthresh = (ssthresh != u32::MAX).then(|| u64::from(ssthresh));
        Self { mss, cwnd, ssthresh, hystart: hystart.then(|| HyStart::new(pacing, ack_train)) }
    }

    pub(super) fn in_slow_start(&self) -> bool {
        self.ssthresh.is_none_or(|ssthresh| self.cwnd < ssthresh)
    }

    /// Processes an acknowledgment in slow start. Returns the bytes left for congestion avoidance.
    pub(super) fn slow_start(&mut self, sample: &AckSample) -> u64 {
        if !self.in_slow_start() {
            return sample.acked;
        }
        let left = if sample.limited { self.grow(sample) } else { 0 };
        // RFC 9406 §4.3: only the first slow start needs a search for its end.
        if self.ssthresh.is_none()
            && let Some(hystart) = &mut self.hystart
            && hystart.observe(sample)
        {
            self.ssthresh = Some(self.cwnd);
        }
        left
    }

    fn grow(&mut self, sample: &AckSample) -> u64 {
        let growth = match (&self.hystart, self.ssthresh) {
            _ if sample.after_timeout => sample.acked.min(self.mss),
            (Some(hystart), None) => hystart.growth(sample.acked, self.mss),
            _ => sample.acked,
        };
        let room = self.ssthresh.map_or(u64::MAX, |ssthresh| ssthresh - self.cwnd);
        self.cwnd = self.cwnd.saturating_add(growth.min(room));
        growth.saturating_sub(room)
    }

    /// Sets the threshold to a reduced flight, at least two segments; the window is unchanged.
    pub(super) fn lower_threshold(&mut self, reduced: u64) {
        self.ssthresh = Some(reduced.max(SSTHRESH_SEGMENTS_MIN * self.mss));
    }

    /// Raises window and threshold to at least these values.
    pub(super) fn restore(&mut self, cwnd: u64, ssthresh: Option<u64>) {
        self.cwnd = self.cwnd.max(cwnd);
        self.ssthresh = match (self.ssthresh, ssthresh) {
            (Some(now), Some(before)) => Some(now.max(before)),
            _ => None,
        };
    }

    /// RFC 5681 §4.1: reduces the window to the restart window, which is the initial one. The threshold keeps most of
    /// the old window (RFC 2861 §3), so that slow start returns to it.
    pub(super) fn restart(&mut self) {
        self.raise_threshold();
        self.cwnd = self.cwnd.min(initial_window(self.mss));
    }

    /// RFC 2861 §3: reduces the window halfway to its used part, not below the initial one.
    pub(super) fn decay(&mut self, used: u64) {
        let used = used.max(initial_window(self.mss));
        if used < self.cwnd {
            self.raise_threshold();
            self.cwnd = self.cwnd.midpoint(used);
        }
    }

    fn raise_threshold(&mut self) {
        let known = self.cwnd / 4 * 3;
        self.ssthresh = self.ssthresh.map(|ssthresh| ssthresh.max(known));
    }

    pub(super) fn set_mss(&mut self, mss: u64) {
        self.mss = mss;
        self.cwnd = self.cwnd.max(mss);
    }
}

fn initial_window(mss: u64) -> u64 {
    (INITIAL_SEGMENTS * mss).min(INITIAL_BYTES.max(2 * mss))
}
