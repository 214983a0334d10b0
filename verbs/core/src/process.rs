//! Generation of the process: each has a device and objects of its own ([`crate::device`]).

use std::sync::{
    Arc, Mutex, Weak,
    atomic::{AtomicU32, Ordering},
};

use crate::sync::lock;

/// Processes that descend from each other and each have an adapter, at most.
pub const GENERATIONS_MAX: usize = 64;

/// Forks so far, on the way to this process.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Has what was made before answer `ENODEV`: called in the child of a fork. It only counts.
pub fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Forks so far on the way to this process: what was made with another number is another process's. Below
/// [`GENERATIONS_MAX`] where there can be an adapter.
#[inline]
pub fn generation() -> usize {
    GENERATION.load(Ordering::Relaxed) as usize
}

/// Objects of one kind, for as long as somebody else keeps them. A child of a fork does not see its parent's.
#[derive(Debug)]
pub struct Registry<T>([Mutex<Members<T>>; GENERATIONS_MAX]);

#[derive(Debug)]
struct Members<T> {
    all: Vec<Weak<T>>,
    /// As many as that have those taken out that are gone.
    many: usize,
}

/// So few are never looked through.
const MANY_MIN: usize = 64;

impl<T> Registry<T> {
    /// Without a member.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "for statics only")]
    pub const fn new() -> Self {
        Self([const { Mutex::new(Members { all: Vec::new(), many: MANY_MIN }) }; GENERATIONS_MAX])
    }

    /// Enters an object.
    pub fn enter(&self, object: &Arc<T>) {
        let Some(members) = self.0.get(generation()) else { return };
        let mut members = lock(members);
        if members.all.len() >= members.many {
            members.all.retain(|member| member.strong_count() > 0);
            members.many = MANY_MIN.max(2 * members.all.len());
        }
        members.all.push(Arc::downgrade(object));
    }

    /// Objects that this process has inherited. A child has them from its parent, whose threads may have been using
    /// the registry at the fork: then there is none.
    pub fn inherited(&self) -> Vec<Arc<T>> {
        let earlier = &self.0[..generation().min(GENERATIONS_MAX)];
        let members = earlier.iter().filter_map(|members| members.try_lock().ok());
        members.flat_map(|it| it.all.iter().filter_map(Weak::upgrade).collect::<Vec<_>>()).collect()
    }

    /// Those of this process that are still there.
    pub fn members(&self) -> Vec<Arc<T>> {
        let Some(members) = self.0.get(generation()) else { return Vec::new() };
        // The last owner of one may go meanwhile: what is kept here is let go of without the lock.
        lock(members).all.iter().filter_map(Weak::upgrade).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The registry keeps nothing, and does not grow with what has gone.
    #[test]
    fn members_are_those_that_somebody_keeps() {
        static REGISTRY: Registry<u32> = Registry::new();
        let kept: [_; 3] = std::array::from_fn(|at| Arc::new(at as u32));
        kept.iter().for_each(|object| REGISTRY.enter(object));
        for _ in 0..10_000 {
            REGISTRY.enter(&Arc::new(9));
        }
        assert_eq!(REGISTRY.members(), kept);
        assert!(lock(&REGISTRY.0[generation()]).all.len() <= MANY_MIN);
    }
}
