//! Event queue: descriptor, order, withdrawal, acknowledgments.
//!
//! The descriptor is an eventfd in semaphore mode, with one unit for each queued event. So poll(2) reports it readable
//! while events are queued, and a read(2) of the program blocks, or returns EAGAIN or EINTR as the program configured.
//! A reader takes a unit first, without a lock, and then an event. If the event was withdrawn between the two, the
//! reader finds none and reads again.
//!
//! When the device fails ([`crate::fatal`]) the queues of the process are closed: their descriptors remain readable,
//! and a reader that finds no event gets an error instead of blocking.

use std::{
    collections::VecDeque,
    fmt,
    os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use offload_engine::descriptor;
use rustix::{
    event::{EventfdFlags, eventfd},
    fs::{OFlags, fcntl_getfl, fcntl_setfl, fstat},
    io,
};

use crate::{
    errno::Errno,
    process::{GENERATIONS_MAX, Registry, generation},
    sync::lock,
};

/// Units added to a closed queue: more than a program can read.
const UNITS_OF_CLOSED: u64 = 1 << 62;

/// Descriptors of all queues of a process.
static DESCRIPTORS: Registry<Descriptor> = Registry::new();

/// True if the queues of a generation are closed, also those created later.
static ARE_CLOSED: [AtomicBool; GENERATIONS_MAX] =
    [const { AtomicBool::new(false) }; GENERATIONS_MAX];

/// Closes the queues of this process.
pub(crate) fn close_all() {
    if let Some(are_closed) = ARE_CLOSED.get(generation()) {
        are_closed.store(true, Ordering::Release);
        DESCRIPTORS.members().iter().for_each(|descriptor| descriptor.close());
    }
}

/// Error of an empty closed queue: no event follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closed;

impl From<Closed> for Errno {
    fn from(Closed: Closed) -> Self {
        Self::IO
    }
}

/// Descriptor of a queue.
#[derive(Debug)]
struct Descriptor {
    /// `None` only in `drop`. The program has the number and may close it; the number may then be that of another file.
    events: Option<OwnedFd>,
    inode: Inode,
    is_closed: AtomicBool,
}

/// Device and number of an inode.
type Inode = (u64, u64);

fn inode(of: BorrowedFd<'_>) -> Option<Inode> {
    fstat(of).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if !self.is_intact()
            && let Some(events) = self.events.take()
        {
            let _ = events.into_raw_fd();
        }
    }
}

impl Descriptor {
    fn new() -> std::io::Result<Arc<Self>> {
        descriptor::watch()?;
        let events = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::CLOEXEC)?;
        let inode = inode(events.as_fd()).ok_or(io::Errno::BADF)?;
        let events = Some(events);
        let descriptor = Arc::new(Self { events, inode, is_closed: AtomicBool::new(false) });
        DESCRIPTORS.enter(&descriptor);
        // Registered first: a descriptor that `close_all` missed finds the flag set.
        let are_closed = ARE_CLOSED.get(generation());
        if are_closed.is_some_and(|closed| closed.load(Ordering::Acquire)) {
            descriptor.close();
        }
        Ok(descriptor)
    }

    fn close(&self) {
        if !self.is_closed.swap(true, Ordering::Release) {
            self.add(UNITS_OF_CLOSED);
        }
    }

    fn events(&self) -> BorrowedFd<'_> {
        self.events.as_ref().expect("the descriptor exists until it is closed").as_fd()
    }

    /// Returns true if the number is still that of the queue: the program has closed neither it nor all descriptors of
    /// the library.
    fn is_intact(&self) -> bool {
        !descriptor::are_lost() && inode(self.events()) == Some(self.inode)
    }

    fn add(&self, units: u64) {
        if descriptor::are_lost() {
            return;
        }
        if !self.is_intact() {
            tracing::error!(
                error = "event descriptor closed by the program",
                "event notification failed"
            );
            return;
        }
        if let Err(error) = io::write(self.events(), &units.to_ne_bytes()) {
            tracing::error!(%error, "event notification failed");
        }
    }
}

/// Callback for each event or completion. It runs on any thread, perhaps with the lock of the object held, so it must
/// only wake threads.
pub struct EventCallback(pub Box<dyn Fn() + Send + Sync>);

