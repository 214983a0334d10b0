//! A connection's congestion control at one moment, for whoever draws it.

use super::{CaState, Connection, congestion::Congestion, pacing::Rate};
use crate::time::Duration;

/// What changes from batch to batch. Bytes, unless stated otherwise; `None` where unknown.
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
    /// Retransmission time-out.
    pub rto: Duration,
    /// Presumed on the wire.
    pub in_flight: u64,
    /// The peer's window.
    pub snd_wnd: u64,
    /// Our window.
    pub rcv_wnd: u64,
    /// For each second; `None` without pacing.
    pub pacing_rate: Option<u64>,
    /// Acknowledged or selectively acknowledged since the take-over.
    pub delivered: u64,
    /// Segments that held a byte sent before.
    pub retrans: u64,
    /// What congestion control and recovery are doing.
    pub ca_state: CaState,
}

impl Connection {
    /// The connection now: a part of [`Connection::info`], without its walk over what is in
    /// flight.
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

    /// What congestion control and recovery are doing.
    pub(super) fn ca_state(&self) -> CaState {
        if self.recovery.is_repairing_timeout() {
            CaState::Loss
        } else if self.recovery.is_fast() {
            CaState::Recovery
        } else if self.ecn.is_answering(self.snd.una) {
            CaState::Cwr
        } else if self.recovery.has_doubts() {
            CaState::Disorder
        } else {
            CaState::Open
        }
    }

    /// Bytes that are known to have arrived: acknowledged since the take-over, or sacked.
    pub(super) fn bytes_delivered(&self) -> u64 {
        self.counters.bytes_acked + self.recovery.sacked()
    }

    /// `bytes` in segments of the present size.
    pub(super) fn segments(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.mss)
    }
}
