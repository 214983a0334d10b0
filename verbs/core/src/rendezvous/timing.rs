//! Times of the rendezvous: pauses between dials, the retry budget, RNR timers.

use std::time::Duration;

use crate::attributes::IbvQpAttributes;

/// Time from RTR to the first dial of a queue pair that does not reach RTS: the peer then gets the PSN and the retries
/// that RTS sets.
pub(super) const RTS_PAUSE: Duration = Duration::from_millis(10);
/// First pause between two dials.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// Longest pause between two dials.
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// Time between two checks for the end of the requests that were started before SQD.
pub(super) const DRAIN_PAUSE: Duration = Duration::from_millis(1);

/// Shortest budget. Hardware may take four times its timeout, and programs that start at the same time do not reach RTR
/// at the same time.
const BUDGET_MIN: Duration = Duration::from_secs(5);
/// Unit of a timeout, in nanoseconds.
const TIMEOUT_UNIT_NANOS: u64 = 4096;

/// RNR timers by code, in units of 10 us.
const RNR_TIMERS: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// Returns the pause after `dials` failed dials.
pub(super) fn pause(dials: u32) -> Duration {
    let factor = 1_u32.checked_shl(dials.saturating_sub(1)).unwrap_or(u32::MAX);
    PAUSE_MIN.saturating_mul(factor).min(PAUSE_MAX)
}

/// Returns the time for which posted requests wait for a connection; `None`: unlimited.
pub(super) fn budget(attributes: &IbvQpAttributes) -> Option<Duration> {
    let IbvQpAttributes { timeout, retry_cnt, .. } = *attributes;
    if timeout == 0 {
        return None;
    }
    let once = Duration::from_nanos(TIMEOUT_UNIT_NANOS << timeout.min(31));
    Some((once * (u32::from(retry_cnt) + 1)).max(BUDGET_MIN))
}

/// Returns the RNR timer of a code.
pub(super) fn rnr_timer(code: u8) -> Duration {
    let units = RNR_TIMERS[usize::from(code) % RNR_TIMERS.len()];
    Duration::from_micros(10) * units
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_limit() {
        let pauses = [0, 1, 2, 3, 6, 7, 40, u32::MAX].map(|dials| pause(dials).as_millis());
        assert_eq!(pauses, [10, 10, 20, 40, 320, 500, 500, 500]);
    }

    #[test]
    fn budget_is_the_sum_of_all_tries() {
        let of = |timeout, retry_cnt| {
            let attributes = IbvQpAttributes { timeout, retry_cnt, ..IbvQpAttributes::default() };
            budget(&attributes).map(|budget| budget.as_secs_f64().round() as u64)
        };
        assert_eq!(of(0, 7), None);
        assert_eq!(of(14, 7), Some(5));
        assert_eq!(of(18, 7), Some(9));
        assert_eq!(of(20, 7), Some(34));
        assert_eq!(of(20, 0), Some(5));
        assert_eq!(of(31, 7), Some(70_369));
    }

    #[test]
    fn rnr_timers_are_those_of_infiniband() {
        let codes = [0, 1, 12, 20, 26, 31].map(|code| rnr_timer(code).as_micros());
        assert_eq!(codes, [655_360, 10, 640, 10_240, 81_920, 491_520]);
    }
}
