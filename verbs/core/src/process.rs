//! Generation of the process: each has a device and objects of its own ([`crate::device`]).

use std::{
    mem,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::sync::lock;

/// Maximum number of generations of processes that have a device.
pub const GENERATIONS_MAX: usize = 64;

/// Number of forks between the first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Maximum time to wait for the gate.
pub const GATE_WAIT_MAX: Duration = Duration::from_millis(100);

/// True while a [`ForkGate`] exists.
static GATE: AtomicBool = AtomicBool::new(false);

/// Access to inherited objects, or a fork: one at a time. Locks of such objects are only tried, so one that another
/// thread holds, here or at the fork, would leave the object to the parent.
#[derive(Debug)]
pub struct ForkGate(());

impl ForkGate {
    /// Enters the gate, for microseconds. After [`GATE_WAIT_MAX`] it enters anyway: a signal handler that forks
    /// may have interrupted the thread in the gate.
    #[must_use]
    pub fn enter() -> Self {
        let since = Instant::now();
        while GATE.swap(true, Ordering::Acquire) && since.elapsed() < GATE_WAIT_MAX {
            thread::yield_now();
        }
        Self(())
    }

    /// Enters the gate before a fork.
    pub fn close() {
        mem::forget(Self::enter());
    }

    /// Leaves the gate after a fork, in the parent and in the child.
    pub fn open() {
        drop(Self(()));
    }
}

impl Drop for ForkGate {
    fn drop(&mut self) {
        GATE.store(false, Ordering::Release);
    }
}

/// Begins a generation, in the child of a fork: objects of earlier ones return `ENODEV`. Async-signal-safe.
pub fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Returns the generation of this process. An object of another generation belongs to another process. Processes
/// with a device have one below [`GENERATIONS_MAX`].
#[inline]
pub fn generation() -> usize {
    GENERATION.load(Ordering::Relaxed) as usize
}

/// Weak references to the objects of one kind, by generation.
#[derive(Debug)]
pub struct Registry<T>([Mutex<Members<T>>; GENERATIONS_MAX]);

#[derive(Debug)]
struct Members<T> {
    all: Vec<Weak<T>>,
    /// Number of references at which those to dropped objects are removed.
    sweep_at: usize,
}

/// Smallest number of references that is swept.
const SWEEP_MIN: usize = 64;

impl<T> Registry<T> {
    /// Creates an empty registry.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "for statics only")]
    pub const fn new() -> Self {
        Self(
            [const { Mutex::new(Members { all: Vec::new(), sweep_at: SWEEP_MIN }) };
                GENERATIONS_MAX],
        )
    }

    /// Adds an object of this process.
    pub fn enter(&self, object: &Arc<T>) {
        let Some(members) = self.0.get(generation()) else { return };
        let mut members = lock(members);
        if members.all.len() >= members.sweep_at {
            members.all.retain(|member| member.strong_count() > 0);
            members.sweep_at = SWEEP_MIN.max(2 * members.all.len());
        }
        members.all.push(Arc::downgrade(object));
    }

    /// Returns the objects of the processes that this one descends from. A generation whose lock was held at the fork
    /// is skipped.
    pub fn inherited(&self) -> Vec<Arc<T>> {
        let earlier = &self.0[..generation().min(GENERATIONS_MAX)];
        let members = earlier.iter().filter_map(|members| members.try_lock().ok());
        members.flat_map(|it| it.all.iter().filter_map(Weak::upgrade).collect::<Vec<_>>()).collect()
    }

    /// Returns the objects of this process.
    pub fn members(&self) -> Vec<Arc<T>> {
        let Some(members) = self.0.get(generation()) else { return Vec::new() };
        // The caller may hold the last reference then, and drops it without the lock.
        lock(members).all.iter().filter_map(Weak::upgrade).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_objects_leave_the_registry() {
        static REGISTRY: Registry<u32> = Registry::new();
        let kept: [_; 3] = std::array::from_fn(|at| Arc::new(at as u32));
        kept.iter().for_each(|object| REGISTRY.enter(object));
        for _ in 0..10_000 {
            REGISTRY.enter(&Arc::new(9));
        }
        assert_eq!(REGISTRY.members(), kept);
        assert!(lock(&REGISTRY.0[generation()]).all.len() <= SWEEP_MIN);
    }
}
