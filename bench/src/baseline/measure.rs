//! Clocks, CPU time and CPU binding for all baselines.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use flue_report::failure::Failure;
use rustix::{
    thread::{CpuSet, sched_setaffinity, sched_yield},
    time::{ClockId, Timespec, clock_gettime},
};
use serde::{Deserialize, Serialize};

use super::Common;
use crate::process::cpu_ticks;

/// Time without progress after which a run fails: a frame was lost.
pub(super) const STALL_LIMIT: Duration = Duration::from_secs(10);

/// Longest warm-up: sufficient to open windows and warm up caches.
const WARM_UP_MAX: Duration = Duration::from_millis(200);

/// CPU time.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Cpu {
    pub(crate) user_seconds: f64,
    pub(crate) system_seconds: f64,
}

impl Cpu {
    /// Returns the CPU time of all threads of the process so far. The total is exact; its split is read from
    /// `/proc/self/stat`, which counts in ticks.
    fn of_process() -> Self {
        let total = seconds(clock_gettime(ClockId::ProcessCPUTime));
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let [user, system, ..] = cpu_ticks(&stat).unwrap_or([1, 0, 0, 0]);
        let share = system as f64 / (user + system).max(1) as f64;
        Self { user_seconds: total * (1.0 - share), system_seconds: total * share }
    }

    fn since(self, earlier: Self) -> Self {
        // Rounding to ticks can make a part smaller than before.
        let part = |now: f64, then: f64| (now - then).max(0.0);
        Self {
            user_seconds: part(self.user_seconds, earlier.user_seconds),
            system_seconds: part(self.system_seconds, earlier.system_seconds),
        }
    }
}

/// Returns the CPU time of the calling thread so far, seconds.
pub(super) fn thread_cpu_seconds() -> f64 {
    seconds(clock_gettime(ClockId::ThreadCPUTime))
}

fn seconds(time: Timespec) -> f64 {
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    at: Instant,
    count: u64,
    cpu: Cpu,
}

impl Mark {
    fn now(count: u64) -> Self {
        Self { cpu: Cpu::of_process(), at: Instant::now(), count }
    }
}

/// Counts of the measured period.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub(super) seconds: f64,
    pub(super) count: u64,
    pub(super) cpu: Cpu,
}

/// Clock of the warm-up and of the measured period.
#[derive(Debug)]
pub(super) struct Stopwatch {
    warm_until: Instant,
    length: Duration,
    first: Option<Mark>,
    last: Option<Mark>,
}

impl Stopwatch {
    /// Starts the warm-up.
    pub(super) fn start(length: Duration) -> Self {
        let warm_until = Instant::now() + WARM_UP_MAX.min(length / 5);
        Self { warm_until, length, first: None, last: None }
    }

    /// Returns true if the measured period has ended; `count` is the receiver's count so far. Call it every few
    /// microseconds.
    pub(super) fn is_over(&mut self, count: u64) -> bool {
        let now = Instant::now();
        match self.first {
            None if now >= self.warm_until => self.first = Some(Mark::now(count)),
            // On a busy machine no data may have arrived yet: then the period is extended until the first arrival.
            Some(Mark { at, count: before, .. })
                if now - at >= self.length && count > before && self.last.is_none() =>
            {
                self.last = Some(Mark::now(count));
            }
            _ => {}
        }
        self.last.is_some()
    }

    /// Returns true if the warm-up has ended.
    pub(super) const fn is_warm(&self) -> bool {
        self.first.is_some()
    }

    /// Returns the counts of the measured period.
    ///
    /// # Errors
    /// The measured period is not over.
    pub(super) fn measured(&self) -> Result<Measured, Failure> {
        let (Some(first), Some(last)) = (self.first, self.last) else {
            return Err(Failure::work("measurement: ended early"));
        };
        Ok(Measured {
            seconds: (last.at - first.at).as_secs_f64(),
            count: last.count - first.count,
            cpu: last.cpu.since(first.cpu),
        })
    }
}

/// Idle strategy: poll a few times, then call sched_yield(2) between polls, and fail after [`STALL_LIMIT`].
#[derive(Clone, Copy, Debug)]
pub(super) struct SpinThenYield {
    polls_before_yield: u32,
    waits: u32,
    since: Option<Instant>,
}

impl SpinThenYield {
    /// Waits per clock read.
    const WAITS_PER_CLOCK: u32 = 256;

    /// Creates a strategy that yields immediately, for throughput.
    pub(super) const fn new() -> Self {
        Self { polls_before_yield: 0, waits: 0, since: None }
    }

    /// Creates a strategy that polls for about a round trip before it yields, for latency. Yields immediately if both
    /// ends share a CPU.
    pub(super) fn for_answers(common: &Common) -> Self {
        const POLLS: u32 = 64;
        let is_alone = thread::available_parallelism().is_ok_and(|count| count.get() == 1)
            || common.cpus.is_some_and(|(near, far)| near == far);
        Self { polls_before_yield: if is_alone { 0 } else { POLLS }, ..Self::new() }
    }

    /// Resets the strategy after progress.
    pub(super) const fn renew(&mut self) {
        self.waits = 0;
        self.since = None;
    }

    /// Waits briefly; returns false after [`STALL_LIMIT`] without progress.
    pub(super) fn wait(&mut self) -> bool {
        self.waits += 1;
        if self.waits <= self.polls_before_yield {
            return true;
        }
        sched_yield();
        if self.waits < self.polls_before_yield + Self::WAITS_PER_CLOCK {
            return true;
        }
        self.waits = self.polls_before_yield;
        let now = Instant::now();
        now - *self.since.get_or_insert(now) < STALL_LIMIT
    }
}

/// End of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// The measuring end.
    Near,
    /// Its peer.
    Far,
}

/// Binds the calling thread to its CPU of `--cpus`.
///
/// # Errors
/// There is no such CPU, or this process may not use it.
pub(super) fn bind(common: &Common, end: End) -> Result<(), Failure> {
    let Some((near, far)) = common.cpus else { return Ok(()) };
    let number = if end == End::Near { near } else { far };
    let mut set = CpuSet::new();
    set.set(number);
    sched_setaffinity(None, &set)
        .map_err(|error| Failure::usage(format!("--cpus: CPU {number}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_of_the_process() {
        let before = Cpu::of_process();
        let mut sum = 0_u64;
        while thread_cpu_seconds() < 0.002 {
            sum = std::hint::black_box(sum + 1);
        }
        let used = Cpu::of_process().since(before);
        assert!(used.user_seconds >= 0.0 && used.system_seconds >= 0.0, "{used:?}");
        let earlier = Cpu { user_seconds: 1.0, system_seconds: 2.0 };
        let later = Cpu { user_seconds: 1.5, system_seconds: 2.0 };
        assert_eq!(earlier.since(later), Cpu::default(), "never negative");
    }

    #[test]
    fn stopwatch_excludes_warm_up() {
        let mut watch = Stopwatch::start(Duration::ZERO);
        assert!(watch.measured().is_err() && !watch.is_warm());
        assert!(!watch.is_over(100));
        assert!(watch.is_warm());
        assert!(!watch.is_over(100), "no arrival yet");
        assert!(watch.is_over(175) && watch.is_over(1000));
        assert_eq!(watch.measured().unwrap().count, 75);
    }

    #[test]
    fn progress_resets_the_stall_limit() {
        let mut idle = SpinThenYield::new();
        for _ in 0..=SpinThenYield::WAITS_PER_CLOCK {
            assert!(idle.wait());
        }
        assert!(idle.since.is_some());
        idle.renew();
        assert!(idle.since.is_none() && idle.wait());
    }
}
