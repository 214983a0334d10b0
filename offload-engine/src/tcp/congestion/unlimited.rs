//! Congestion control without a window: only the peer's window limits the flight.

use super::{AckSample, Congestion};
use crate::time::Instant;

/// Controller for lossless links, and for measurements of the rest of the data path.
#[derive(Debug)]
pub(in super::super) struct Unlimited;

impl Congestion for Unlimited {
    fn cwnd(&self) -> u64 {
        u64::MAX
    }

    fn ssthresh(&self) -> Option<u64> {
        None
    }

    fn in_slow_start(&self) -> bool {
        false
    }

    fn on_ack(&mut self, _: AckSample) {}

    fn on_loss(&mut self, _: Instant, _: u64) {}

    fn on_rto(&mut self, _: Instant, _: u64, _: bool) {}

    fn undo(&mut self) {}

    fn on_idle(&mut self) {}

    fn on_underuse(&mut self, _: u64) {}

    fn on_resume(&mut self, _: Instant) {}

    fn set_mss(&mut self, _: u64) {}
}