impl fmt::Debug for EventCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

/// Queue of events.
#[derive(Debug)]
pub struct EventQueue<T> {
    descriptor: Arc<Descriptor>,
    queued: Mutex<VecDeque<T>>,
    /// Generation of the process that it belongs to.
    owner: AtomicUsize,
}

impl<T> EventQueue<T> {
    /// Creates an empty queue.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`: no descriptor available.
    pub fn new() -> Result<Self, Errno> {
        let owner = AtomicUsize::new(generation());
        Ok(Self { descriptor: Descriptor::new()?, queued: Mutex::default(), owner })
    }

    /// Returns true if the queue belongs to this process.
    pub fn is_own(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == generation()
    }

    /// Checks that events can arrive in this process.
    ///
    /// # Errors
    /// `ENODEV`: it belongs to a process that this one was forked from.
    pub fn check(&self) -> Result<(), Errno> {
        if self.is_own() { Ok(()) } else { Err(Errno::NODEV) }
    }

    /// Checks that the program can read the descriptor.
    ///
    /// # Errors
    /// `ENODEV`: the program has closed all descriptors of the library. `EBADF`: it has closed this one.
    pub fn check_descriptor(&self) -> Result<(), Errno> {
        match self.descriptor.is_intact() {
            true => Ok(()),
            false if descriptor::are_lost() => Err(Errno::NODEV),
            false => Err(Errno::BADF),
        }
    }

    /// Transfers an inherited queue to this process, and drops its events.
    ///
    /// # Errors
    /// `ENODEV`: another thread held the queue's lock at the fork.
    pub fn take_over(&self) -> Result<(), Errno> {
        self.queued.try_lock().map_err(|_| Errno::NODEV)?.clear();
        DESCRIPTORS.enter(&self.descriptor);
        self.owner.store(generation(), Ordering::Relaxed);
        Ok(())
    }

    /// Wakes a program that polls the descriptor, without an event: the reader finds none and reads again.
    pub(crate) fn wake(&self) {
        self.descriptor.add(1);
    }

    /// Returns the descriptor, for the program.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.events()
    }

    /// Adds an event, unless `is_unwanted` returns true. It is called under the queue's lock, so that
    /// [`EventQueue::withdraw`] cannot run between the check and the insertion.
    pub fn push_unless(&self, event: T, is_unwanted: impl FnOnce() -> bool) {
        let mut queued = lock(&self.queued);
        if is_unwanted() {
            return;
        }
        queued.push_back(event);
        self.descriptor.add(1);
    }

    /// Adds an event.
    pub fn push(&self, event: T) {
        self.push_unless(event, || false);
    }

    /// Takes the event of a unit that was read, and calls `count` with it. `None`: the event was withdrawn.
    ///
    /// # Errors
    /// [`Closed`]: the queue is empty and closed.
    pub fn take(&self, count: impl FnOnce(&T)) -> Result<Option<T>, Closed> {
        // Read first: events that were added before the close are found.
        let is_closed = self.descriptor.is_closed.load(Ordering::Acquire);
        match lock(&self.queued).pop_front() {
            None if is_closed => Err(Closed),
            event => Ok(event.inspect(count)),
        }
    }

    /// Removes the events for which `is_withdrawn` returns true, with their units.
    pub fn withdraw(&self, mut is_withdrawn: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut queued = lock(&self.queued);
        let (withdrawn, kept): (Vec<_>, Vec<_>) =
            queued.drain(..).partition(|event| is_withdrawn(event));
        *queued = kept.into();
        if !withdrawn.is_empty()
            && let Err(error) = self.take_units(withdrawn.len())
        {
            tracing::error!(%error, "event descriptor not cleared");
        }
        withdrawn
    }

    /// Takes units without blocking, since readers may have taken them. The descriptor is non-blocking during the call,
    /// under the lock that [`EventQueue::is_blocking`] takes.
    fn take_units(&self, count: usize) -> io::Result<()> {
        if !self.descriptor.is_intact() {
            return Ok(());
        }
        let flags = fcntl_getfl(self.descriptor())?;
        if !flags.contains(OFlags::NONBLOCK) {
            fcntl_setfl(self.descriptor(), flags | OFlags::NONBLOCK)?;
        }
        let mut unit = [0; 8];
        let taken = (0..count).try_for_each(|_| io::read(self.descriptor(), &mut unit).map(|_| ()));
        if !flags.contains(OFlags::NONBLOCK) {
            fcntl_setfl(self.descriptor(), flags)?;
        }
        match taken {
            Err(io::Errno::AGAIN) => Ok(()),
            other => other,
        }
    }

    /// Returns true if the program's descriptor is in blocking mode. Then a withdrawal caused an EAGAIN, and the
    /// program must not get it.
    pub fn is_blocking(&self) -> bool {
        let _queued = lock(&self.queued);
        fcntl_getfl(self.descriptor()).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK))
    }
}

