//! Wake-ups of threads that wait for rsockets. Each has a descriptor, and registers it with its rsockets. A change of
//! state wakes all of them; each thread checks the state itself.
//!
//! A descriptor per rsocket would not suffice: the thread that reads its event takes it from the others.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex},
};

use offload_engine::descriptor::{Guarded, move_to_high_number};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io,
};

use crate::{errno::Errno, sync::lock};

/// Waiting thread.
#[derive(Debug)]
pub struct Waker {
    descriptor: Guarded<OwnedFd>,
}

impl Waker {
    /// Creates a waker.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`: no descriptor available.
    pub(super) fn new() -> Result<Arc<Self>, Errno> {
        Ok(Arc::new(Self {
            descriptor: move_to_high_number(eventfd(0, EventfdFlags::CLOEXEC)?).into(),
        }))
    }

    /// Returns the descriptor, which is readable after a wake-up.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    fn wake(&self) {
        if !self.descriptor.is_intact() {
            return;
        }
        if let Err(error) = io::write(&self.descriptor, &1_u64.to_ne_bytes()) {
            tracing::error!(%error, "wake-up of a thread in rsocket wait failed");
        }
    }

    /// Clears wake-ups. Returns false if the waker is not reusable.
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

    /// Blocks until the wake-up. After a signal whose handler has `SA_RESTART`, the kernel restarts the read.
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

/// Threads that wait for an rsocket.
#[derive(Debug, Default)]
pub(super) struct Wakers {
    waiting: Mutex<Vec<Arc<Waker>>>,
}

impl Wakers {
    /// Adds a waker.
    pub(super) fn add(&self, waker: &Arc<Waker>) {
        lock(&self.waiting).push(waker.clone());
    }

    /// Removes a waker.
    pub(super) fn remove(&self, waker: &Arc<Waker>) {
        let mut waiting = lock(&self.waiting);
        if let Some(at) = waiting.iter().position(|it| Arc::ptr_eq(it, waker)) {
            waiting.swap_remove(at);
        }
    }

    /// Removes the wakers of the parent, in the child of a fork.
    pub(super) fn take_over(&self) -> Result<(), Errno> {
        self.waiting.try_lock().map_err(|_| Errno::NODEV)?.clear();
        Ok(())
    }

    /// Wakes all threads.
    pub(super) fn wake(&self) {
        lock(&self.waiting).iter().for_each(|waker| waker.wake());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake_reaches_all_registered_threads() {
        let (wakers, first, second) =
            (Wakers::default(), Waker::new().unwrap(), Waker::new().unwrap());
        wakers.add(&first);
        wakers.add(&second);
        wakers.wake();
        first.wait().unwrap();
        second.wait().unwrap();
        wakers.remove(&first);
        std::thread::scope(|scope| {
            scope.spawn(|| second.wait().unwrap());
            wakers.wake();
        });
        assert!(first.reset() && second.reset(), "no wake-up is left");
        wakers.wake();
        assert!(second.reset());
        assert!(second.reset());
    }
}
