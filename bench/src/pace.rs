//! How fast two processors exchange data now, compared with earlier.
//!
//! The host of a virtual machine may run two of its processors beside each other, on one cache, or apart, and changes
//! that every few seconds. Apart, whatever two programs exchange takes two to four times as long, whoever is measured:
//! a sample then tells where they ran. So a buffer goes back and forth between two processors before and after each
//! sample. As long as that is slow, samples wait; a sample that it is slow behind is taken again. Both together take no
//! more time than the samples themselves, so that a machine that stays slow is measured as it is.

use std::{
    hint::{black_box, spin_loop},
    sync::mpsc::{Receiver, TryRecvError, sync_channel},
    thread,
    time::{Duration, Instant},
};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

/// Bytes that go back and forth: in the second-level caches.
const BUFFER_BYTES: usize = 256 * 1024;
/// Length of a measurement.
const SPAN: Duration = Duration::from_millis(20);
/// Below this part of the upper quartile so far it is slow. The best would not do: two processors may be one core's for
/// a moment.
const SLOW_BELOW: f64 = 0.7;

/// The pace so far.
pub(super) struct Pace {
    /// Bytes a second now; `None`: it cannot be told.
    measure: Box<dyn FnMut() -> Option<f64>>,
    clock: Box<dyn Fn() -> Instant>,
    /// Those before and behind samples, in ascending order.
    past: Vec<f64>,
    /// Time of samples, less what was spent for the sake of the pace.
    budget: Duration,
    resampled: ResampleCounts,
}

/// Numbers of samples that met a slow phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(super) struct ResampleCounts {
    /// Repeated.
    pub(super) again: u32,
    /// Kept although they are slow: the budget was spent.
    pub(super) slow: u32,
}

impl Pace {
    /// Of the first two processors that this process may run on.
    pub(super) fn new() -> Self {
        let processors = processors();
        let measure = move || processors.as_ref().and_then(exchange);
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

    /// Takes a sample at the best pace, if the budget allows it. `check` fails when the run is to end.
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
            let mut is_slow = self.look();
            while is_slow && (self.clock)() - began < self.budget {
                check()?;
                is_slow = (self.measure)().is_some_and(|pace| self.is_slow(pace));
            }
            self.budget = self.budget.saturating_sub((self.clock)() - began);
            let began = (self.clock)();
            let sample = take()?;
            let took = (self.clock)() - began;
            is_slow |= self.look();
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

    /// Returns whether it is slow now.
    fn look(&mut self) -> bool {
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

/// The first two processors that this thread may run on.
fn processors() -> Option<[CpuSet; 2]> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut each = (0..CpuSet::MAX_CPU).filter(|&at| allowed.is_set(at)).map(|at| {
        let mut one = CpuSet::new();
        one.set(at);
        one
    });
    Some([each.next()?, each.next()?])
}

/// Bytes a second that go from one processor to the other and are read there. `None`: no threads, or the processors are
/// not ours any more.
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
            // The first one is for the threads to begin.
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

/// Spins until something comes; `None`: the other side is gone.
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

    /// A pace by the second that passes: `slow` says when it is slow. Each measurement takes a second, each sample ten.
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
    fn a_steady_machine_is_measured_once() {
        let (taken, pace) = played(|_| false, 3);
        assert_eq!(taken, [11, 23, 35]);
        assert_eq!(pace.resampled(), ResampleCounts::default());
    }

    #[test]
    fn samples_wait_for_the_pace() {
        let (taken, pace) = played(|second| (37..45).contains(&second), 4);
        assert_eq!(taken, [11, 23, 35, 55]);
        assert_eq!(pace.resampled(), ResampleCounts::default());
    }

    #[test]
    fn what_became_slow_is_taken_again() {
        let (taken, pace) = played(|second| (48..52).contains(&second), 4);
        assert_eq!(taken, [11, 23, 35, 62]);
        assert_eq!(pace.resampled(), ResampleCounts { again: 1, slow: 0 });
    }

    #[test]
    fn a_machine_that_became_slow_takes_no_more_than_twice_the_time() {
        let (taken, pace) = played(|second| second > 60, 50);
        assert!(taken[49] < 2 * 50 * 12, "{taken:?}");
        assert!((1..20).contains(&pace.resampled().slow), "{:?}", pace.resampled());
    }

    #[test]
    fn the_run_ends_while_it_is_slow() {
        let origin = Instant::now();
        let mut pace = Pace::with(Box::new(|| Some(10.0)), Box::new(move || origin));
        (pace.past, pace.budget) = (vec![40.0; 9], Duration::from_secs(1));
        assert_eq!(pace.sample(|| Err(2), || Ok(1)), Err(2));
    }

    #[test]
    fn two_processors_exchange_data() {
        let Some(processors) = processors() else { return };
        assert!(exchange(&processors).is_some_and(|pace| pace > 1e6));
    }
}
