//! HyStart++ (RFC 9406): slow start ends before it has filled the queue of the bottleneck.
//!
//! The smallest RTT of each round trip is compared with that of the round before. When it has risen by
//! an eighth, but by 4 to 16 ms, the window grows only a quarter as fast (conservative slow start).
//! If the RTT falls again within five rounds, the rise was jitter and slow start resumes; else
//! congestion avoidance begins with the window reached. Used in the first slow start only (§4.3).
//!
//! The RTT rises when the queue is there already: with no more of it than one bandwidth-delay product,
//! the round in which the rise is seen overflows it. So acknowledgements are timed too, as HyStart (Ha
//! and Rhee, 2008) and Linux do: they come at the rate of the bottleneck, and when a round's have come
//! without a gap for half of the least RTT, the window has about reached the bandwidth-delay product.

use super::AckSample;
use crate::time::{Duration, Instant};

/// MIN_RTT_THRESH.
const RISE_MIN: Duration = Duration::from_millis(4);
/// MAX_RTT_THRESH.
const RISE_MAX: Duration = Duration::from_millis(16);
/// MIN_RTT_DIVISOR.
const RISE_DIVISOR: u32 = 8;
/// N_RTT_SAMPLE: a round with fewer is not judged.
const SAMPLES_MIN: u32 = 8;
/// CSS_GROWTH_DIVISOR.
const CONSERVATIVE_DIVISOR: u64 = 4;
/// CSS_ROUNDS.
const CONSERVATIVE_ROUNDS: u32 = 5;
/// L without pacing, in segments: what one ACK may add to the window, because it leaves as a burst.
const GROWTH_SEGMENTS_MAX: u64 = 8;
/// L in bytes where that is more. The RFC has senders in mind that burst by segments. A sender of
/// super-segments bursts by these anyhow, and its peer acknowledges one with one ACK: with 8 segments
/// for each ACK the window would not double but grow by a fifth in a round.
const GROWTH_BYTES_MAX: u64 = 64 * 1024;

/// Acknowledgements farther apart are two trains.
const TRAIN_GAP_MAX: Duration = Duration::from_millis(2);
/// On a shorter path a gap cannot be distinguished from a round.
const TRAIN_RTT_MIN: Duration = Duration::from_millis(4);

/// Acknowledgements of one round that have come without a gap. After one, as a recovery for nothing makes it, the
/// rest of the round is a train of its own; with Linux it is none, and late frames let slow start overshoot.
#[derive(Debug, Default)]
struct Train {
    began: Instant,
    last: Instant,
}

impl Train {
    /// Takes an acknowledgement and returns how long the train has got. `full`: the window, not the
    /// producer, has made the train that is answered.
    fn take(&mut self, now: Instant, round_begins: bool, full: bool) -> Duration {
        if round_begins || !full || now - self.last > TRAIN_GAP_MAX {
            self.began = now;
        }
        self.last = now;
        now - self.began
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

/// The state of one slow start.
#[derive(Debug)]
pub(super) struct HyStart {
    phase: Phase,
    /// lastRoundMinRTT.
    last: Option<Duration>,
    /// currentRoundMinRTT.
    current: Option<Duration>,
    /// rttSampleCount.
    samples: u32,
    /// The sender is paced: L is infinite (§4.3).
    paced: bool,
    /// `None`: acknowledgements are not timed.
    train: Option<Train>,
    /// Least RTT of all.
    least: Option<Duration>,
}

impl HyStart {
    pub(super) fn new(paced: bool, ack_train: bool) -> Self {
        Self {
            phase: Phase::SlowStart,
            last: None,
            current: None,
            samples: 0,
            paced,
            train: ack_train.then(Train::default),
            least: None,
        }
    }

    /// Bytes that an ACK of `acked` bytes adds to the window.
    pub(super) fn growth(&self, acked: u64, mss: u64) -> u64 {
        let most = (GROWTH_SEGMENTS_MAX * mss).max(GROWTH_BYTES_MAX);
        let growth = if self.paced { acked } else { acked.min(most) };
        match self.phase {
            Phase::SlowStart => growth,
            Phase::Conservative { .. } => growth / CONSERVATIVE_DIVISOR,
        }
    }

    /// Takes what an ACK brings. Returns whether slow start is over.
    pub(super) fn observe(&mut self, sample: &AckSample) -> bool {
        let over = sample.round_begins && self.begin_round();
        if let Some(rtt) = sample.rtt {
            self.least = Some(self.least.map_or(rtt, |least| least.min(rtt)));
            self.current = Some(self.current.map_or(rtt, |current| current.min(rtt)));
            self.samples = self.samples.saturating_add(1);
        }
        if self.samples >= SAMPLES_MIN {
            self.judge();
        }
        over || self.train_is_long(sample)
    }

    fn train_is_long(&mut self, sample: &AckSample) -> bool {
        let Some(train) = &mut self.train else { return false };
        let length = train.take(sample.now, sample.round_begins, sample.limited);
        let Some(least) = self.least.filter(|least| *least >= TRAIN_RTT_MIN) else { return false };
        // A paced sender spreads the window over the round itself.
        length > if self.paced { least } else { least / 2 }
    }

    fn begin_round(&mut self) -> bool {
        self.last = self.current.take();
        self.samples = 0;
        match &mut self.phase {
            Phase::SlowStart => false,
            // The round in which the phase began counts, though it was not whole.
            Phase::Conservative { rounds, .. } => {
                *rounds += 1;
                *rounds >= CONSERVATIVE_ROUNDS
            }
        }
    }

    fn judge(&mut self) {
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
