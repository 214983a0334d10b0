//! CUBIC (RFC 9438), counted in bytes.
//!
//! After a loss the window follows `W_cubic(t) = C (t - K)^3 + W_max`: fast toward the window of the loss, slowly past
//! it, then faster again. The curve depends on the time since the start of the stage, not on the RTT. If Reno would
//! have a larger window (short RTTs), the window is Reno's estimate instead (§4.3). A loss reduces the flight to seven
//! tenths.
//!
//! The time `t` stops while the window is not used, and while nothing is in flight (§4.2, §5.8). The curve is shifted
//! without a jump. Integer arithmetic only: windows in bytes, times in microseconds, with the remainders of divisions
//! carried. The tests compare the results with the RFC's formulas in floating point.

#[cfg(test)]
mod tests;

use super::{
    AckSample, Congestion,
    window::{Window, delegate_to_window},
};
use crate::time::{Duration, Instant};

/// beta_cubic, in tenths: remaining part of the flight after a loss (§4.6).
const BETA_TENTHS: u64 = 7;
/// C, in tenths of a segment per cubed second (§5.1).
const C_TENTHS: u64 = 4;
/// alpha_cubic = 3 (1 - beta) / (1 + beta) (§4.3), as a fraction.
const ALPHA: (u64, u64) = (9, 17);
/// Divisor of the minimum growth per RTT before the first loss, as in Linux. The curve's plateau is where slow start
/// happened to end, and the curve alone would leave it only after seconds.
const SEARCH_DIVISOR: u64 = 20;
/// Largest distance from K for which the curve is computed, in microseconds; beyond any real stage.
const DISTANCE_MAX_US: u64 = 1_000_000_000;
/// Microseconds of a second, cubed.
const CUBED_SECOND: u128 = 1_000_000_000_000_000_000;

/// Stage of congestion avoidance (§4.1).
#[derive(Clone, Copy, Debug)]
struct Epoch {
    /// Time t of the curve.
    elapsed: Duration,
    /// Time up to which `elapsed` is counted.
    counted: Instant,
    /// K in microseconds: time at which the curve reaches the plateau.
    k_us: u64,
    /// W_max at the start of this stage, in bytes.
    plateau: u64,
    /// W_est in bytes.
    reno: u64,
    /// Remainder of the last growth of `reno`.
    reno_carry: u64,
    /// Remainder of the last growth of the window.
    carry: u64,
}

/// State before a reduction (§4.9.2).
#[derive(Clone, Copy, Debug)]
struct SavedState {
    cwnd: u64,
    ssthresh: Option<u64>,
    prior: u64,
    w_max: Option<u64>,
    epoch: Option<Epoch>,
    searching: bool,
}

/// CUBIC controller.
#[derive(Debug)]
pub(in super::super) struct Cubic {
    window: Window,
    /// cwnd_prior: window when the threshold was last set.
    prior: u64,
    /// Window at the last loss, reduced by fast convergence. `None`: the next stage starts on its plateau.
    w_max: Option<u64>,
    epoch: Option<Epoch>,
    /// True before the first loss.
    searching: bool,
    saved: Option<SavedState>,
}

impl Cubic {
    pub(super) const fn new(window: Window) -> Self {
        let prior = window.cwnd;
        let searching = window.ssthresh.is_none();
        Self { window, prior, w_max: None, epoch: None, searching, saved: None }
    }

    /// Reduces threshold and W_max (§4.6 and §4.7), not the window.
    fn reduce(&mut self, in_flight: u64) {
        let Self { window, prior, w_max, epoch, searching, saved } = self;
        let (cwnd, ssthresh) = (window.cwnd, window.ssthresh);
        *saved = Some(SavedState {
            cwnd,
            ssthresh,
            prior: *prior,
            w_max: *w_max,
            epoch: *epoch,
            searching: *searching,
        });
        *searching = false;
        // Fast convergence: a window below its previous maximum releases bandwidth to other flows.
        let shrinking = w_max.is_some_and(|w_max| cwnd < w_max);
        *w_max = Some(if shrinking { cwnd * (10 + BETA_TENTHS) / 20 } else { cwnd });
        *prior = cwnd;
        *epoch = None;
        window.lower_threshold(in_flight * BETA_TENTHS / 10);
    }

    /// Ends the stage if slow start begins again.
    fn end_stage_in_slow_start(&mut self) {
        if self.in_slow_start() {
            self.epoch = None;
        }
    }

    /// Congestion avoidance (§4.2 to §4.5).
    fn congestion_avoidance(&mut self, acked: u64, sample: &AckSample) {
        let Self { window, prior, w_max, epoch, searching, saved: _ } = self;
        let epoch = epoch.get_or_insert_with(|| {
            // §4.8, §4.10: without a loss to recover from, the stage starts on the plateau.
            Epoch::new(sample.now, window.cwnd, w_max.unwrap_or(window.cwnd), window.mss)
        });
        epoch.advance(sample.now, sample.limited);
        if !sample.limited {
            return;
        }
        let acked = acked.min(window.cwnd);
        epoch.update_reno(acked, window.cwnd, window.mss, *prior);
        if !*searching && epoch.curve(Duration::ZERO, window.mss) < epoch.reno {
            window.cwnd = window.cwnd.max(epoch.reno);
            return;
        }
        let least = if *searching { window.cwnd / SEARCH_DIVISOR } else { 0 };
        let target = epoch.curve(sample.srtt.unwrap_or_default(), window.mss).max(epoch.reno);
        let target = target.clamp(window.cwnd + least, window.cwnd.saturating_add(window.cwnd / 2));
        // (target - cwnd) / cwnd per segment acknowledged (§4.4, §4.5).
        let growth = u128::from(target - window.cwnd) * u128::from(acked);
        window.cwnd += divide(growth, window.cwnd, &mut epoch.carry);
    }
}

