//! Congestion control: how much may be in flight.
//!
//! A controller sees acknowledged bytes, losses and time-outs, and answers with a window in bytes.
//! It knows nothing of sequence numbers: what is lost, and when an episode begins and ends, is
//! decided in `recovery`; where a round trip begins, and whether the window was used, in `usage`.
//! Bytes are payload.
//!
//! | file | rule |
//! |---|---|
//! | `cubic` | RFC 9438 |
//! | `newreno` | RFC 5681, RFC 6582 |
//! | `unlimited` | none |
//! | `window` | what the first two share: initial window, slow start, restart after idleness |
//! | `hystart` | RFC 9406: when slow start has gone far enough |
//! | `usage` | RFC 2861, RFC 9438 §5.8: whether the window is used |

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

/// New bytes were acknowledged outside fast recovery.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckSample {
    /// When it arrived.
    pub(super) now: Instant,
    /// Bytes newly acknowledged or selectively acknowledged.
    pub(super) acked: u64,
    /// The window, not the producer or the peer, has held the sender back.
    pub(super) limited: bool,
    /// A time-out is being repaired.
    pub(super) after_timeout: bool,
    /// Round-trip time of a segment that this acknowledgement covers and that was sent once.
    pub(super) rtt: Option<Duration>,
    /// Smoothed round-trip time.
    pub(super) srtt: Option<Duration>,
    /// A round trip begins: this is the first acknowledgement of what was sent in the last one.
    pub(super) round_begins: bool,
}

/// A congestion controller.
pub(super) trait Congestion {
    /// Bytes that may be in flight.
    fn cwnd(&self) -> u64;
    /// Slow start threshold in bytes; `None` before the first loss.
    fn ssthresh(&self) -> Option<u64>;
    /// Whether the window still grows exponentially.
    fn in_slow_start(&self) -> bool;
    /// New bytes are acknowledged.
    fn on_ack(&mut self, sample: AckSample);
    /// Fast recovery starts with `in_flight` bytes outstanding: once per episode.
    fn on_loss(&mut self, now: Instant, in_flight: u64);
    /// A retransmission time-out with `in_flight` bytes outstanding; `first`: the flight was not paid
    /// for before, by a time-out of the same segment or by fast recovery.
    fn on_rto(&mut self, now: Instant, in_flight: u64, first: bool);
    /// The last reduction, by `on_loss` or `on_rto`, answered a loss that was none: window and threshold
    /// are again what they were before, or what they are now if that is more. Without one, nothing.
    fn undo(&mut self);
    /// Nothing was sent for longer than an RTO (RFC 5681 §4.1).
    fn on_idle(&mut self);
    /// For an RTO at most `used` bytes were in flight, and less than the window (RFC 2861 §3).
    fn on_underuse(&mut self, used: u64);
    /// Something is sent with nothing in flight before.
    fn on_resume(&mut self, now: Instant);
    /// The effective MSS has changed.
    fn set_mss(&mut self, mss: u64);
}

/// The controllers there are.
#[derive(Debug)]
pub(super) enum Controller {
    Cubic(Cubic),
    NewReno(NewReno),
    Unlimited(Unlimited),
}

impl Controller {
    /// Starts with the carried window, or with an initial window of its own when `cwnd` is 0;
    /// `ssthresh` is `u32::MAX` when there is none yet.
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

/// Calls the controller that there is. The window is asked for several times with each segment, so not by a table
/// of functions.
macro_rules! ask {
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
        ask!(self, it => it.cwnd())
    }

    fn ssthresh(&self) -> Option<u64> {
        ask!(self, it => it.ssthresh())
    }

    fn in_slow_start(&self) -> bool {
        ask!(self, it => it.in_slow_start())
    }

    fn on_ack(&mut self, sample: AckSample) {
        ask!(self, it => it.on_ack(sample));
    }

    fn on_loss(&mut self, now: Instant, in_flight: u64) {
        ask!(self, it => it.on_loss(now, in_flight));
    }

    fn on_rto(&mut self, now: Instant, in_flight: u64, first: bool) {
        ask!(self, it => it.on_rto(now, in_flight, first));
    }

    fn undo(&mut self) {
        ask!(self, it => it.undo());
    }

    fn on_idle(&mut self) {
        ask!(self, it => it.on_idle());
    }

    fn on_underuse(&mut self, used: u64) {
        ask!(self, it => it.on_underuse(used));
    }

    fn on_resume(&mut self, now: Instant) {
        ask!(self, it => it.on_resume(now));
    }

    fn set_mss(&mut self, mss: u64) {
        ask!(self, it => it.set_mss(mss));
    }
}