/// Events of an object that the program has taken and not yet acknowledged. The destruction of the object waits until
/// there is none.
#[derive(Debug, Default)]
pub struct Acknowledgments {
    outstanding: Mutex<u64>,
    changed: Condvar,
}

impl Acknowledgments {
    /// Counts an event that the program has taken.
    pub fn taken(&self) {
        *lock(&self.outstanding) += 1;
    }

    /// Counts acknowledged events. A surplus is ignored.
    pub fn acknowledged(&self, count: u64) {
        let mut outstanding = lock(&self.outstanding);
        *outstanding = outstanding.saturating_sub(count);
        self.changed.notify_all();
    }

    /// Waits until all events are acknowledged.
    pub fn wait(&self) {
        let mut outstanding = lock(&self.outstanding);
        while *outstanding > 0 {
            outstanding = self.changed.wait(outstanding).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn units(queue: &EventQueue<u32>) -> usize {
        let flags = fcntl_getfl(queue.descriptor()).unwrap();
        fcntl_setfl(queue.descriptor(), flags | OFlags::NONBLOCK).unwrap();
        let mut unit = [0; 8];
        let count = (0..).take_while(|_| io::read(queue.descriptor(), &mut unit).is_ok()).count();
        fcntl_setfl(queue.descriptor(), flags).unwrap();
        count
    }

    // The remaining events keep their order, and the descriptor its blocking mode.
    #[test]
    fn withdrawal_removes_events_with_their_units() {
        let queue = EventQueue::new().unwrap();
        (1..=5).for_each(|event| queue.push(event));
        queue.push_unless(6, || true);
        assert_eq!(queue.withdraw(|event| event % 2 == 0), [2, 4]);
        assert!(queue.is_blocking());
        assert_eq!(units(&queue), 3);
        let mut noted = Vec::new();
        for expected in [Some(1), Some(3), Some(5), None] {
            assert_eq!(queue.take(|event| noted.push(*event)), Ok(expected));
        }
        assert_eq!(noted, [1, 3, 5]);
    }

    #[test]
    fn withdrawal_after_the_reader_took_the_unit_does_not_block() {
        let queue = EventQueue::new().unwrap();
        queue.push(1);
        assert_eq!(units(&queue), 1);
        assert_eq!(queue.withdraw(|_| true), [1]);
        assert_eq!(queue.take(|_| ()), Ok(None));
    }

    #[test]
    fn closed_queue_returns_queued_events_and_then_an_error() {
        let queue = EventQueue::new().unwrap();
        queue.push(1);
        queue.descriptor.close();
        queue.push(2);
        queue.descriptor.close();
        let mut unit = [0; 8];
        for expected in [Ok(Some(1)), Ok(Some(2)), Err(Closed), Err(Closed)] {
            io::read(queue.descriptor(), &mut unit).unwrap();
            assert_eq!(queue.take(|_| ()), expected);
        }
        assert!(queue.is_blocking());
    }

    #[test]
    fn wait_returns_after_the_last_acknowledgment() {
        let events = Acknowledgments::default();
        events.wait();
        events.taken();
        events.taken();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| events.wait());
            events.acknowledged(1);
            assert!(!waiter.is_finished());
            events.acknowledged(1);
        });
        events.acknowledged(7);
        events.taken();
        events.acknowledged(1);
        events.wait();
    }
}
