//! Outcomes of work requests and calls, independent of the interface that maps them.

use thiserror::Error;

use crate::error::{ErrorNumber, Loss};

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
    /// The peer had no receive for the message, and all retries that were permitted have expired
    /// ([`RcPeer`](super::RcPeer)).
    RnrRetryExceeded,
    /// The peer does not respond, and all retries have expired. Only set by the consumer
    /// ([`Rnic::fail_sends`](super::Rnic::fail_sends)).
    RetryExceeded,
    /// The peer failed while it executed the request.
    RemoteOperation,
    /// The peer reported that the connection was lost.
    ConnectionLost,
}

impl WcStatus {
    /// Status of the request that the peer's Terminate with this number refers to.
    pub(crate) fn of_terminate(number: ErrorNumber) -> Self {
        match (number.layer, number.etype, number.code) {
            (0, 1, 0x09) | (0, 2, 0x05 | 0x06 | 0x09) => Self::RemoteInvalidRequest,
            (0, 1, _) | (1, 1, 0x00..=0x03) => Self::RemoteAccess,
            (1, 2, 0x02) => Self::RemoteNotReady,
            (2, 0, 0x01) => Self::ConnectionLost,
            (1, 2, _) | (1, 1, 0x04) => Self::RemoteInvalidRequest,
            _ => Self::RemoteOperation,
        }
    }

    /// Status at the peer of its request that violates a rule or fails here with this error, for queue pairs of
    /// [`QpService::Rc`](super::QpService): [`WcStatus::RemoteAccess`] for rights, bounds and tokens of memory,
    /// [`WcStatus::RemoteInvalidRequest`] for a request that is not permitted, [`WcStatus::RemoteOperation`] for a
    /// failure of this end.
    #[must_use]
    pub const fn of_violation(number: ErrorNumber) -> Self {
        match (number.layer, number.etype, number.code) {
            // A token to invalidate is that of memory as well.
            (0, 1, _) | (0, 2, 0x09) | (1, 1, 0x00..=0x03) => Self::RemoteAccess,
            (1, 2, 0x02) => Self::RnrRetryExceeded,
            (0, 2, _) | (1, 1 | 2, _) => Self::RemoteInvalidRequest,
            _ => Self::RemoteOperation,
        }
    }

    /// Number of the status in an acknowledgment: that of `ibv_wc_status`.
    pub(crate) const fn reported_number(self) -> u8 {
        match self {
            Self::RemoteInvalidRequest => 9,
            Self::RemoteAccess => 10,
            Self::RnrRetryExceeded => 13,
            _ => 11,
        }
    }

    /// Status with this number in an acknowledgment; `None`: not a status that a peer determines.
    pub(crate) const fn from_reported(number: u8) -> Option<Self> {
        match number {
            9 => Some(Self::RemoteInvalidRequest),
            10 => Some(Self::RemoteAccess),
            11 => Some(Self::RemoteOperation),
            13 => Some(Self::RnrRetryExceeded),
            _ => None,
        }
    }
}

/// Reason of a refused call. Nothing was queued, and no state changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum VerbError {
    /// The object does not exist, is being closed, or belongs to another protection domain.
    #[error("no such object")]
    InvalidHandle,
    /// An argument outside its range.
    #[error("argument out of range")]
    InvalidArgument,
    /// More scatter/gather entries than the queue pair supports.
    #[error("too many scatter/gather entries")]
    TooManySges,
    /// More bytes than a request may transfer.
    #[error("request too long")]
    TooLong,
    /// More inline data than the queue pair supports.
    #[error("too much inline data")]
    InlineTooLong,
    /// The queue is at its depth.
    #[error("queue full")]
    QueueFull,
    /// The queue pair accepts no requests in this state.
    #[error("queue pair not connected")]
    NotConnected,
    /// The connection was negotiated without reads.
    #[error("connection does not support Reads")]
    NoReads,
    /// The queue pair does not support RFC 7306 ([`Config::rfc7306`](super::Config::rfc7306)).
    #[error("queue pair does not support atomics and immediate data")]
    NoExtensions,
    /// A write right for read-only memory.
    #[error("memory is read-only")]
    ReadOnly,
    /// A logical address outside of every mapping.
    #[error("logical address not mapped")]
    NotMapped,
    /// The region was initialized without remote access.
    #[error("region does not permit remote access")]
    NoRemoteAccess,
    /// A window requests rights that its region does not allow.
    #[error("region does not permit these rights")]
    RightsNotAllowed,
    /// Memory windows are bound to the region.
    #[error("region has bound memory windows")]
    WindowsBound,
    /// More pages than a fast registration supports.
    #[error("too many pages")]
    TooManyPages,
    /// The completion queue has more entries than its new depth.
    #[error("completion queue holds more entries than the new depth")]
    CompletionsPresent,
    /// The shared receive queue has more receives than its new depth.
    #[error("shared receive queue holds more receives than the new depth")]
    ReceivesPresent,
    /// A table is full, or memory is exhausted.
    #[error("out of resources")]
    NoResources,
    /// Both limits of the moderation are disabled: no notification would ever be delivered.
    #[error("interrupt moderation needs a count or an interval")]
    NeverNotified,
    /// The completion queue has failed and delivers no completions.
    #[error("completion queue failed")]
    CqFailed,
    /// The device was removed.
    #[error("device removed")]
    DeviceLost,
}

/// Reason of a failed connection attempt, or of the end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum ConnectError {
    /// No listener has the address, or the peer rejected the connection.
    #[error("connection refused by the peer")]
    Refused,
    /// One of the ends aborted the connection.
    #[error("connection aborted")]
    Aborted,
    /// The peer does not answer.
    #[error("no response from the peer")]
    TimedOut,
    /// The consumer closed the object before the request was complete.
    #[error("request canceled")]
    Cancelled,
    /// The next hop does not answer.
    #[error("host unreachable")]
    HostUnreachable,
    /// There is no route.
    #[error("network unreachable")]
    NetworkUnreachable,
    /// The address is not a local address, or no peer can have it.
    #[error("invalid address")]
    InvalidAddress,
    /// The local address is in use.
    #[error("address in use")]
    AddressInUse,
    /// A connection between these two addresses exists.
    #[error("connection already exists")]
    ConnectionExists,
    /// No ephemeral port is left.
    #[error("no free ephemeral port")]
    NoPorts,
    /// The connector or listener is already in use.
    #[error("object already bound to an address")]
    AlreadyBound,
    /// The queue pair already has a connection.
    #[error("queue pair already connected")]
    QpConnected,
    /// The queue pair can no longer be connected.
    #[error("queue pair can no longer be connected")]
    QpUnusable,
    /// The call is not valid in this state.
    #[error("call not valid in this state")]
    InvalidState,
    /// More private data than fits.
    #[error("private data too long")]
    PrivateDataTooLong,
    /// The object does not exist or is being closed.
    #[error("no such object")]
    InvalidHandle,
    /// A table is full, or memory is exhausted.
    #[error("out of resources")]
    NoResources,
    /// The process or the machine has no file descriptor left.
    #[error("no free file descriptor")]
    NoDescriptors,
    /// The device was removed, and all of its connections with it.
    #[error("device removed")]
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
    #[error("completion queue overrun")]
    Overrun,
    /// The device was removed. Earlier completions, and those flushed by the removal, can be polled.
    #[error("device removed")]
    DeviceLost,
}
