//! Outcomes of work requests and calls, neutral so that every interface can map them.

use thiserror::Error;

use crate::error::Loss;

/// The outcome of a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WcStatus {
    /// It was carried out.
    Success,
    /// The queue pair was flushed before the request was carried out.
    Flushed,
    /// The message is longer than the receive that it arrived for.
    LocalLength,
    /// A scatter/gather entry names memory that may not be used that way.
    LocalProtection,
    /// A fast registration, a bind or an invalidation met a region or a window in the wrong state.
    LocalOperation,
    /// The peer's memory may not be used that way (its Terminate says so).
    RemoteAccess,
    /// The peer refused the request.
    RemoteInvalidRequest,
    /// The peer had no receive for the message.
    RemoteNotReady,
    /// The peer failed while it worked on the request.
    RemoteOperation,
    /// The peer says that the connection was lost.
    ConnectionLost,
}

/// Why a call was refused. Nothing was queued, nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum VerbError {
    /// The object is gone or is being closed, or belongs to another protection domain.
    #[error("no such object")]
    InvalidHandle,
    /// An argument outside its range.
    #[error("an argument is outside its range")]
    InvalidArgument,
    /// More scatter/gather entries than the queue pair takes.
    #[error("too many scatter/gather entries")]
    TooManySges,
    /// More bytes than a request may have.
    #[error("too many bytes for one request")]
    TooLong,
    /// More inline data than the queue pair takes.
    #[error("too much inline data")]
    InlineTooLong,
    /// The queue is at its depth.
    #[error("the queue is full")]
    QueueFull,
    /// The queue pair takes no requests in this state.
    #[error("the queue pair is not connected")]
    NotConnected,
    /// The connection was negotiated without reads.
    #[error("the connection allows no reads")]
    NoReads,
    /// The queue pair does without RFC 7306 ([`Config::rfc7306`](super::Config::rfc7306)).
    #[error("the queue pair allows no atomics and no immediate data")]
    NoExtensions,
    /// A right to write memory that may only be read.
    #[error("the memory may only be read")]
    ReadOnly,
    /// A logical address that is of no mapping.
    #[error("no mapping has this logical address")]
    NotMapped,
    /// The region was initialized without remote access.
    #[error("the region is not for remote access")]
    NoRemoteAccess,
    /// A window is to have rights that its region does not allow.
    #[error("the region does not allow these rights")]
    RightsNotAllowed,
    /// Memory windows are bound to the region.
    #[error("memory windows are bound to the region")]
    WindowsBound,
    /// More pages than a fast registration can have.
    #[error("too many pages")]
    TooManyPages,
    /// A completion queue has more entries than its new depth.
    #[error("more completions are queued than fit")]
    CompletionsPresent,
    /// A shared receive queue has more receives than its new depth.
    #[error("more receives are queued than fit")]
    ReceivesPresent,
    /// A table is full, or memory is short.
    #[error("no resources are left")]
    NoResources,
    /// Both limits of a moderation are such that no notification would ever come.
    #[error("neither limit of the moderation ends it")]
    NeverNotified,
    /// The completion queue has failed: no completion would come.
    #[error("the completion queue has failed")]
    CqFailed,
    /// The device is gone.
    #[error("the device is gone")]
    DeviceLost,
}

/// Why a connection could not be made, or is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ConnectError {
    /// Nobody listens there, or the peer has rejected.
    #[error("the peer refused the connection")]
    Refused,
    /// One of the sides gave up.
    #[error("the connection was aborted")]
    Aborted,
    /// The peer does not answer.
    #[error("the peer does not answer")]
    TimedOut,
    /// The consumer closed the object meanwhile.
    #[error("cancelled")]
    Cancelled,
    /// The next hop does not answer.
    #[error("the host is unreachable")]
    HostUnreachable,
    /// There is no route.
    #[error("the network is unreachable")]
    NetworkUnreachable,
    /// Not a local address, or none that a peer can have.
    #[error("not a valid address")]
    InvalidAddress,
    /// The local address is in use.
    #[error("the address is in use")]
    AddressInUse,
    /// There is a connection between these two addresses.
    #[error("the connection exists")]
    ConnectionExists,
    /// No ephemeral port is left.
    #[error("no port is left")]
    NoPorts,
    /// The connector or listener is in use already.
    #[error("the object has an address already")]
    AlreadyBound,
    /// The queue pair has a connection already.
    #[error("the queue pair is connected already")]
    QpConnected,
    /// The queue pair cannot be connected any more.
    #[error("the queue pair cannot be connected")]
    QpUnusable,
    /// The call makes no sense in this state.
    #[error("not in this state")]
    InvalidState,
    /// More private data than fits.
    #[error("too much private data")]
    PrivateDataTooLong,
    /// The object is gone or is being closed.
    #[error("no such object")]
    InvalidHandle,
    /// A table is full, or memory is short.
    #[error("no resources are left")]
    NoResources,
    /// The process, or the machine, has no descriptor left.
    #[error("no descriptor is left")]
    NoDescriptors,
    /// The device is gone, and with it every connection.
    #[error("the device is gone")]
    DeviceLost,
}

/// How TCP has lost an established connection.
impl From<ConnectError> for Loss {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::TimedOut => Self::NoAnswer,
            ConnectError::DeviceLost => Self::Device,
            _ => Self::Other,
        }
    }
}

/// Why a completion queue has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum CqFailure {
    /// A completion did not fit. The queue is empty from then on.
    #[error("the completion queue has overrun")]
    Overrun,
    /// The device is gone. What was completed before, and flushed by it, can be polled.
    #[error("the device is gone")]
    DeviceLost,
}
