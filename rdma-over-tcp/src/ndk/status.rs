//! NTSTATUS values of NDKPI, numerically equal to those of Windows, so that traces and tests can be compared.

use core::fmt;

use crate::rnic::{ConnectError, CqFailure, VerbError, WcStatus};

/// NTSTATUS value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub struct NtStatus(pub u32);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        impl NtStatus {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// Returns the name without its `STATUS_` prefix, if the value is in the table.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($name)),)*
                    _ => None,
                }
            }

            /// All statuses of the table, in numerical order.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
        }
    };
}

statuses! {
    /// Success.
    SUCCESS = 0x0000_0000;
    /// Accepted: exactly one completion callback follows (NDK-ASY-1).
    PENDING = 0x0000_0103;
    /// The CQ overran, or the receive is shorter than the incoming send (NDK-ERR-5).
    BUFFER_OVERFLOW = 0x8000_0005;
    /// The queue is at its depth.
    NO_MORE_ENTRIES = 0x8000_001A;
    /// Windows are bound to the region.
    DEVICE_BUSY = 0x8000_0011;
    /// A scatter/gather entry or the peer's memory does not permit the access.
    ACCESS_VIOLATION = 0xC000_0005;
    /// No object has this handle: it is stale, or of another type. Used by the C interface, whose handles are pointers.
    INVALID_HANDLE = 0xC000_0008;
    /// An argument is out of range.
    INVALID_PARAMETER = 0xC000_000D;
    /// The request is not valid in this state, for example the invalidation of an invalid token.
    INVALID_DEVICE_REQUEST = 0xC000_0010;
    /// The output buffer is too small; the required size is returned.
    BUFFER_TOO_SMALL = 0xC000_0023;
    /// Both moderation parameters are out of range.
    INVALID_PARAMETER_MIX = 0xC000_0030;
    /// More scatter/gather entries or bytes than the queue pair supports.
    DATA_OVERRUN = 0xC000_003C;
    /// Remote operation error (InfiniBand providers).
    DATA_ERROR = 0xC000_003E;
    /// The local address is in use.
    SHARING_VIOLATION = 0xC000_0043;
    /// Out of memory, or an object table is full.
    INSUFFICIENT_RESOURCES = 0xC000_009A;
    /// The peer does not respond.
    IO_TIMEOUT = 0xC000_00B5;
    /// Not supported.
    NOT_SUPPORTED = 0xC000_00BB;
    /// The object is not in the state that the call requires.
    INVALID_DEVICE_STATE = 0xC000_0184;
    /// The queue pair failed while the request was processed.
    INTERNAL_ERROR = 0xC000_00E5;
    /// Flushed.
    CANCELLED = 0xC000_0120;
    /// The request caused an error at the remote queue pair.
    REMOTE_RESOURCES = 0xC000_013D;
    /// Not an address of this adapter.
    INVALID_ADDRESS = 0xC000_0141;
    /// Private data exceeds the limit (NDK-CD-5).
    INVALID_BUFFER_SIZE = 0xC000_0206;
    /// No ephemeral port is available (NDK-EP-4).
    TOO_MANY_ADDRESSES = 0xC000_0209;
    /// The 4-tuple is in use.
    ADDRESS_ALREADY_EXISTS = 0xC000_020A;
    /// No listener, or the peer rejected the connection.
    CONNECTION_REFUSED = 0xC000_0236;
    /// The connector or listener already has an address.
    ADDRESS_ALREADY_ASSOCIATED = 0xC000_0238;
    /// Not connected (NDK-CON-11).
    CONNECTION_INVALID = 0xC000_023A;
    /// The queue pair is already connected (NDK-CON-7).
    CONNECTION_ACTIVE = 0xC000_023B;
    /// No route to the address.
    NETWORK_UNREACHABLE = 0xC000_023C;
    /// The next hop does not respond.
    HOST_UNREACHABLE = 0xC000_023D;
    /// The peer aborted.
    CONNECTION_ABORTED = 0xC000_0241;
    /// The device was removed.
    DEVICE_REMOVED = 0xC000_02B6;
    /// More pages than a region can hold.
    IMPLEMENTATION_LIMIT = 0xC000_042B;
}

impl NtStatus {
    /// True if the severity is success or informational (NT_SUCCESS).
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 >> 30 < 2
    }
}

impl fmt::Debug for NtStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{:#010x}", self.0),
        }
    }
}

impl fmt::Display for NtStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "STATUS_{name} ({:#010x})", self.0),
            None => write!(f, "{:#010x}", self.0),
        }
    }
}

impl core::error::Error for NtStatus {}

