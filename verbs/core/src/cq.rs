//! Completion queue: depth, notifications, channel, lifetime.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use rdma_over_tcp::rnic::{Arm, Completion, CompletionQueue, CqFailure, CqId, Key};

use crate::{
    device::Device,
    errno::Errno,
    event_queue::{Acknowledgements, Closed, EventCallback, EventQueue},
};

/// A channel for events of completion queues: each names the queue that has something new.
#[derive(Debug)]
pub struct CompletionChannel {
    events: EventQueue<Arc<CqNotifier>>,
    /// Queues on it.
    queues: AtomicUsize,
}

impl CompletionChannel {
    /// A channel.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> Result<Arc<Self>, Errno> {
        Ok(Arc::new(Self { events: EventQueue::new()?, queues: AtomicUsize::new(0) }))
    }

    /// Its events' queue, with the descriptor.
    pub const fn events(&self) -> &EventQueue<Arc<CqNotifier>> {
        &self.events
    }

    /// The event of a unit that was read: the program's name of the queue, to be acknowledged. `None`: it was
    /// withdrawn.
    ///
    /// # Errors
    /// There is none, and none will come.
    pub fn take(&self) -> Result<Option<usize>, Closed> {
        let event = self.events.take(|notifier| notifier.acknowledgements.taken())?;
        Ok(event.map(|event| event.name.load(Ordering::Relaxed)))
    }

    /// Whether queues are on it.
    pub fn is_used(&self) -> bool {
        self.queues.load(Ordering::Relaxed) > 0
    }
}

/// What a failure of a queue calls, with the program's name of it: an asynchronous event, unless the queue is
/// destroyed: then the flag is set, before events that wait are withdrawn.
pub type OverrunHandler = Box<dyn Fn(usize, &AtomicBool) + Send + Sync>;

/// The part of a queue that announces completions. It outlives the queue while an announcement is under way.
pub struct CqNotifier {
    channel: Option<Arc<CompletionChannel>>,
    /// Of a queue without a channel.
    callback: Option<EventCallback>,
    /// The program's name of the queue: its address.
    name: AtomicUsize,
    /// The queue is destroyed.
    is_destroyed: AtomicBool,
    is_failure_reported: AtomicBool,
    acknowledgements: Acknowledgements,
    overrun: OverrunHandler,
}

impl fmt::Debug for CqNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Announcer({:#x})", self.name.load(Ordering::Relaxed))
    }
}

impl CqNotifier {
    /// A satisfied arm, or the failure of the queue.
    fn notify(self: &Arc<Self>, outcome: Result<(), CqFailure>) {
        // A failed queue announces itself with each arm.
        if let Err(failure) = outcome {
            let is_reported = self.is_failure_reported.swap(true, Ordering::Relaxed);
            match failure {
                CqFailure::Overrun if !is_reported => {
                    (self.overrun)(self.name.load(Ordering::Relaxed), &self.is_destroyed);
                }
                // An event for what was flushed. Another one for each arm would keep a program busy that arms the queue
                // and waits, and that the wait itself tells of the loss.
                CqFailure::DeviceLost if is_reported => return,
                CqFailure::Overrun | CqFailure::DeviceLost => {}
            }
        }
        if let Some(channel) = &self.channel {
            channel.events.push_unless(self.clone(), || self.is_destroyed.load(Ordering::Relaxed));
        }
        if let Some(EventCallback(callback)) = &self.callback {
            callback();
        }
    }
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    device: &'static Device,
    id: CqId,
    queue: Arc<CompletionQueue>,
    notifier: Arc<CqNotifier>,
    /// Queue pairs on it.
    pub(crate) users: AtomicUsize,
}

impl Cq {
    /// A queue for at least `entries` completions; returns how many it holds.
    ///
    /// # Errors
    /// `EINVAL`: none, or more than the adapter allows. `ENOMEM`.
    pub fn new(
        device: &'static Device,
        entries: u32,
        channel: Option<Arc<CompletionChannel>>,
        overrun: OverrunHandler,
    ) -> Result<(Self, u32), Errno> {
        Self::with_notifier(device, entries, channel, None, overrun)
    }

    /// A queue for at least `entries` completions that calls `callback` with each notification, and when it fails.
    ///
    /// # Errors
    /// As [`Cq::new`].
    pub(crate) fn with_callback(
        device: &'static Device,
        entries: u32,
        callback: EventCallback,
    ) -> Result<Self, Errno> {
        let overrun: OverrunHandler = Box::new(|_, _| {});
        Ok(Self::with_notifier(device, entries, None, Some(callback), overrun)?.0)
    }

