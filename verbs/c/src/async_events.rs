//! Asynchronous events of open devices.

use std::sync::Arc;

use flue_verbs_abi::enums::ibv_event_type;
use flue_verbs_core::{
    event_queue::{Acknowledgements, EventQueue},
    process::Registry,
};

/// An asynchronous event.
pub(crate) struct AsyncEvent {
    pub(crate) kind: ibv_event_type,
    /// The program's name of the object.
    pub(crate) name: usize,
    /// What the object's end waits for.
    pub(crate) acknowledgements: Arc<Acknowledgements>,
}

/// Asynchronous events of an open device.
pub(crate) type AsyncEvents = EventQueue<AsyncEvent>;

/// Those of the open devices.
pub(crate) static OPEN: Registry<AsyncEvents> = Registry::new();

/// The end of an object: events of it that the program has not taken are withdrawn, those that it has taken are waited
/// for.
pub(crate) fn end_events(events: &AsyncEvents, of: &Arc<Acknowledgements>) {
    events.withdraw(|event| Arc::ptr_eq(&event.acknowledgements, of));
    of.wait();
}