impl From<WcStatus> for NtStatus {
    #[inline]
    fn from(status: WcStatus) -> Self {
        match status {
            WcStatus::Success => Self::SUCCESS,
            WcStatus::Flushed => Self::CANCELLED,
            WcStatus::LocalLength => Self::BUFFER_OVERFLOW, // NDK-ERR-5
            WcStatus::LocalProtection | WcStatus::RemoteAccess => Self::ACCESS_VIOLATION,
            WcStatus::LocalOperation => Self::INVALID_DEVICE_REQUEST,
            WcStatus::RemoteInvalidRequest => Self::REMOTE_RESOURCES,
            WcStatus::RemoteNotReady
            | WcStatus::RnrRetryExceeded
            | WcStatus::RetryExceeded
            | WcStatus::ConnectionLost => Self::IO_TIMEOUT, // NDK-ERR-4
            WcStatus::RemoteOperation => Self::INTERNAL_ERROR,
        }
    }
}

impl From<CqFailure> for NtStatus {
    fn from(failure: CqFailure) -> Self {
        match failure {
            CqFailure::Overrun => Self::BUFFER_OVERFLOW, // NDK-CQ-13
            CqFailure::DeviceLost => Self::INTERNAL_ERROR, // NDK-CQ-14
        }
    }
}

impl From<VerbError> for NtStatus {
    fn from(error: VerbError) -> Self {
        match error {
            VerbError::InvalidHandle | VerbError::InvalidArgument | VerbError::InlineTooLong => {
                Self::INVALID_PARAMETER
            }
            VerbError::TooManySges => Self::DATA_OVERRUN,
            VerbError::TooLong | VerbError::CompletionsPresent | VerbError::ReceivesPresent => {
                Self::BUFFER_OVERFLOW
            }
            VerbError::QueueFull => Self::NO_MORE_ENTRIES,
            VerbError::NotConnected => Self::CONNECTION_INVALID,
            VerbError::NoReads => Self::INVALID_DEVICE_REQUEST,
            VerbError::NoExtensions => Self::NOT_SUPPORTED,
            VerbError::NotMapped
            | VerbError::NoRemoteAccess
            | VerbError::ReadOnly
            | VerbError::RightsNotAllowed => Self::ACCESS_VIOLATION,
            VerbError::WindowsBound => Self::DEVICE_BUSY,
            VerbError::TooManyPages => Self::IMPLEMENTATION_LIMIT,
            VerbError::NoResources => Self::INSUFFICIENT_RESOURCES,
            VerbError::NeverNotified => Self::INVALID_PARAMETER_MIX,
            VerbError::CqFailed => Self::INVALID_DEVICE_STATE,
            VerbError::DeviceLost => Self::DEVICE_REMOVED,
        }
    }
}

impl From<ConnectError> for NtStatus {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Refused => Self::CONNECTION_REFUSED,
            ConnectError::Aborted => Self::CONNECTION_ABORTED,
            ConnectError::TimedOut => Self::IO_TIMEOUT,
            ConnectError::Cancelled => Self::CANCELLED,
            ConnectError::HostUnreachable => Self::HOST_UNREACHABLE,
            ConnectError::NetworkUnreachable => Self::NETWORK_UNREACHABLE,
            ConnectError::InvalidAddress => Self::INVALID_ADDRESS,
            ConnectError::AddressInUse => Self::SHARING_VIOLATION,
            ConnectError::ConnectionExists => Self::ADDRESS_ALREADY_EXISTS,
            ConnectError::NoPorts => Self::TOO_MANY_ADDRESSES,
            ConnectError::AlreadyBound => Self::ADDRESS_ALREADY_ASSOCIATED,
            ConnectError::QpConnected => Self::CONNECTION_ACTIVE,
            ConnectError::QpUnusable => Self::INVALID_DEVICE_STATE,
            ConnectError::InvalidState => Self::CONNECTION_INVALID,
            ConnectError::PrivateDataTooLong => Self::INVALID_BUFFER_SIZE,
            ConnectError::InvalidHandle => Self::INVALID_PARAMETER,
            ConnectError::NoResources | ConnectError::NoDescriptors => Self::INSUFFICIENT_RESOURCES,
            ConnectError::DeviceLost => Self::DEVICE_REMOVED,
        }
    }
}

impl<E: Into<NtStatus>> From<Result<(), E>> for NtStatus {
    fn from(outcome: Result<(), E>) -> Self {
        outcome.map_or_else(E::into, |()| Self::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, format};

    use super::*;

    #[test]
    fn table_has_no_duplicates_and_prints() {
        let numbers: BTreeSet<u32> = NtStatus::ALL.iter().map(|status| status.0).collect();
        assert_eq!(numbers.len(), NtStatus::ALL.len());
        assert_eq!(format!("{}", NtStatus::CANCELLED), "STATUS_CANCELLED (0xc0000120)");
        assert_eq!(format!("{:?}", NtStatus(0xC000_1234)), "0xc0001234");
    }

    #[test]
    fn severity() {
        assert!(NtStatus::SUCCESS.is_success() && NtStatus::PENDING.is_success());
        assert!(!NtStatus::BUFFER_OVERFLOW.is_success() && !NtStatus::CANCELLED.is_success());
    }
}
