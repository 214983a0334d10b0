//! Time, processor time and places: what all yardsticks measure with.

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

/// A run that does not get further within this time has lost something.
pub(super) const STALL_LIMIT: Duration = Duration::from_secs(10);

/// Longest warm-up: windows are open and caches warm by then.
const WARM_UP_MAX: Duration = Duration::from_millis(200);

/// Processor time.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Cpu {
    pub(crate) user_seconds: f64,
    pub(crate) system_seconds: f64,
}

impl Cpu {
    /// Of the process until now, all threads.
    ///
    /// The sum is exact; how it divides comes from `/proc/self/stat`, which counts in ticks.
    fn of_process() -> Self {
        let total = seconds(clock_gettime(ClockId::ProcessCPUTime));
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let [user, system, ..] = cpu_ticks(&stat).unwrap_or([1, 0, 0, 0]);
        let share = system as f64 / (user + system).max(1) as f64;
        Self { user_seconds: total * (1.0 - share), system_seconds: total * share }
    }

    fn since(self, earlier: Self) -> Self {
        // Ticks may round a part down between two marks.
        let part = |now: f64, then: f64| (now - then).max(0.0);
        Self {
            user_seconds: part(self.user_seconds, earlier.user_seconds),
            system_seconds: part(self.system_seconds, earlier.system_seconds),
        }
    }
}

/// Of the calling thread until now, seconds.
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

/// What has been counted in the time that was measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub(super) seconds: f64,
    pub(super) count: u64,
    pub(super) cpu: Cpu,
}

/// A warm-up, then the time that is measured.
#[derive(Debug)]
pub(super) struct Stopwatch {
    warm_until: Instant,
    length: Duration,
    first: Option<Mark>,
    last: Option<Mark>,
}

impl Stopwatch {
    /// Started.
    pub(super) fn start(length: Duration) -> Self {
        let warm_until = Instant::now() + WARM_UP_MAX.min(length / 5);
        Self { warm_until, length, first: None, last: None }
    }

    /// Whether the time is over; `count` is what the receiver has until now. To be asked every few
    /// microseconds.
    pub(super) fn is_over(&mut self, count: u64) -> bool {
        let now = Instant::now();
        match self.first {
            None if now >= self.warm_until => self.first = Some(Mark::now(count)),
            // On a machine that others load nothing may have arrived yet: then it goes on until something has.
            Some(Mark { at, count: before, .. })
                if now - at >= self.length && count > before && self.last.is_none() =>
            {
                self.last = Some(Mark::now(count));
            }
            _ => {}
        }
        self.last.is_some()
    }

    /// Whether the warm-up is over.
    pub(super) const fn is_warm(&self) -> bool {
        self.first.is_some()
    }

    /// What was counted between the end of the warm-up and the end.
    ///
    /// # Errors
    /// It was not over.
    pub(super) fn measured(&self) -> Result<Measured, Failure> {
        let (Some(first), Some(last)) = (self.first, self.last) else {
            return Err(Failure::work("the run ended before its time"));
        };
        Ok(Measured {
            seconds: (last.at - first.at).as_secs_f64(),
            count: last.count - first.count,
            cpu: last.cpu.since(first.cpu),
        })
    }
}

/// Waits: a few looks on the spot, then by giving others the processor between two looks. Knows when that
/// has gone on for too long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    looks_on_the_spot: u32,
    waits: u32,
    since: Option<Instant>,
}

impl Patience {
    /// Waits between two looks at the clock.
    const WAITS_PER_CLOCK: u32 = 256;

    /// Gives the processor away from the start: for whom throughput counts.
    pub(super) const fn new() -> Self {
        Self { looks_on_the_spot: 0, waits: 0, since: None }
    }

    /// Stays for as long as an answer may take that comes from another processor, unless the other end is
    /// bound to the same.
    pub(super) fn for_answers(common: &Common) -> Self {
        const LOOKS: u32 = 64;
        let is_alone = thread::available_parallelism().is_ok_and(|count| count.get() == 1)
            || common.cpus.is_some_and(|(near, far)| near == far);
        Self { looks_on_the_spot: if is_alone { 0 } else { LOOKS }, ..Self::new() }
    }

    /// Something happened.
    pub(super) const fn renew(&mut self) {
        self.waits = 0;
        self.since = None;
    }

    /// Waits a moment; false once nothing has happened for [`STALL_LIMIT`].
    pub(super) fn wait(&mut self) -> bool {
        self.waits += 1;
        if self.waits <= self.looks_on_the_spot {
            return true;
        }
        sched_yield();
        if self.waits < self.looks_on_the_spot + Self::WAITS_PER_CLOCK {
            return true;
        }
        self.waits = self.looks_on_the_spot;
        let now = Instant::now();
        now - *self.since.get_or_insert(now) < STALL_LIMIT
    }
}

/// Which of the two ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// The one that measures.
    Near,
    /// The other.
    Far,
}

/// Binds the calling thread as `--cpus` says.
///
/// # Errors
/// There is no such processor, or it is not for this process.
pub(super) fn bind(common: &Common, end: End) -> Result<(), Failure> {
    let Some((near, far)) = common.cpus else { return Ok(()) };
    let number = if end == End::Near { near } else { far };
    let mut set = CpuSet::new();
    set.set(number);
    sched_setaffinity(None, &set)
        .map_err(|error| Failure::usage(format!("--cpus: processor {number}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_that_of_the_process() {
        let before = Cpu::of_process();
        let mut sum = 0_u64;
        while thread_cpu_seconds() < 0.002 {
            sum = std::hint::black_box(sum + 1);
        }
        let used = Cpu::of_process().since(before);
        assert!(used.user_seconds >= 0.0 && used.system_seconds >= 0.0, "{used:?}");
        let earlier = Cpu { user_seconds: 1.0, system_seconds: 2.0 };
        let later = Cpu { user_seconds: 1.5, system_seconds: 2.0 };
        assert_eq!(earlier.since(later), Cpu::default(), "backward is nothing");
    }

    #[test]
    fn a_stopwatch_counts_from_the_end_of_the_warm_up() {
        let mut watch = Stopwatch::start(Duration::ZERO);
        assert!(watch.measured().is_err() && !watch.is_warm());
        assert!(!watch.is_over(100));
        assert!(watch.is_warm());
        assert!(!watch.is_over(100), "nothing has arrived");
        assert!(watch.is_over(175) && watch.is_over(1000));
        assert_eq!(watch.measured().unwrap().count, 75);
    }

    #[test]
    fn patience_is_renewed() {
        let mut patience = Patience::new();
        for _ in 0..=Patience::WAITS_PER_CLOCK {
            assert!(patience.wait());
        }
        assert!(patience.since.is_some());
        patience.renew();
        assert!(patience.since.is_none() && patience.wait());
    }
}