    fn with_notifier(
        device: &'static Device,
        entries: u32,
        channel: Option<Arc<CompletionChannel>>,
        callback: Option<EventCallback>,
        overrun: OverrunHandler,
    ) -> Result<(Self, u32), Errno> {
        device.check()?;
        let depth = depth(entries, device.limits().cq_depth_max)?;
        let notifier = Arc::new(CqNotifier {
            channel,
            callback,
            name: AtomicUsize::new(0),
            is_destroyed: AtomicBool::new(false),
            is_failure_reported: AtomicBool::new(false),
            acknowledgements: Acknowledgements::default(),
            overrun,
        });
        let notifies = notifier.clone();
        let notification = Arc::new(move |outcome| notifies.notify(outcome));
        let (id, queue) = device.with(|core, _| core.create_cq(depth, notification))?;
        queue.watch_failure();
        if let Some(channel) = &notifier.channel {
            channel.queues.fetch_add(1, Ordering::Relaxed);
        }
        Ok((Self { device, id, queue, notifier, users: AtomicUsize::new(0) }, depth))
    }

    /// Says how the program calls it.
    pub fn set_name(&self, name: usize) {
        self.notifier.name.store(name, Ordering::Relaxed);
    }

    pub(crate) const fn id(&self) -> CqId {
        self.id
    }

    /// The adapter.
    pub const fn device(&self) -> &'static Device {
        self.device
    }

    /// Moves completions out; returns how many. A queue that is empty has the sockets looked at once.
    ///
    /// # Errors
    /// As [`Device::check`].
    #[inline]
    pub fn poll<R: From<Completion>>(&self, results: &mut [R]) -> Result<usize, Errno> {
        self.device.check()?;
        match self.queue.poll(results) {
            0 => {
                let is_busy = self.device.progress();
                let count = self.queue.poll(results);
                if count == 0 && !is_busy {
                    // Programs poll without a pause, and with few CPUs whom they wait for needs theirs.
                    std::thread::yield_now();
                }
                Ok(count)
            }
            count => Ok(count),
        }
    }

    /// Moves completions out that are there; returns how many.
    pub(crate) fn take<R: From<Completion>>(&self, results: &mut [R]) -> usize {
        self.queue.poll(results)
    }

    /// Asks for an event with the next completion, or the next that is solicited or an error.
    ///
    /// # Errors
    /// As [`Device::check`].
    pub fn request_notification(&self, solicited_only: bool) -> Result<(), Errno> {
        self.device.check()?;
        let arm = if solicited_only { Arm::Solicited } else { Arm::Next };
        self.device.with(|core, _| core.arm_cq(self.id, arm));
        Ok(())
    }

    /// Changes how many completions it holds; returns how many.
    ///
    /// # Errors
    /// `EINVAL`: none, more than the adapter allows, or more are in it.
    pub fn resize(&self, entries: u32) -> Result<u32, Errno> {
        self.device.check()?;
        let depth = depth(entries, self.device.limits().cq_depth_max)?;
        self.device.with(|core, _| core.resize_cq(self.id, depth))?;
        Ok(depth)
    }

    /// The program has acknowledged events.
    pub fn acknowledge(&self, events: u32) {
        self.notifier.acknowledgements.acknowledged(events.into());
    }

    /// Ends it. Events that the program has not taken are withdrawn; those that it has taken are waited for.
    ///
    /// # Errors
    /// `EBUSY`: queue pairs use it. As [`Device::check`].
    pub fn destroy(&self) -> Result<(), Errno> {
        if self.users.load(Ordering::Relaxed) > 0 {
            return Err(Errno::BUSY);
        }
        self.notifier.is_destroyed.store(true, Ordering::Relaxed);
        if let Some(channel) = &self.notifier.channel {
            channel.events.withdraw(|event| Arc::ptr_eq(event, &self.notifier));
            channel.queues.fetch_sub(1, Ordering::Relaxed);
        }
        self.notifier.acknowledgements.wait();
        self.device.check()?;
        // It may pend on a queue pair that waits for its identifier's end. Nobody hears of it any more.
        let _ = self.device.with(|core, _| core.close(Key::Cq(self.id), Box::new(|| {})));
        Ok(())
    }
}

/// The depth of a queue for so many completions: with some room, as adapters have it.
fn depth(entries: u32, most: u32) -> Result<u32, Errno> {
    if entries == 0 || entries > most {
        return Err(Errno::INVAL);
    }
    let room = entries.checked_add(1).and_then(u32::checked_next_power_of_two);
    Ok(room.map_or(most, |room| room.min(most)))
}

#[cfg(test)]
mod tests {
    use super::*;

    // At least what was asked for and one more, within the limit.
    #[test]
    fn depths() {
        for (entries, expected) in [(1, 2), (2, 4), (16, 32), (100, 128), (999, 1000), (1000, 1000)]
        {
            assert_eq!(depth(entries, 1000), Ok(expected));
        }
        assert_eq!(depth(0, 1000), Err(Errno::INVAL));
        assert_eq!(depth(1001, 1000), Err(Errno::INVAL));
        assert_eq!(depth(u32::MAX, u32::MAX), Ok(u32::MAX));
    }
}
