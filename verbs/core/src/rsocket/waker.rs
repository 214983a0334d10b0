//! Wake-ups of threads that wait for rsockets. Each has a descriptor, and registers it with its rsockets. A change of
//! state wakes all of them; each thread checks the state itself.
//!
//! One descriptor for each rsocket would not do: the thread that reads its event takes it from the others.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex},
};

use offload_engine::descriptor::{Guarded, moved_up};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io,
};

use crate::{errno::Errno, sync::lock};

/// A thread that waits.
#[derive(Debug)]
pub struct Waker {
    descriptor: Guarded<OwnedFd>,
}

impl Waker {
    /// A waker.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(super) fn new() -> Result<Arc<Self>, Errno> {
        Ok(Arc::new(Self { descriptor: moved_up(eventfd(0, EventfdFlags::CLOEXEC)?).into() }))
    }

    /// Readable once it was woken up.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    fn wake(&self) {
        if !self.descriptor.is_intact() {
            return;
        }
        if let Err(error) = io::write(&self.descriptor, &1_u64.to_ne_bytes()) {
            tracing::error!(%error, "thread that waits for an rsocket not woken up");
        }
    }

    /// Takes back that it was woken up. `false`: it cannot be used any more.
    pub(super) fn reset(&self) -> bool {
        if !self.descriptor.is_intact() {
            return false;
        }
        let mut fds = [PollFd::from_borrowed_fd(self.descriptor(), PollFlags::IN)];
        match poll(&mut fds, Some(&Timespec::default())) {
            Ok(0) => true,
            Ok(_) => self.wait().is_ok(),
            Err(_) => false,
        }
    }

    /// Sleeps until it is woken up. The kernel repeats it after a signal whose handler asks for that (`SA_RESTART`).
    ///
    /// # Errors
    /// `EINTR`. `ENODEV`: the program has closed the descriptor.
    pub(super) fn wait(&self) -> Result<(), Errno> {
        if !self.descriptor.is_intact() {
            return Err(Errno::NODEV);
        }
        let mut count = [0; 8];
        io::read(&self.descriptor, &mut count)?;
        Ok(())
    }
}

/// The threads that wait for an rsocket.
#[derive(Debug, Default)]
pub(super) struct Wakers {
    waiting: Mutex<Vec<Arc<Waker>>>,
}

impl Wakers {
    /// Enters one.
    pub(super) fn enter(&self, waker: &Arc<Waker>) {
        lock(&self.waiting).push(waker.clone());
    }

    /// Takes it out. It is not woken up by this rsocket any more.
    pub(super) fn leave(&self, waker: &Arc<Waker>) {
        let mut waiting = lock(&self.waiting);
        if let Some(at) = waiting.iter().position(|it| Arc::ptr_eq(it, waker)) {
            waiting.swap_remove(at);
        }
    }

    /// Forgets the threads of the parent, in the child of a fork.
    pub(super) fn take_over(&self) -> Result<(), Errno> {
        self.waiting.try_lock().map_err(|_| Errno::NODEV)?.clear();
        Ok(())
    }

    /// Wakes up all.
    pub(super) fn wake(&self) {
        lock(&self.waiting).iter().for_each(|waker| waker.wake());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Each thread sees what happens while it is entered, and nothing afterwards.
    #[test]
    fn all_are_woken_up() {
        let (wakers, first, second) =
            (Wakers::default(), Waker::new().unwrap(), Waker::new().unwrap());
        wakers.enter(&first);
        wakers.enter(&second);
        wakers.wake();
        first.wait().unwrap();
        second.wait().unwrap();
        wakers.leave(&first);
        std::thread::scope(|scope| {
            scope.spawn(|| second.wait().unwrap());
            wakers.wake();
        });
        assert!(first.reset() && second.reset(), "nothing is left to wait for");
        wakers.wake();
        assert!(second.reset());
        assert!(second.reset());
    }
}
