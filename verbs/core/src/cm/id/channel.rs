//! Event channel: events of identifiers and their order.

use std::sync::Arc;

use super::Id;
use crate::{
    errno::Errno,
    event_queue::{Closed, EventCallback, EventQueue},
};

/// `RDMA_CM_EVENT_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum EventKind {
    /// The peer's address is known to be reachable.
    AddressResolved = 0,
    /// The way to it is known.
    RouteResolved = 2,
    /// A peer wants to connect.
    ConnectRequest = 4,
    /// The connection failed, for another reason than those below.
    ConnectError = 6,
    /// The peer does not answer.
    Unreachable = 7,
    /// The peer refuses.
    Rejected = 8,
    /// The connection is established.
    Established = 9,
    /// The connection is over.
    Disconnected = 10,
    /// The device is gone.
    DeviceRemoval = 11,
}

/// An event.
#[derive(Clone, Debug)]
pub struct Event {
    /// What has happened.
    pub kind: EventKind,
    /// The identifier; of a connection request a new one.
    pub id: Arc<Id>,
    /// Of a connection request, the listener.
    pub listener: Option<Arc<Id>>,
    /// 0, or an error number below 0.
    pub status: i32,
    /// The peer's private data.
    pub private_data: Vec<u8>,
    /// Reads of the peer that the receiver of the event serves at once.
    pub responder_resources: u8,
    /// Reads that it may have outstanding at once.
    pub initiator_depth: u8,
}

impl Event {
    pub(in crate::cm) fn new(kind: EventKind, id: &Arc<Id>) -> Self {
        Self {
            kind,
            id: id.clone(),
            listener: None,
            status: 0,
            private_data: Vec::new(),
            responder_resources: 0,
            initiator_depth: 0,
        }
    }

    /// The identifier whose end waits for the acknowledgement.
    pub fn owner(&self) -> &Arc<Id> {
        self.listener.as_ref().unwrap_or(&self.id)
    }
}

/// A channel.
#[derive(Debug)]
pub struct EventChannel {
    events: EventQueue<Event>,
    callback: Option<EventCallback>,
}

impl EventChannel {
    /// A channel.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> Result<Arc<Self>, Errno> {
        Ok(Arc::new(Self { events: EventQueue::new()?, callback: None }))
    }

    /// A channel that calls `callback` with each event, which may hold the lock of the event's identifier. Its events
    /// are taken without a look at the descriptor.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn with_callback(callback: EventCallback) -> Result<Arc<Self>, Errno> {
        Ok(Arc::new(Self { events: EventQueue::new()?, callback: Some(callback) }))
    }

    /// Adds an event.
    pub(in crate::cm) fn push(&self, event: Event) {
        self.events.push(event);
        if let Some(EventCallback(callback)) = &self.callback {
            callback();
        }
    }

    /// Its events, with the descriptor.
    pub const fn events(&self) -> &EventQueue<Event> {
        &self.events
    }

    /// The event of a unit that was read, to be acknowledged ([`Id::acknowledge`] of its owner). `None`: it was
    /// withdrawn.
    ///
    /// # Errors
    /// There is none, and none will come.
    pub fn take(&self) -> Result<Option<Event>, Closed> {
        self.events.take(|event| event.owner().acknowledgements().taken())
    }
}
