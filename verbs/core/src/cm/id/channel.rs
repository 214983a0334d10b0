//! Event channel: events of identifiers and their order.

use std::sync::Arc;

use super::Id;
use crate::{
    errno::Errno,
    event_queue::{Closed, EventCallback, EventQueue},
};

/// Kind of an event, `RDMA_CM_EVENT_*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum EventKind {
    /// Resolution of the peer's address.
    AddressResolved = 0,
    /// Resolution of the route.
    RouteResolved = 2,
    /// Connection request of a peer.
    ConnectRequest = 4,
    /// Acceptance by the peer of a connection that the program establishes ([`Id::establish`]).
    ConnectResponse = 5,
    /// Failure of the connection, for another reason than those below.
    ConnectError = 6,
    /// No response from the peer.
    Unreachable = 7,
    /// Rejection by the peer.
    Rejected = 8,
    /// Establishment of the connection.
    Established = 9,
    /// End of the connection.
    Disconnected = 10,
    /// Failure of the device.
    DeviceRemoval = 11,
}

/// Event of an identifier.
#[derive(Clone, Debug)]
pub struct Event {
    /// Kind.
    pub kind: EventKind,
    /// Identifier; a new one for a connection request.
    pub id: Arc<Id>,
    /// Listener of a connection request.
    pub listener: Option<Arc<Id>>,
    /// 0, or a negative error number.
    pub status: i32,
    /// Private data of the peer.
    pub private_data: Vec<u8>,
    /// Maximum number of outstanding Reads of the peer that the receiver of the event serves.
    pub responder_resources: u8,
    /// Maximum number of Reads that it may have outstanding.
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

    /// Returns the identifier whose destruction waits for the acknowledgment.
    pub fn owner(&self) -> &Arc<Id> {
        self.listener.as_ref().unwrap_or(&self.id)
    }
}

/// Event channel.
#[derive(Debug)]
pub struct EventChannel {
    events: EventQueue<Event>,
    callback: Option<EventCallback>,
}

impl EventChannel {
    /// Creates a channel.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`: no descriptor available.
    pub fn new() -> Result<Arc<Self>, Errno> {
        Ok(Arc::new(Self { events: EventQueue::new()?, callback: None }))
    }

    /// Creates a channel that calls `callback` for each event, perhaps with the lock of the identifier held. Its events
    /// are taken without a read of the descriptor.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`: no descriptor available.
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

    /// Returns the event queue, which has the descriptor.
    pub const fn events(&self) -> &EventQueue<Event> {
        &self.events
    }

    /// Takes the event of a unit that was read. The program must acknowledge it ([`Id::acknowledge`] of its owner).
    /// `None`: the event was withdrawn.
    ///
    /// # Errors
    /// [`Closed`]: the queue is empty and closed.
    pub fn take(&self) -> Result<Option<Event>, Closed> {
        self.events.take(|event| event.owner().acknowledgments().taken())
    }
}
