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
    event_queue::{Acknowledgments, Closed, EventCallback, EventQueue},
};

/// Completion channel. Each event names a queue with new completions.
#[derive(Debug)]
pub struct CompletionChannel {
    events: EventQueue<Arc<CqNotifier>>,
    /// Number of queues on the channel.
    queues: AtomicUsize,
}

impl CompletionChannel {
    /// Creates a channel.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`: no descriptor available.
    pub fn new() -> Result<Arc<Self>, Errno> {
        Ok(Arc::new(Self { events: EventQueue::new()?, queues: AtomicUsize::new(0) }))
    }

    /// Returns the event queue, which has the descriptor.
    pub const fn events(&self) -> &EventQueue<Arc<CqNotifier>> {
        &self.events
    }

    /// Takes the event of a unit that was read, and returns the program's name of the queue. The program must
    /// acknowledge it. `None`: the event was withdrawn.
    ///
    /// # Errors
    /// [`Closed`]: the event queue is empty and closed.
    pub fn take(&self) -> Result<Option<usize>, Closed> {
        let event = self.events.take(|notifier| notifier.acknowledgments.taken())?;
        Ok(event.map(|event| event.name.load(Ordering::Relaxed)))
    }

    /// Returns true if queues use the channel.
    pub fn is_used(&self) -> bool {
        self.queues.load(Ordering::Relaxed) > 0
    }
}

/// Handler for an overrun, with the program's name of the queue. The flag is true once the queue is destroyed; it is
/// set before the withdrawal of queued events.
pub type OverrunHandler = Box<dyn Fn(usize, &AtomicBool) + Send + Sync>;

/// Notifications of a queue. They outlive the queue while one is being delivered.
pub struct CqNotifier {
    channel: Option<Arc<CompletionChannel>>,
    /// Callback of a queue without a channel.
    callback: Option<EventCallback>,
    /// Program's name of the queue: its address.
    name: AtomicUsize,
    /// True once the queue is destroyed.
    is_destroyed: AtomicBool,
    is_failure_reported: AtomicBool,
    acknowledgments: Acknowledgments,
    overrun: OverrunHandler,
}

impl fmt::Debug for CqNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CqNotifier({:#x})", self.name.load(Ordering::Relaxed))
    }
}

impl CqNotifier {
    /// Delivers the notification of a satisfied arm, or of the failure of the queue.
    fn notify(self: &Arc<Self>, outcome: Result<(), CqFailure>) {
        // A failed queue notifies with each arm.
        if let Err(failure) = outcome {
            let is_reported = self.is_failure_reported.swap(true, Ordering::Relaxed);
            match failure {
                CqFailure::Overrun if !is_reported => {
                    (self.overrun)(self.name.load(Ordering::Relaxed), &self.is_destroyed);
                }
                // One event for the flushed completions. An event for each arm would keep a program busy that arms the
                // queue and waits; its wait reports the loss.
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

/// Completion queue.
#[derive(Debug)]
pub struct Cq {
    device: &'static Device,
    id: CqId,
    queue: Arc<CompletionQueue>,
    notifier: Arc<CqNotifier>,
    /// Number of queue pairs that use it.
    pub(crate) users: AtomicUsize,
}

impl Cq {
    /// Creates a queue for at least `entries` completions, and returns its depth.
    ///
    /// # Errors
    /// `EINVAL`: zero entries, or more than the adapter's limit. `ENOMEM`.
    pub fn new(
        device: &'static Device,
        entries: u32,
        channel: Option<Arc<CompletionChannel>>,
        overrun: OverrunHandler,
    ) -> Result<(Self, u32), Errno> {
        Self::with_notifier(device, entries, channel, None, overrun)
    }

    /// Creates a queue that calls `callback` with each notification, and at its failure.
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
            acknowledgments: Acknowledgments::default(),
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

    /// Sets the program's name of the queue.
    pub fn set_name(&self, name: usize) {
        self.notifier.name.store(name, Ordering::Relaxed);
    }

    pub(crate) const fn id(&self) -> CqId {
        self.id
    }

    /// Returns the device.
    pub const fn device(&self) -> &'static Device {
        self.device
    }

    /// Polls completions into `results`, and returns their number. On an empty queue it makes one iteration of the
    /// adapter.
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
                match (count, is_busy) {
                    (0, true) => self.device.expect_poll(),
                    // Programs poll in a loop; on few CPUs the thread or peer that they wait for needs the CPU.
                    (0, false) => std::thread::yield_now(),
                    _ => {}
                }
                Ok(count)
            }
            count => Ok(count),
        }
    }

    /// Takes queued completions without an iteration of the adapter, and returns their number.
    pub(crate) fn take<R: From<Completion>>(&self, results: &mut [R]) -> usize {
        self.queue.poll(results)
    }

    /// Requests an event for the next completion, or for the next that is solicited or an error.
    ///
    /// # Errors
    /// As [`Device::check`].
    pub fn request_notification(&self, solicited_only: bool) -> Result<(), Errno> {
        self.device.check()?;
        let arm = if solicited_only { Arm::Solicited } else { Arm::Next };
        self.device.with(|core, _| core.arm_cq(self.id, arm));
        Ok(())
    }

    /// Changes the depth to at least `entries`, and returns it.
    ///
    /// # Errors
    /// `EINVAL`: zero entries, more than the adapter's limit, or fewer than are queued.
    pub fn resize(&self, entries: u32) -> Result<u32, Errno> {
        self.device.check()?;
        let depth = depth(entries, self.device.limits().cq_depth_max)?;
        self.device.with(|core, _| core.resize_cq(self.id, depth))?;
        Ok(depth)
    }

    /// Counts events that the program has acknowledged.
    pub fn acknowledge(&self, events: u32) {
        self.notifier.acknowledgments.acknowledged(events.into());
    }

    /// Destroys the queue. Withdraws events that the program has not taken, and waits for the acknowledgment of those
    /// that it has.
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
        self.notifier.acknowledgments.wait();
        self.device.check()?;
        // The close may be pending until a queue pair is destroyed with its identifier. Its completion has no receiver.
        let _ = self.device.with(|core, _| core.close(Key::Cq(self.id), Box::new(|| {})));
        Ok(())
    }
}

/// Returns the depth of a queue for `entries` completions, rounded up to a power of two.
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

    // At least one more than requested, within the limit.
    #[test]
    fn depth_is_rounded_up_within_the_limit() {
        for (entries, expected) in [(1, 2), (2, 4), (16, 32), (100, 128), (999, 1000), (1000, 1000)]
        {
            assert_eq!(depth(entries, 1000), Ok(expected));
        }
        assert_eq!(depth(0, 1000), Err(Errno::INVAL));
        assert_eq!(depth(1001, 1000), Err(Errno::INVAL));
        assert_eq!(depth(u32::MAX, u32::MAX), Ok(u32::MAX));
    }
}
