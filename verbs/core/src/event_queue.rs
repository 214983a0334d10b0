//! Event queue: descriptor, order, withdrawal, acknowledgements.
//!
//! The descriptor is an eventfd that counts as a semaphore: one unit for each event that waits, so that poll(2) tells
//! whether there is one, and a read(2) of the program's thread blocks, returns EAGAIN or EINTR as the program has set
//! it up. A reader takes a unit first, without a lock, and then an event. An event that is withdrawn meanwhile leaves
//! it empty-handed, and it reads again.
//!
//! When the device is gone ([`crate::fatal`]) the queues of the process are closed: their descriptors are readable for
//! good, and who finds no event is told an error instead of waiting for one.

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

/// Units of a closed queue: more than can be read.
const UNITS_OF_CLOSED: u64 = 1 << 62;

/// Descriptors of all queues.
static DESCRIPTORS: Registry<Descriptor> = Registry::new();

/// Whether queues of a process are closed, also those that it makes from then on.
static ARE_CLOSED: [AtomicBool; GENERATIONS_MAX] =
    [const { AtomicBool::new(false) }; GENERATIONS_MAX];

/// Closes the queues of this process.
pub(crate) fn close_all() {
    if let Some(are_closed) = ARE_CLOSED.get(generation()) {
        are_closed.store(true, Ordering::Release);
        DESCRIPTORS.members().iter().for_each(|descriptor| descriptor.close());
    }
}

/// What waits for nothing: no event will come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closed;

impl From<Closed> for Errno {
    fn from(Closed: Closed) -> Self {
        Self::IO
    }
}

/// The descriptor of a queue.
#[derive(Debug)]
struct Descriptor {
    /// `None` at its end only. The program sees the number, and may close it: then it may be that of another file.
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
        // Entered first: one that is too late for `close_all` sees its mark.
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
        self.events.as_ref().expect("a descriptor until its end").as_fd()
    }

    /// Returns true if the number is that of an event descriptor, and the program has not closed all of the library.
    fn is_intact(&self) -> bool {
        !descriptor::are_lost() && inode(self.events()) == Some(self.inode)
    }

    fn add(&self, units: u64) {
        if descriptor::are_lost() {
            return;
        }
        if !self.is_intact() {
            tracing::error!(error = "descriptor closed by the program", "event not announced");
            return;
        }
        if let Err(error) = io::write(self.events(), &units.to_ne_bytes()) {
            tracing::error!(%error, "event not announced");
        }
    }
}

/// Called with each event or completion that is announced, on whatever thread brings it, perhaps with a lock of the
/// object that it is about: it only wakes up others.
pub struct EventCallback(pub Box<dyn Fn() + Send + Sync>);

impl fmt::Debug for EventCallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

/// Events that wait.
#[derive(Debug)]
pub struct EventQueue<T> {
    descriptor: Arc<Descriptor>,
    waiting: Mutex<VecDeque<T>>,
    /// Generation of the process that it belongs to.
    owner: AtomicUsize,
}

impl<T> EventQueue<T> {
    /// An empty queue.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> Result<Self, Errno> {
        let owner = AtomicUsize::new(generation());
        Ok(Self { descriptor: Descriptor::new()?, waiting: Mutex::default(), owner })
    }

    /// Returns whether it belongs to this process.
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

    /// Has it belong to this process, without the events of the one before.
    ///
    /// # Errors
    /// `ENODEV`: another thread was using it at the fork.
    pub fn take_over(&self) -> Result<(), Errno> {
        self.waiting.try_lock().map_err(|_| Errno::NODEV)?.clear();
        DESCRIPTORS.enter(&self.descriptor);
        self.owner.store(generation(), Ordering::Relaxed);
        Ok(())
    }

    /// Wakes a program that polls the descriptor, without an event: the reader waits for the next one.
    pub(crate) fn wake(&self) {
        self.descriptor.add(1);
    }

    /// The descriptor, for the program.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.events()
    }

    /// Adds an event, unless `is_unwanted`, which is asked under the queue's lock: [`EventQueue::withdraw`] is done
    /// before or after it.
    pub fn push_unless(&self, event: T, is_unwanted: impl FnOnce() -> bool) {
        let mut waiting = lock(&self.waiting);
        if is_unwanted() {
            return;
        }
        waiting.push_back(event);
        self.descriptor.add(1);
    }

    /// Adds an event.
    pub fn push(&self, event: T) {
        self.push_unless(event, || false);
    }

    /// Takes the event that belongs to a unit that was read, and has `count` note it. `None`: it was withdrawn.
    ///
    /// # Errors
    /// There is none, and none will come.
    pub fn take(&self, count: impl FnOnce(&T)) -> Result<Option<T>, Closed> {
        // Looked at first: what was added before a close is there.
        let is_closed = self.descriptor.is_closed.load(Ordering::Acquire);
        match lock(&self.waiting).pop_front() {
            None if is_closed => Err(Closed),
            event => Ok(event.inspect(count)),
        }
    }

    /// Takes out the events that `is_withdrawn` names, with their units.
    pub fn withdraw(&self, mut is_withdrawn: impl FnMut(&T) -> bool) -> Vec<T> {
        let mut waiting = lock(&self.waiting);
        let (gone, kept): (Vec<_>, Vec<_>) =
            waiting.drain(..).partition(|event| is_withdrawn(event));
        *waiting = kept.into();
        if !gone.is_empty()
            && let Err(error) = self.take_units(gone.len())
        {
            tracing::error!(%error, "events not withdrawn from the descriptor");
        }
        gone
    }

    /// Takes units without waiting for them: a reader may have been faster. The program's flag of the descriptor
    /// changes for a moment, under the lock that [`EventQueue::is_blocking`] takes.
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

    /// Whether the program has left the descriptor blocking: then an EAGAIN was a withdrawal's, and is not for it.
    pub fn is_blocking(&self) -> bool {
        let _waiting = lock(&self.waiting);
        fcntl_getfl(self.descriptor()).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK))
    }
}

/// Events of an object that the program has taken, and those that it has acknowledged: the object's end waits until
/// they are as many.
#[derive(Debug, Default)]
pub struct Acknowledgements {
    outstanding: Mutex<u64>,
    changed: Condvar,
}

impl Acknowledgements {
    /// The program has taken an event.
    pub fn taken(&self) {
        *lock(&self.outstanding) += 1;
    }

    /// It has acknowledged some. More than it has taken are its mistake.
    pub fn acknowledged(&self, count: u64) {
        let mut outstanding = lock(&self.outstanding);
        *outstanding = outstanding.saturating_sub(count);
        self.changed.notify_all();
    }

    /// Waits until it has acknowledged all.
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

    // Each event has one unit, which leaves with it; others stay in order, and the descriptor blocks as before.
    #[test]
    fn withdrawn_events_leave_with_their_units() {
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

    // A reader that has the unit of an event that is withdrawn goes empty-handed; nothing blocks.
    #[test]
    fn a_reader_may_be_faster_than_a_withdrawal() {
        let queue = EventQueue::new().unwrap();
        queue.push(1);
        assert_eq!(units(&queue), 1);
        assert_eq!(queue.withdraw(|_| true), [1]);
        assert_eq!(queue.take(|_| ()), Ok(None));
    }

    // What waits is told before the end, and nobody waits for more.
    #[test]
    fn a_closed_queue_has_no_event_and_does_not_block() {
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
    fn acknowledgements_are_waited_for() {
        let events = Acknowledgements::default();
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