impl Epoch {
    /// Starts a stage with a window of `cwnd` bytes.
    fn new(now: Instant, cwnd: u64, w_max: u64, mss: u64) -> Self {
        // K = cbrt((W_max - cwnd_epoch) / C), §4.2 figure 2. Above W_max the curve starts on its plateau.
        let distance = u128::from(w_max.saturating_sub(cwnd)) * 10;
        let cubed = distance * CUBED_SECOND / u128::from(C_TENTHS * mss);
        Self {
            elapsed: Duration::ZERO,
            counted: now,
            k_us: cube_root(cubed),
            plateau: w_max.max(cwnd),
            reno: cwnd,
            reno_carry: 0,
            carry: 0,
        }
    }

    /// Advances the time, which counts only while the window was used (§4.2, §5.8).
    fn advance(&mut self, now: Instant, used: bool) {
        if used {
            self.elapsed = self.elapsed.saturating_add(now - self.counted);
        }
        self.counted = now;
    }

    /// W_cubic in bytes at t + `ahead` (§4.2 figure 1).
    fn curve(&self, ahead: Duration, mss: u64) -> u64 {
        let at = self.elapsed.saturating_add(ahead).as_micros();
        let at = u64::try_from(at).unwrap_or(u64::MAX);
        let distance = u128::from(at.abs_diff(self.k_us).min(DISTANCE_MAX_US));
        let cubed = distance * distance * distance * u128::from(C_TENTHS * mss);
        let height = u64::try_from(cubed / (10 * CUBED_SECOND)).unwrap_or(u64::MAX);
        if at < self.k_us {
            self.plateau.saturating_sub(height)
        } else {
            self.plateau.saturating_add(height)
        }
    }

    /// Updates W_est (§4.3 figure 4), the window of Reno.
    fn update_reno(&mut self, acked: u64, cwnd: u64, mss: u64, prior: u64) {
        let alpha = if self.reno >= prior { (1, 1) } else { ALPHA };
        let growth = u128::from(acked) * u128::from(mss * alpha.0);
        self.reno += divide(growth, cwnd.saturating_mul(alpha.1), &mut self.reno_carry);
    }
}

/// Computes `(dividend + carry) / divisor`; the remainder is carried.
fn divide(dividend: u128, divisor: u64, carry: &mut u64) -> u64 {
    // If the divisor has shrunk, the carry must not add a whole unit.
    let dividend = dividend + u128::from((*carry).min(divisor - 1));
    if let Ok(dividend) = u64::try_from(dividend) {
        // Common case: one 64-bit division instruction.
        *carry = dividend % divisor;
        return dividend / divisor;
    }
    let divisor = u128::from(divisor);
    *carry = (dividend % divisor) as u64;
    u64::try_from(dividend / divisor).unwrap_or(u64::MAX)
}

/// Largest integer whose cube is at most `value`, by Newton's method from above.
fn cube_root(value: u128) -> u64 {
    if value == 0 {
        return 0;
    }
    // 2^ceil(bits / 3) is not below the root, and its square is at most 2^86.
    let bits = u128::BITS - value.leading_zeros();
    let mut root = 1u128 << bits.div_ceil(3);
    loop {
        let next = (2 * root + value / (root * root)) / 3;
        if next >= root {
            return u64::try_from(root).unwrap_or(u64::MAX);
        }
        root = next;
    }
}

impl Congestion for Cubic {
    delegate_to_window!();

    fn on_ack(&mut self, sample: AckSample) {
        let first = self.window.ssthresh.is_none();
        let acked = self.window.slow_start(&sample);
        if self.in_slow_start() {
            return;
        }
        if first {
            // §4.10: slow start has ended without a loss.
            self.prior = self.window.cwnd;
        }
        self.congestion_avoidance(acked, &sample);
    }

    fn on_rto(&mut self, _: Instant, in_flight: u64, first: bool) {
        // RFC 5681 §3.1: ssthresh is unchanged if the same segment times out again.
        if first {
            self.reduce(in_flight);
        }
        // §4.8.
        self.w_max = None;
        self.epoch = None;
        self.window.cwnd = self.window.mss;
    }

    fn undo(&mut self) {
        let Some(SavedState { cwnd, ssthresh, prior, w_max, epoch, searching }) = self.saved.take()
        else {
            return;
        };
        self.searching = searching;
        // §4.9.2: a window that has grown beyond its old value keeps its own curve.
        if self.window.cwnd < cwnd {
            self.prior = prior;
            self.w_max = w_max;
            self.epoch = epoch;
        }
        self.window.restore(cwnd, ssthresh);
    }

    fn on_idle(&mut self) {
        self.window.restart();
        self.end_stage_in_slow_start();
    }

    fn on_underuse(&mut self, used: u64) {
        self.window.decay(used);
        self.end_stage_in_slow_start();
    }

    fn on_resume(&mut self, now: Instant) {
        if let Some(epoch) = &mut self.epoch {
            epoch.advance(now, false);
        }
    }
}
