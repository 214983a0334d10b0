//! Current speed of data exchange between two CPUs, compared with earlier.
//!
//! The host of a virtual machine may place two of its CPUs on one cache, or apart, and changes that every few seconds.
//! If they are apart, any exchange between two programs takes two to four times as long, and a sample measures the
//! placement. So a buffer is exchanged between two CPUs before and after each sample. While the exchange is slow,
//! samples are delayed; a sample followed by a slow exchange is repeated. Delays and repetitions together take at most
//! as long as the samples themselves, so that a machine that remains slow is measured as it is.

use std::{
    hint::{black_box, spin_loop},
    sync::mpsc::{Receiver, TryRecvError, sync_channel},
    thread,
    time::{Duration, Instant},
};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

/// Size of the exchanged buffer, bytes: fits into the second-level caches.
const BUFFER_BYTES: usize = 256 * 1024;
/// Duration of one speed measurement.
const SPAN: Duration = Duration::from_millis(20);
/// Fraction of the upper quartile so far below which the exchange is slow. The maximum is unsuitable: two CPUs may
/// briefly share one core.
const SLOW_BELOW: f64 = 0.7;

/// Speed measurements so far.
pub(super) struct Pace {
    /// Measures the current speed, bytes per second; `None`: not measurable.
    measure: Box<dyn FnMut() -> Option<f64>>,
    clock: Box<dyn Fn() -> Instant>,
    /// Speeds before and after samples, in ascending order.
    past: Vec<f64>,
    /// Time of samples, minus the time spent on delays and repetitions.
    budget: Duration,
    resampled: ResampleCounts,
}

/// Numbers of samples taken in a slow phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(super) struct ResampleCounts {
    /// Repeated samples.
    pub(super) again: u32,
    /// Slow samples that were kept because the budget was exhausted.
    pub(super) slow: u32,
}

impl Pace {
    /// Creates the monitor of the first two CPUs on which this process may run.
    pub(super) fn new() -> Self {
        let cpus = cpus();
        let measure = move || cpus.as_ref().and_then(exchange);
        Self::with(Box::new(measure), Box::new(Instant::now))
    }

    fn with(measure: Box<dyn FnMut() -> Option<f64>>, clock: Box<dyn Fn() -> Instant>) -> Self {
        Self {
            measure,
            clock,
            past: Vec::new(),
            budget: Duration::ZERO,
            resampled: ResampleCounts::default(),
        }
    }

    /// Takes a sample while the exchange is fast, if the budget permits. `check` fails when the run must end.
    ///
    /// # Errors
    /// Those of `take` and `check`.
    pub(super) fn sample<T, E>(
        &mut self,
        check: impl Fn() -> Result<(), E>,
        mut take: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        loop {
            let began = (self.clock)();
            let mut is_slow = self.is_slow_now();
            while is_slow && (self.clock)() - began < self.budget {
                check()?;
                is_slow = (self.measure)().is_some_and(|pace| self.is_slow(pace));
            }
            self.budget = self.budget.saturating_sub((self.clock)() - began);
            let began = (self.clock)();
            let sample = take()?;
            let took = (self.clock)() - began;
            is_slow |= self.is_slow_now();
            if !is_slow || took > self.budget {
                self.resampled.slow += u32::from(is_slow);
                self.budget += took;
                return Ok(sample);
            }
            self.budget -= took;
            self.resampled.again += 1;
        }
    }

    pub(super) const fn resampled(&self) -> ResampleCounts {
        self.resampled
    }

    /// Measures the speed; returns true if it is slow.
    fn is_slow_now(&mut self) -> bool {
        let Some(pace) = (self.measure)() else { return false };
        let at = self.past.partition_point(|&past| past < pace);
        self.past.insert(at, pace);
        self.is_slow(pace)
    }

    fn is_slow(&self, pace: f64) -> bool {
        let last = self.past.len().saturating_sub(1);
        self.past.get(last * 3 / 4).is_some_and(|upper| pace < upper * SLOW_BELOW)
    }
}

/// Returns the first two CPUs on which this thread may run.
fn cpus() -> Option<[CpuSet; 2]> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut each = (0..CpuSet::MAX_CPU).filter(|&at| allowed.is_set(at)).map(|at| {
        let mut one = CpuSet::new();
        one.set(at);
        one
    });
    Some([each.next()?, each.next()?])
}

