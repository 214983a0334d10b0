//! NDIS_STATUS values of the chimney, numerically equal to Windows', so that traces compare.

use core::fmt;

/// An NDIS_STATUS.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct NdisStatus(pub u32);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        impl NdisStatus {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// The name without its `NDIS_STATUS_` prefix, if the value is one of ours.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    /// Done; for a send: every byte was acknowledged by the peer.
    SUCCESS = 0x0000_0000;
    /// Accepted, completes later. The only legal return of send, receive, disconnect and forward (CH-SND-1).
    PENDING = 0x0000_0103;
    /// Adapter status: stop offloading.
    OFFLOAD_PAUSE = 0x4002_0001;
    /// Adapter status: terminate everything.
    UPLOAD_ALL = 0x4002_0002;
    /// Adapter status: offloading may go on.
    OFFLOAD_RESUME = 0x4002_0003;
    /// Initiate: the object is in, some direct dependents are not.
    OFFLOAD_PARTIAL_SUCCESS = 0x4002_0004;
    /// Any state operation failed.
    FAILURE = 0xC000_0001;
    /// Initiate: out of memory.
    RESOURCES = 0xC000_009A;
    /// Not offered.
    NOT_SUPPORTED = 0xC000_00BB;
    /// A receive request was posted after the disconnect event.
    INVALID_STATE = 0xC000_0184;
    /// The connection was reset or aborted; the host does not redo the request.
    REQUEST_ABORTED = 0xC001_000C;
    /// Returned because of an upload; the host redoes the request.
    UPLOAD_IN_PROGRESS = 0xC023_1001;
    /// Initiate: no TCP object left.
    OFFLOAD_TCP_ENTRIES = 0xC023_1004;
    /// Initiate: no path object left.
    OFFLOAD_PATH_ENTRIES = 0xC023_1005;
    /// Initiate: no neighbor object left.
    OFFLOAD_NEIGHBOR_ENTRIES = 0xC023_1006;
    /// Initiate: no transmit buffers.
    OFFLOAD_TCP_XMIT_BUFFER = 0xC023_100A;
    /// Initiate: no receive buffers.
    OFFLOAD_TCP_RCV_BUFFER = 0xC023_100B;
    /// Initiate: InitialRcvWnd larger than supported.
    OFFLOAD_TCP_RCV_WINDOW = 0xC023_100C;
    /// A receive indication was refused.
    OFFLOAD_DATA_NOT_ACCEPTED = 0xC023_100E;
    /// A receive indication was partly consumed.
    OFFLOAD_DATA_PARTIALLY_ACCEPTED = 0xC023_1010;
    /// Initiate: the target judges the connection a poor candidate.
    OFFLOAD_CONNECTION_REJECTED = 0xC023_1012;
}

impl fmt::Debug for NdisStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{:#010x}", self.0),
        }
    }
}

impl fmt::Display for NdisStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "NDIS_STATUS_{name} ({:#010x})", self.0),
            None => write!(f, "{:#010x}", self.0),
        }
    }
}
