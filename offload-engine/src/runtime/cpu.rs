//! CPU of the progress thread.
//!
//! A consumer that spins on memory makes no call while it waits, so the progress thread writes that memory. On few CPUs
//! each CPU then runs a spinning thread. If the progress thread wakes on the CPU of a foreign one, the scheduler may
//! let it wait for a tick, 4 ms at 250 Hz. On the CPU of its own consumer it preempts a thread that only waits for it,
//! and returns the CPU within microseconds.
//!
//! So the thread is bound to the CPU of the posts before its sleeps, if it seldom changes: a score counts
//! sleeps after posts from the same CPU, and each change costs [`CHANGE`] of them. A consumer that the scheduler moves
//! is followed immediately; threads that post in turns from several CPUs end the binding. So does a stream of messages,
//! which another CPU may receive meanwhile.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Score from which the thread is bound, and points that a change of the CPU costs.
const CHANGE: u32 = 8;

/// Highest score.
const SCORE_MAX: u32 = 4 * CHANGE;

/// Decision about the CPU of a thread.
#[derive(Default)]
pub(super) struct CpuFollower {
    /// CPU of the last post.
    cpu: usize,
    score: u32,
    binding: Option<Binding>,
}

/// Binding of a thread to one CPU.
struct Binding {
    cpu: usize,
    /// CPUs of the thread before.
    before: CpuSet,
}

impl CpuFollower {
    /// Records that the calling thread is about to sleep, after a post from `cpu`.
    pub(super) fn record_sleep(&mut self, cpu: usize) {
        self.score = match cpu == self.cpu {
            true => (self.score + 1).min(SCORE_MAX),
            false => self.score.saturating_sub(CHANGE),
        };
        self.cpu = cpu;
        let bound = self.binding.as_ref().map(|binding| binding.cpu);
        if self.score < CHANGE {
            self.end();
        } else if bound != Some(cpu) {
            self.bind(cpu);
        }
    }

    /// Ends the binding of the calling thread after a stream.
    pub(super) fn release(&mut self) {
        self.score = 0;
        self.end();
    }

    fn bind(&mut self, cpu: usize) {
        let Ok(now) = sched_getaffinity(None) else { return };
        let before = match self.binding.take() {
            Some(binding) if now == only(binding.cpu) => binding.before,
            // The first binding, or the user has chosen other CPUs since.
            _ => now,
        };
        // Also after a failure: the kernel is not called again for each sleep.
        let _ = sched_setaffinity(None, &only(cpu));
        self.binding = Some(Binding { cpu, before });
    }

    fn end(&mut self) {
        let Some(Binding { cpu, before }) = self.binding.take() else { return };
        // Otherwise the user has chosen other CPUs since.
        if sched_getaffinity(None).is_ok_and(|now| now == only(cpu)) {
            let _ = sched_setaffinity(None, &before);
        }
    }
}

fn only(cpu: usize) -> CpuSet {
    let mut set = CpuSet::new();
    if cpu < CpuSet::MAX_CPU {
        set.set(cpu);
    }
    set
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::*;

    fn cpus() -> CpuSet {
        sched_getaffinity(None).unwrap()
    }

    /// The first and the last CPU of the process.
    fn two_cpus() -> [usize; 2] {
        let set = cpus();
        let all = || (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu));
        [all().next().unwrap(), all().next_back().unwrap()]
    }

    #[test]
    fn thread_is_bound_to_the_cpu_of_posts_until_a_stream_or_frequent_changes() {
        thread::spawn(|| {
            let before = cpus();
            let [first, last] = two_cpus();
            let mut follower = CpuFollower::default();
            let mut sleep = |cpu, count| (0..count).for_each(|_| follower.record_sleep(cpu));
            sleep(first, CHANGE - 1);
            assert_eq!(cpus(), before);
            sleep(first, SCORE_MAX);
            assert_eq!(cpus(), only(first));
            if first != last {
                sleep(last, 1);
                assert_eq!(cpus(), only(last), "the consumer was moved");
                sleep(first, 1);
                assert_eq!(cpus(), only(first));
                (0..2).for_each(|_| [last, first].into_iter().for_each(|cpu| sleep(cpu, 1)));
                assert_eq!(cpus(), before, "consumers on two CPUs");
                sleep(first, SCORE_MAX);
                assert_eq!(cpus(), only(first));
            }
            follower.release();
            assert_eq!(cpus(), before, "a stream");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn cpus_that_the_user_chose_remain() {
        let [first, last] = two_cpus();
        if first == last {
            return;
        }
        thread::spawn(move || {
            let mut follower = CpuFollower::default();
            (0..SCORE_MAX).for_each(|_| follower.record_sleep(first));
            sched_setaffinity(None, &only(last)).unwrap();
            follower.release();
            assert_eq!(cpus(), only(last));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn cpu_that_cannot_be_bound_is_ignored() {
        thread::spawn(|| {
            let before = cpus();
            let mut follower = CpuFollower::default();
            (0..2 * SCORE_MAX).for_each(|_| follower.record_sleep(usize::MAX));
            follower.release();
            assert_eq!(cpus(), before);
        })
        .join()
        .unwrap();
    }
}