/// Returns the bytes per second transferred from one CPU to the other and read there. `None`: a thread could not be
/// started, or the CPUs are no longer available to this process.
fn exchange([near, far]: &[CpuSet; 2]) -> Option<f64> {
    let (to_far, from_near) = sync_channel::<Vec<u8>>(1);
    let (to_near, from_far) = sync_channel(1);
    thread::scope(|scope| {
        let echo = move || {
            sched_setaffinity(None, far).ok()?;
            let source = black_box(vec![1; BUFFER_BYTES]);
            while let Some(mut buffer) = receive(&from_near) {
                buffer.copy_from_slice(&source);
                to_near.send(buffer).ok()?;
            }
            Some(())
        };
        let count = move || {
            sched_setaffinity(None, near).ok()?;
            let mut own = vec![0; BUFFER_BYTES];
            let mut exchange = |buffer| {
                to_far.send(buffer).ok()?;
                let buffer = receive(&from_far)?;
                own.copy_from_slice(&buffer);
                black_box(&mut own);
                Some(buffer)
            };
            // The first exchange absorbs the start of the threads.
            let mut buffer = exchange(vec![0; BUFFER_BYTES])?;
            let (began, mut bytes) = (Instant::now(), 0);
            while began.elapsed() < SPAN {
                buffer = exchange(buffer)?;
                bytes += BUFFER_BYTES;
            }
            Some(bytes as f64 / began.elapsed().as_secs_f64())
        };
        thread::Builder::new().spawn_scoped(scope, echo).ok()?;
        thread::Builder::new().spawn_scoped(scope, count).ok()?.join().ok()?
    })
}

/// Spins until a value arrives; `None`: the other side has ended.
fn receive<T>(from: &Receiver<T>) -> Option<T> {
    loop {
        match from.try_recv() {
            Ok(value) => return Some(value),
            Err(TryRecvError::Empty) => spin_loop(),
            Err(TryRecvError::Disconnected) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc};

    use super::*;

    /// Simulates a machine on a clock in seconds: `slow` returns true for slow seconds. Each speed measurement takes
    /// one second, each sample ten.
    fn played(slow: impl Fn(u64) -> bool + 'static, samples: usize) -> (Vec<u64>, Pace) {
        let seconds = Rc::new(Cell::new(0));
        let (at, origin) = (seconds.clone(), Instant::now());
        let clock = move || origin + Duration::from_secs(at.get());
        let at = seconds.clone();
        let measure = move || {
            at.set(at.get() + 1);
            Some(if slow(at.get()) { 10.0 } else { 40.0 })
        };
        let mut pace = Pace::with(Box::new(measure), Box::new(clock));
        let take = || {
            seconds.set(seconds.get() + 10);
            Ok::<_, ()>(seconds.get())
        };
        let taken = (0..samples).map(|_| pace.sample(|| Ok(()), take).unwrap()).collect();
        (taken, pace)
    }

    #[test]
    fn steady_machine_has_no_repetitions() {
        let (taken, pace) = played(|_| false, 3);
        assert_eq!(taken, [11, 23, 35]);
        assert_eq!(pace.resampled(), ResampleCounts::default());
    }

    #[test]
    fn slow_phase_delays_samples() {
        let (taken, pace) = played(|second| (37..45).contains(&second), 4);
        assert_eq!(taken, [11, 23, 35, 55]);
        assert_eq!(pace.resampled(), ResampleCounts::default());
    }

    #[test]
    fn slow_sample_is_repeated() {
        let (taken, pace) = played(|second| (48..52).contains(&second), 4);
        assert_eq!(taken, [11, 23, 35, 62]);
        assert_eq!(pace.resampled(), ResampleCounts { again: 1, slow: 0 });
    }

    #[test]
    fn permanently_slow_machine_at_most_doubles_the_time() {
        let (taken, pace) = played(|second| second > 60, 50);
        assert!(taken[49] < 2 * 50 * 12, "{taken:?}");
        assert!((1..20).contains(&pace.resampled().slow), "{:?}", pace.resampled());
    }

    #[test]
    fn failed_check_ends_a_delay() {
        let origin = Instant::now();
        let mut pace = Pace::with(Box::new(|| Some(10.0)), Box::new(move || origin));
        (pace.past, pace.budget) = (vec![40.0; 9], Duration::from_secs(1));
        assert_eq!(pace.sample(|| Err(2), || Ok(1)), Err(2));
    }

    #[test]
    fn two_cpus_exchange_data() {
        let Some(cpus) = cpus() else { return };
        assert!(exchange(&cpus).is_some_and(|pace| pace > 1e6));
    }
}
