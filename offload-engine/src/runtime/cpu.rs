//! CPU of the progress thread.
//!
//! A consumer that spins on memory makes no call while it waits, so the progress thread writes that memory. On few CPUs
//! each CPU then runs a spinning thread. If the progress thread wakes on the CPU of a foreign one, the scheduler may
//! let it wait for a tick, 4 ms at 250 Hz. On the CPU of its own consumer it preempts a thread that only waits for it,
//! and returns the CPU within microseconds.
//!
//! So after [`SLEEPS_MIN`] sleeps in sequence, before each of which a consumer has sent a post from the same CPU, the
//! thread is bound to that CPU. A stream of messages is work that another CPU may do meanwhile: it ends the binding, as
//! does a post from another CPU.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Sleeps in sequence, each after a post from the same CPU, from which the thread stays on it.
const SLEEPS_MIN: u32 = 8;

/// Decision about the CPU of a thread.
#[derive(Default)]
pub(super) struct CpuFollower {
    /// CPU of the last posts, and the sleeps with it in sequence.
    cpu: usize,
    sleeps: u32,
    /// CPUs of the thread before it was bound to [`Self::cpu`].
    before: Option<CpuSet>,
}

impl CpuFollower {
    /// Records that the calling thread is about to sleep, after a post from `cpu`.
    pub(super) fn record_sleep(&mut self, cpu: usize) {
        if cpu != self.cpu {
            self.release();
            self.cpu = cpu;
        }
        self.sleeps = self.sleeps.saturating_add(1);
        // A kernel that refuses is not called again for each sleep.
        if self.sleeps == SLEEPS_MIN
            && let Ok(before) = sched_getaffinity(None)
            && sched_setaffinity(None, &only(cpu)).is_ok()
        {
            self.before = Some(before);
        }
    }

    /// Ends the binding of the calling thread, and the sequence.
    pub(super) fn release(&mut self) {
        self.sleeps = 0;
        let Some(before) = self.before.take() else { return };
        // The user may have chosen other CPUs since.
        if sched_getaffinity(None).is_ok_and(|now| now == only(self.cpu)) {
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
    fn thread_stays_on_the_cpu_of_repeated_posts_until_a_stream_or_another_cpu() {
        thread::spawn(|| {
            let before = cpus();
            let [first, last] = two_cpus();
            let mut follower = CpuFollower::default();
            let mut sleep = |cpu, count| (0..count).for_each(|_| follower.record_sleep(cpu));
            sleep(first, SLEEPS_MIN - 1);
            assert_eq!(cpus(), before);
            sleep(first, 1);
            assert_eq!(cpus(), only(first));
            if first != last {
                sleep(last, SLEEPS_MIN - 1);
                assert_eq!(cpus(), before, "a post from another CPU");
                sleep(last, SLEEPS_MIN);
                assert_eq!(cpus(), only(last));
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
            (0..SLEEPS_MIN).for_each(|_| follower.record_sleep(first));
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
            (0..2 * SLEEPS_MIN).for_each(|_| follower.record_sleep(usize::MAX));
            assert_eq!(cpus(), before);
        })
        .join()
        .unwrap();
    }
}
