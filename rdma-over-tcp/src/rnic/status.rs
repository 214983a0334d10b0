//! Outcomes of work requests and calls, independent of the interface that maps them.

use thiserror::Error;

use crate::error::Loss;

/// Outcome of a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WcStatus {
    /// The request was executed.
    Success,
    /// The queue pair was flushed before the request was executed.
    Flushed,
    /// The message is longer than its receive.
    LocalLength,
    /// A scatter/gather entry refers to memory that does not permit this access.
    LocalProtection,
    /// A fast registration, bind or invalidation found a region or window in the wrong state.
    LocalOperation,
    /// The peer's memory does not permit this access, as reported by its Terminate.
    RemoteAccess,
    /// The peer refused the request.
    RemoteInvalidRequest,
    /// The peer had no receive for the message.
    RemoteNotReady,
    /// The peer failed while it executed the request.
    RemoteOperation,
    /// The peer reported that the connection was lost.
    ConnectionLost,
}

/// Reason of a refused call. Nothing was queued, and no state changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum VerbError {
    /// The object does not exist, is being closed, or belongs to another protection domain.
    #[error("no such object")]
    InvalidHandle,
    /// An argument outside its range.
    #[error("an argument is outside its range")]
    InvalidArgument,
    /// More scatter/gather entries than the queue pair supports.
    #[error("too many scatter/gather entries")]
    TooManySges,
    /// More bytes than a request may transfer.
    #[error("too many bytes for one request")]
    TooLong,
    /// More inline data than the queue pair supports.
    #[error("too much inline data")]
    InlineTooLong,
    /// The queue is at its depth.
    #[error("the queue is full")]
    QueueFull,
    /// The queue pair accepts no requests in this state.
    #[error("the queue pair is not connected")]
    NotConnected,
    /// The connection was negotiated without reads.
    #[error("the connection allows no reads")]
    NoReads,
    /// The queue pair does not support RFC 7306 ([`Config::rfc7306`](super::Config::rfc7306)).
    #[error("the queue pair allows no atomics and no immediate data")]
    NoExtensions,
    /// A write right for read-only memory.
    #[error("the memory may only be read")]
    ReadOnly,
    /// A logical address outside of every mapping.
    #[error("no mapping has this logical address")]
    NotMapped,
    /// The region was initialized without remote access.
    #[error("the region is not for remote access")]
    NoRemoteAccess,
    /// A window requests rights that its region does not allow.
    #[error("the region does not allow these rights")]
    RightsNotAllowed,
    /// Memory windows are bound to the region.
    #[error("memory windows are bound to the region")]
    WindowsBound,
    /// More pages than a fast registration supports.
    #[error("too many pages")]
    TooManyPages,
    /// The completion queue has more entries than its new depth.
    #[error("more completions are queued than fit")]
    CompletionsPresent,
    /// The shared receive queue has more receives than its new depth.
    #[error("more receives are queued than fit")]
    ReceivesPresent,
    /// A table is full, or memory is exhausted.
    #[error("no resources are left")]
    NoResources,
    /// Both limits of the moderation are disabled: no notification would ever be delivered.
    #[error("neither limit of the moderation ends it")]
    NeverNotified,
    /// The completion queue has failed and delivers no completions.
    #[error("the completion queue has failed")]
    CqFailed,
    /// The device was removed.
    #[error("the device is gone")]
    DeviceLost,
}

/// Reason of a failed connection attempt, or of the end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ConnectError {
    /// No listener has the address, or the peer rejected the connection.
    #[error("the peer refused the connection")]
    Refused,
    /// One of the ends aborted the connection.
    #[error("the connection was aborted")]
    Aborted,
    /// The peer does not answer.
    #[error("the peer does not answer")]
    TimedOut,
    /// The consumer closed the object before the request was complete.
    #[error("cancelled")]
    Cancelled,
    /// The next hop does not answer.
    #[error("the host is unreachable")]
    HostUnreachable,
    /// There is no route.
    #[error("the network is unreachable")]
    NetworkUnreachable,
    /// The address is not a local address, or no peer can have it.
    #[error("not a valid address")]
    InvalidAddress,
    /// The local address is in use.
    #[error("the address is in use")]
    AddressInUse,
    /// A connection between these two addresses exists.
    #[error("the connection exists")]
    ConnectionExists,
    /// No ephemeral port is left.
    #[error("no port is left")]
    NoPorts,
    /// The connector or listener is already in use.
    #[error("the object has an address already")]
    AlreadyBound,
    /// The queue pair already has a connection.
    #[error("the queue pair is connected already")]
    QpConnected,
    /// The queue pair can no longer be connected.
    #[error("the queue pair cannot be connected")]
    QpUnusable,
    /// The call is not valid in this state.
    #[error("not in this state")]
    InvalidState,
    /// More private data than fits.
    #[error("too much private data")]
    PrivateDataTooLong,
    /// The object does not exist or is being closed.
    #[error("no such object")]
    InvalidHandle,
    /// A table is full, or memory is exhausted.
    #[error("no resources are left")]
    NoResources,
    /// The process or the machine has no file descriptor left.
    #[error("no descriptor is left")]
    NoDescriptors,
    /// The device was removed, and all of its connections with it.
    #[error("the device is gone")]
    DeviceLost,
}

/// Cause of the loss of an established connection.
impl From<ConnectError> for Loss {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::TimedOut => Self::NoAnswer,
            ConnectError::DeviceLost => Self::Device,
            _ => Self::Other,
        }
    }
}

/// Reason of the failure of a completion queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum CqFailure {
    /// A completion did not fit. The queue is empty from then on.
    #[error("the completion queue has overrun")]
    Overrun,
    /// The device was removed. Earlier completions, and those flushed by the removal, can be polled.
    #[error("the device is gone")]
    DeviceLost,
}
