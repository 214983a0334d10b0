//! Congestion control: in-flight limits.
//!
//! A controller receives acknowledged bytes, losses and timeouts, and returns a window in bytes. It has no sequence
//! numbers: `recovery` detects losses and the start and end of an episode, `usage` the start of a round trip and the
//! use of the window. Bytes are payload.
//!
//! | file | rule |
//! |---|---|
//! | `cubic` | RFC 9438 |
//! | `newreno` | RFC 5681, RFC 6582 |
//! | `unlimited` | none |
//! | `window` | common to the first two: initial window, slow start, restart after idle |
//! | `hystart` | RFC 9406: end of slow start |
//! | `usage` | RFC 2861, RFC 9438 §5.8: use of the window |

mod cubic;
mod hystart;
mod newreno;
#[cfg(test)]
mod tests;
mod unlimited;
mod usage;
mod window;

pub(super) use self::{cubic::Cubic, newreno::NewReno, unlimited::Unlimited, usage::Usage};
use super::{CongestionAlgorithm, CongestionOptions};
use crate::time::{Duration, Instant};

/// Acknowledgment of new bytes outside fast recovery.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckSample {
    /// Time of arrival.
    pub(super) now: Instant,
    /// Bytes newly acknowledged or selectively acknowledged.
    pub(super) acked: u64,
    /// True if the window limits the sender, not the producer or the peer.
    pub(super) limited: bool,
    /// True if a timeout is being repaired.
    pub(super) after_timeout: bool,
    /// RTT of a covered segment that was sent once.
    pub(super) rtt: Option<Duration>,
    /// Smoothed RTT.
    pub(super) srtt: Option<Duration>,
    /// True for the first acknowledgment of data sent in the previous round trip.
    pub(super) round_begins: bool,
}

/// A congestion controller.
pub(super) trait Congestion {
    /// Bytes that may be in flight.
    fn cwnd(&self) -> u64;
    /// Slow start threshold in bytes; `None` before the first loss.
    fn ssthresh(&self) -> Option<u64>;
    /// True while the window grows exponentially.
    fn in_slow_start(&self) -> bool;
    /// Processes the acknowledgment of new bytes.
    fn on_ack(&mut self, sample: AckSample);
    /// Processes the start of fast recovery with `in_flight` bytes outstanding, once per episode.
    fn on_loss(&mut self, now: Instant, in_flight: u64);
    /// Processes a retransmission timeout with `in_flight` bytes outstanding. `first` is false if a timeout of the same
    /// segment, or fast recovery, already reduced the window for this flight.
    fn on_rto(&mut self, now: Instant, in_flight: u64, first: bool);
    /// Undoes the last reduction by `on_loss` or `on_rto`, as the loss was spurious. Window and threshold return to
    /// their values before it, or keep the current ones if larger. No effect without a reduction.
    fn undo(&mut self);
    /// Processes an idle period longer than an RTO (RFC 5681 §4.1).
    fn on_idle(&mut self);
    /// Processes an RTO in which at most `used` bytes were in flight, less than the window (RFC 2861 §3).
    fn on_underuse(&mut self, used: u64);
    /// Processes a transmission with nothing in flight before.
    fn on_resume(&mut self, now: Instant);
    /// Sets the effective MSS.
    fn set_mss(&mut self, mss: u64);
}

/// Congestion controller of a connection.
#[derive(Debug)]
pub(super) enum Controller {
    Cubic(Cubic),
    NewReno(NewReno),
    Unlimited(Unlimited),
}

impl Controller {
    /// Starts with the imported window, or with an initial window if `cwnd` is 0; `ssthresh` is `u32::MAX` if there is
    /// none yet.
    pub(super) fn new(
        algorithm: CongestionAlgorithm,
        options: CongestionOptions,
        mss: u64,
        cwnd: u32,
        ssthresh: u32,
    ) -> Self {
        let window = window::Window::new(mss, cwnd, ssthresh, options);
        match algorithm {
            CongestionAlgorithm::Cubic => Self::Cubic(Cubic::new(window)),
            CongestionAlgorithm::NewReno => Self::NewReno(NewReno::new(window)),
            CongestionAlgorithm::Unlimited => Self::Unlimited(Unlimited),
        }
    }
}

/// Dispatches to the controller. A match instead of dynamic dispatch: the window is read several times per segment.
macro_rules! dispatch {
    ($controller:expr, $one:ident => $call:expr) => {
        match $controller {
            Controller::Cubic($one) => $call,
            Controller::NewReno($one) => $call,
            Controller::Unlimited($one) => $call,
        }
    };
}

impl Congestion for Controller {
    #[inline]
    fn cwnd(&self) -> u64 {
        dispatch!(self, it => it.cwnd())
    }

    fn ssthresh(&self) -> Option<u64> {
        dispatch!(self, it => it.ssthresh())
    }

    fn in_slow_start(&self) -> bool {
        dispatch!(self, it => it.in_slow_start())
    }

    fn on_ack(&mut self, sample: AckSample) {
        dispatch!(self, it => it.on_ack(sample));
    }

    fn on_loss(&mut self, now: Instant, in_flight: u64) {
        dispatch!(self, it => it.on_loss(now, in_flight));
    }

    fn on_rto(&mut self, now: Instant, in_flight: u64, first: bool) {
        dispatch!(self, it => it.on_rto(now, in_flight, first));
    }

    fn undo(&mut self) {
        dispatch!(self, it => it.undo());
    }

    fn on_idle(&mut self) {
        dispatch!(self, it => it.on_idle());
    }

    fn on_underuse(&mut self, used: u64) {
        dispatch!(self, it => it.on_underuse(used));
    }

    fn on_resume(&mut self, now: Instant) {
        dispatch!(self, it => it.on_resume(now));
    }

    fn set_mss(&mut self, mss: u64) {
        dispatch!(self, it => it.set_mss(mss));
    }
}
