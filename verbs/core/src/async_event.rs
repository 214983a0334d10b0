//! Asynchronous events of open devices: kinds, queue, withdrawal with the object.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rdma_over_tcp::error::{EndReason, ErrorNumber};

use crate::{
    event_queue::{Acknowledgments, EventQueue},
    process::Registry,
};

/// Kind of an asynchronous event, by the number of `IBV_EVENT_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum AsyncEventKind {
    /// Overrun of a completion queue.
    CqError = 0,
    /// Loss of the connection, error report of the peer, or local failure.
    QpFatal = 1,
    /// Invalid request of the peer.
    QpRequestError = 2,
    /// Access of the peer without the right to it.
    QpAccessError = 3,
    /// All requests that had been started are complete.
    SendQueueDrained = 5,
    /// Failure of the device.
    DeviceFatal = 8,
    /// Fewer receives than the limit of a shared receive queue.
    SrqLimitReached = 15,
    /// Last receive of a queue pair with a shared receive queue.
    LastWqeReached = 16,
}

/// Asynchronous event.
#[derive(Debug)]
pub struct AsyncEvent {
    /// Kind.
    pub kind: AsyncEventKind,
    /// Program's name of the object: its address. 0 for the device.
    pub name: usize,
    /// Acknowledgments for which the destruction of the object waits.
    pub acknowledgments: Arc<Acknowledgments>,
}

/// Asynchronous events of an open device.
pub type AsyncEvents = EventQueue<AsyncEvent>;

/// Event queues of the open devices.
pub static OPEN: Registry<AsyncEvents> = Registry::new();

/// Withdraws the events of an object that the program has not taken, and waits for the acknowledgments of the others.
pub fn end_events(events: &AsyncEvents, of: &Arc<Acknowledgments>) {
    events.withdraw(|event| Arc::ptr_eq(&event.acknowledgments, of));
    of.wait();
}

/// Reports the failure of the device to all that have opened it.
pub(crate) fn device_failed() {
    for events in OPEN.members() {
        let acknowledgments = Arc::default();
        events.push(AsyncEvent { kind: AsyncEventKind::DeviceFatal, name: 0, acknowledgments });
    }
}

/// Returns the event of a connection that failed. A disconnect has none.
pub(crate) const fn event_of(reason: EndReason) -> AsyncEventKind {
    match reason {
        // Remote protection errors of RDMAP, and tagged buffer errors of DDP.
        EndReason::Detected(ErrorNumber { layer: 0 | 1, etype: 1, .. }) => {
            AsyncEventKind::QpAccessError
        }
        // Catastrophic errors of the local RDMAP and DDP: the peer's request was valid.
        EndReason::Detected(ErrorNumber { layer: 0 | 1, etype: 0, .. }) => AsyncEventKind::QpFatal,
        EndReason::Detected(_) | EndReason::Truncated(_) => AsyncEventKind::QpRequestError,
        EndReason::Terminated(_)
        | EndReason::TerminatedUnnumbered
        | EndReason::Lost(_)
        | EndReason::CqOverrun => AsyncEventKind::QpFatal,
    }
}

/// Handler for events of a queue pair. The flag is true once the queue pair is destroyed; it is set before the
/// withdrawal of queued events.
pub type QpEventHandler = Box<dyn Fn(AsyncEventKind, &AtomicBool) + Send + Sync>;

/// Notifications of a queue pair's events.
pub(crate) struct EventNotifier {
    handler: QpEventHandler,
    /// True once the queue pair is destroyed.
    is_destroyed: AtomicBool,
}

impl fmt::Debug for EventNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventNotifier {{ is_destroyed: {:?} }}", self.is_destroyed)
    }
}

impl EventNotifier {
    pub(crate) const fn new(handler: QpEventHandler) -> Self {
        Self { handler, is_destroyed: AtomicBool::new(false) }
    }

    /// Returns true if the queue pair is destroyed.
    pub(crate) fn is_destroyed(&self) -> bool {
        self.is_destroyed.load(Ordering::Relaxed)
    }

    /// Ends the notifications: the queue pair is destroyed.
    pub(crate) fn destroy(&self) {
        self.is_destroyed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn notify(&self, event: AsyncEventKind) {
        (self.handler)(event, &self.is_destroyed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_follows_the_error_that_ended_the_connection() {
        for (number, event) in [
            ((0, 1, 2), AsyncEventKind::QpAccessError),
            ((1, 1, 0), AsyncEventKind::QpAccessError),
            ((1, 2, 2), AsyncEventKind::QpRequestError),
            ((2, 0, 2), AsyncEventKind::QpRequestError),
            ((0, 0, 0), AsyncEventKind::QpFatal),
            ((1, 0, 0), AsyncEventKind::QpFatal),
        ] {
            let (layer, etype, code) = number;
            let number = ErrorNumber { layer, etype, code };
            assert_eq!(event_of(EndReason::Detected(number)), event);
            assert_eq!(event_of(EndReason::Terminated(number)), AsyncEventKind::QpFatal);
        }
    }
}
