//! HyStart++ (RFC 9406): ends slow start before it fills the queue of the bottleneck.
//!
//! The minimum RTT of each round trip is compared with that of the round before. If it has risen by an eighth, bounded
//! to 4 to 16 ms, the window grows only a quarter as fast (conservative slow start). If the RTT falls again within five
//! rounds, the rise was jitter and slow start resumes. Otherwise congestion avoidance starts with the window reached.
//! Used in the first slow start only (§4.3).
//!
//! The RTT rises only once a queue exists. If the queue holds at most one bandwidth-delay product, it overflows in the
//! round in which the rise is detected. So ACK trains are also measured, as in HyStart (Ha and Rhee, 2008) and Linux.
//! Acknowledgments arrive at the rate of the bottleneck. If those of a round arrive without a gap for half of the
//! minimum RTT, the window has about reached the bandwidth-delay product.

use super::AckSample;
use crate::time::{Duration, Instant};

/// MIN_RTT_THRESH.
const RISE_MIN: Duration = Duration::from_millis(4);
/// MAX_RTT_THRESH.
const RISE_MAX: Duration = Duration::from_millis(16);
/// MIN_RTT_DIVISOR.
const RISE_DIVISOR: u32 = 8;
/// N_RTT_SAMPLE: a round with fewer samples is not evaluated.
const SAMPLES_MIN: u32 = 8;
/// CSS_GROWTH_DIVISOR.
const CONSERVATIVE_DIVISOR: u64 = 4;
/// CSS_ROUNDS.
const CONSERVATIVE_ROUNDS: u32 = 5;
/// L without pacing, in segments: limits the growth per ACK, as it is sent as a burst.
const GROWTH_SEGMENTS_MAX: u64 = 8;
/// L in bytes, if larger. The RFC assumes senders that burst by segments. A sender of GSO packets bursts by these
/// anyhow, and its peer acknowledges one with one ACK. With 8 segments per ACK the window would grow by a fifth per
/// round instead of doubling.
const GROWTH_BYTES_MAX: u64 = 64 * 1024;

/// Largest gap between two acknowledgments of one train.
const TRAIN_GAP_MAX: Duration = Duration::from_millis(2);
/// Smallest RTT for trains: on a shorter path a gap cannot be distinguished from a round.
const TRAIN_RTT_MIN: Duration = Duration::from_millis(4);

/// ACK train: acknowledgments of one round without a gap. After a gap, as a spurious recovery causes, the rest of the
/// round is a new train. Linux starts none, and late frames then let slow start overshoot.
#[derive(Debug, Default)]
struct AckTrain {
    start: Instant,
    last: Instant,
}

impl AckTrain {
    /// Adds an acknowledgment and returns the length of the train. `full` is true if the window, not the producer,
    /// limited the acknowledged train.
    fn extend(&mut self, now: Instant, round_begins: bool, full: bool) -> Duration {
        if round_begins || !full || now - self.last > TRAIN_GAP_MAX {
            self.start = now;
        }
        self.last = now;
        now - self.start
    }
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    SlowStart,
    Conservative {
        /// cssBaselineMinRtt.
        baseline: Duration,
        /// Rounds that ended in this phase.
        rounds: u32,
    },
}

/// State of one slow start.
#[derive(Debug)]
pub(super) struct HyStart {
    phase: Phase,
    /// lastRoundMinRTT.
    last: Option<Duration>,
    /// currentRoundMinRTT.
    current: Option<Duration>,
    /// rttSampleCount.
    samples: u32,
    /// True if the sender is paced: L is infinite (§4.3).
    paced: bool,
    /// `None` if ACK trains are not measured.
    train: Option<AckTrain>,
    /// Minimum RTT of the connection.
    min_rtt: Option<Duration>,
}

impl HyStart {
    pub(super) fn new(paced: bool, ack_train: bool) -> Self {
        Self {
            phase: Phase::SlowStart,
            last: None,
            current: None,
            samples: 0,
            paced,
            train: ack_train.then(AckTrain::default),
            min_rtt: None,
        }
    }

    /// Growth of the window in bytes for an ACK of `acked` bytes.
    pub(super) fn growth(&self, acked: u64, mss: u64) -> u64 {
        let most = (GROWTH_SEGMENTS_MAX * mss).max(GROWTH_BYTES_MAX);
        let growth = if self.paced { acked } else { acked.min(most) };
        match self.phase {
            Phase::SlowStart => growth,
            Phase::Conservative { .. } => growth / CONSERVATIVE_DIVISOR,
        }
    }

    /// Processes an acknowledgment. Returns true if slow start ends.
    pub(super) fn observe(&mut self, sample: &AckSample) -> bool {
        let ended = sample.round_begins && self.begin_round();
        if let Some(rtt) = sample.rtt {
            self.min_rtt = Some(self.min_rtt.map_or(rtt, |min_rtt| min_rtt.min(rtt)));
            self.current = Some(self.current.map_or(rtt, |current| current.min(rtt)));
            self.samples = self.samples.saturating_add(1);
        }
        if self.samples >= SAMPLES_MIN {
            self.update_phase();
        }
        ended || self.train_is_long(sample)
    }

    fn train_is_long(&mut self, sample: &AckSample) -> bool {
        let Some(train) = &mut self.train else { return false };
        let length = train.extend(sample.now, sample.round_begins, sample.limited);
        let Some(min_rtt) = self.min_rtt.filter(|min_rtt| *min_rtt >= TRAIN_RTT_MIN) else {
            return false;
        };
        // A paced sender spreads the window over the round itself.
        length > if self.paced { min_rtt } else { min_rtt / 2 }
    }

    fn begin_round(&mut self) -> bool {
        self.last = self.current.take();
        self.samples = 0;
        match &mut self.phase {
            Phase::SlowStart => false,
            // The first, incomplete round of the phase counts too.
            Phase::Conservative { rounds, .. } => {
                *rounds += 1;
                *rounds >= CONSERVATIVE_ROUNDS
            }
        }
    }

    fn update_phase(&mut self) {
        let Some(current) = self.current else { return };
        match (self.phase, self.last) {
            (Phase::SlowStart, Some(last)) => {
                let rise = (last / RISE_DIVISOR).clamp(RISE_MIN, RISE_MAX);
                if current >= last + rise {
                    self.phase = Phase::Conservative { baseline: current, rounds: 0 };
                }
            }
            (Phase::Conservative { baseline, .. }, _) if current < baseline => {
                self.phase = Phase::SlowStart;
            }
            (Phase::SlowStart | Phase::Conservative { .. }, _) => {}
        }
    }
}
