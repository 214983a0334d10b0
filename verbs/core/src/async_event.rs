//! Asynchronous events of open devices: kinds, queue, withdrawal with the object.

use std::sync::Arc;

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
