//! Snapshot of a connection's congestion control, for traces.

use super::{CaState, Connection, congestion::Congestion, pacing::Rate};
use crate::time::Duration;

/// Values that change from batch to batch. Bytes, unless stated otherwise; `None` if unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceSample {
    /// Congestion window.
    pub cwnd: u64,
    /// Slow start threshold; `None` before the first loss.
    pub ssthresh: Option<u64>,
    /// Smoothed RTT.
    pub srtt: Option<Duration>,
    /// RTT variance.
    pub rttvar: Option<Duration>,
    /// Retransmission timeout.
    pub rto: Duration,
    /// Bytes presumed in flight.
    pub in_flight: u64,
    /// The peer's window.
    pub snd_wnd: u64,
    /// Our window.
    pub rcv_wnd: u64,
    /// Pacing rate in bytes per second; `None` without pacing.
    pub pacing_rate: Option<u64>,
    /// Bytes acknowledged or selectively acknowledged since the offload.
    pub delivered: u64,
    /// Segments that contained a byte sent before.
    pub retrans: u64,
    /// State of congestion control and recovery.
    pub ca_state: CaState,
}

impl Connection {
    /// Returns a trace sample: a part of [`Connection::info`] that does not walk the scoreboard.
    pub fn trace_sample(&self) -> TraceSample {
        TraceSample {
            cwnd: self.congestion.cwnd(),
            ssthresh: self.congestion.ssthresh(),
            srtt: self.rtt.srtt(),
            rttvar: self.rtt.rttvar(),
            rto: self.rtt.rto(),
            in_flight: self.recovery.in_flight(),
            snd_wnd: self.snd.wnd,
            rcv_wnd: self.receiver.window(),
            pacing_rate: self.pacing_rate().map(Rate::bytes_per_second),
            delivered: self.bytes_delivered(),
            retrans: self.counters.total_retrans,
            ca_state: self.ca_state(),
        }
    }

    /// State of congestion control and recovery.
    pub(super) fn ca_state(&self) -> CaState {
        if self.recovery.is_repairing_timeout() {
            CaState::Loss
        } else if self.recovery.is_fast() {
            CaState::Recovery
        } else if self.ecn.is_reduced(self.snd.una) {
            CaState::Cwr
        } else if self.recovery.in_disorder() {
            CaState::Disorder
        } else {
            CaState::Open
        }
    }

    /// Bytes known to have arrived: acknowledged since the offload, or sacked.
    pub(super) fn bytes_delivered(&self) -> u64 {
        self.counters.bytes_acked + self.recovery.sacked()
    }

    /// Number of segments of the current size in `bytes`.
    pub(super) fn segments(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.mss)
    }
}
