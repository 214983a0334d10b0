//! Asynchronous events of open devices: kinds, queue, withdrawal with the object.

use std::sync::Arc;

use crate::{
    event_queue::{Acknowledgements, EventQueue},
    process::Registry,
};

/// Kind of an asynchronous event, by the number of `IBV_EVENT_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum AsyncEventKind {
    /// A completion queue overran.
    CqError = 0,
    /// The connection was lost, the peer reported an error, or this side failed.
    QpFatal = 1,
    /// The peer sent an invalid request.
    QpRequestError = 2,
    /// The peer requested access to memory without the right to it.
    QpAccessError = 3,
    /// The device failed.
    DeviceFatal = 8,
    /// A shared receive queue has fewer receives than its limit.
    SrqLimitReached = 15,
    /// The queue pair takes no more receives from its shared receive queue.
    LastWqeReached = 16,
}

/// Asynchronous event.
#[derive(Debug)]
pub struct AsyncEvent {
    /// Kind.
    pub kind: AsyncEventKind,
    /// Program's name of the object: its address. 0 for the device.
    pub name: usize,
    /// Acknowledgements for which the destruction of the object waits.
    pub acknowledgements: Arc<Acknowledgements>,
}

/// Asynchronous events of an open device.
pub type AsyncEvents = EventQueue<AsyncEvent>;

/// Event queues of the open devices.
pub static OPEN: Registry<AsyncEvents> = Registry::new();

/// Withdraws the events of an object that the program has not taken, and waits for the acknowledgements of the others.
pub fn end_events(events: &AsyncEvents, of: &Arc<Acknowledgements>) {
    events.withdraw(|event| Arc::ptr_eq(&event.acknowledgements, of));
    of.wait();
}

/// Reports the failure of the device to all that have opened it.
pub(crate) fn device_failed() {
    for events in OPEN.members() {
        let acknowledgements = Arc::default();
        events.push(AsyncEvent { kind: AsyncEventKind::DeviceFatal, name: 0, acknowledgements });
    }
}
