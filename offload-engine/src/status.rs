//! NDIS_STATUS values of the chimney and of opening an NDK adapter, numerically equal to Windows', so that traces
//! compare.

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
    /// In Windows' headers, without a documented use; never given.
    OFFLOAD_STATE_INVALID = 0x4002_0005;
    /// A MUX driver reports changed hardware capabilities; never given, there is none.
    TCP_CONNECTION_OFFLOAD_HARDWARE_CAPABILITIES = 0x4002_000B;
    /// Any state operation failed.
    FAILURE = 0xC000_0001;
    /// Initiate: out of memory.
    RESOURCES = 0xC000_009A;
    /// Not offered.
    NOT_SUPPORTED = 0xC000_00BB;
    /// NDK: the adapter does not speak this version.
    BAD_VERSION = 0xC001_0004;
    /// NDK: it is disabled.
    ADAPTER_NOT_READY = 0xC001_0011;
    /// A receive request was posted after the disconnect event.
    INVALID_STATE = 0xC000_0184;
    /// The connection was reset or aborted; the host does not redo the request.
    REQUEST_ABORTED = 0xC001_000C;
    /// Returned because of an upload; the host redoes the request.
    UPLOAD_IN_PROGRESS = 0xC023_1001;
    /// An intermediate driver could not pass a list down; never given, there is none.
    REQUEST_UPLOAD = 0xC023_1002;
    /// An intermediate driver, of all lists behind that one; never given.
    UPLOAD_REQUESTED = 0xC023_1003;
    /// Initiate: no TCP object left.
    OFFLOAD_TCP_ENTRIES = 0xC023_1004;
    /// Initiate: no path object left.
    OFFLOAD_PATH_ENTRIES = 0xC023_1005;
    /// Initiate: no neighbor object left.
    OFFLOAD_NEIGHBOR_ENTRIES = 0xC023_1006;
    /// Initiate: no room for the source IP address.
    OFFLOAD_IP_ADDRESS_ENTRIES = 0xC023_1007;
    /// Initiate: no room for an explicit source MAC address.
    OFFLOAD_HW_ADDRESS_ENTRIES = 0xC023_1008;
    /// Initiate: the table of VLAN ids is full.
    OFFLOAD_VLAN_ENTRIES = 0xC023_1009;
    /// Initiate: no transmit buffers.
    OFFLOAD_TCP_XMIT_BUFFER = 0xC023_100A;
    /// Initiate: no receive buffers.
    OFFLOAD_TCP_RCV_BUFFER = 0xC023_100B;
    /// Initiate: InitialRcvWnd larger than supported.
    OFFLOAD_TCP_RCV_WINDOW = 0xC023_100C;
    /// Initiate: the neighbor's VLAN id is none of the interface's.
    OFFLOAD_VLAN_MISMATCH = 0xC023_100D;
    /// A receive indication was refused.
    OFFLOAD_DATA_NOT_ACCEPTED = 0xC023_100E;
    /// A local policy forbids offloading.
    OFFLOAD_POLICY = 0xC023_100F;
    /// A receive indication was partly consumed.
    OFFLOAD_DATA_PARTIALLY_ACCEPTED = 0xC023_1010;
    /// In Windows' headers, without a documented use; never given.
    OFFLOAD_REQUEST_RESET = 0xC023_1011;
    /// Initiate: the target judges the connection a poor candidate.
    OFFLOAD_CONNECTION_REJECTED = 0xC023_1012;
    /// In Windows' message table: the path is in no state to be offloaded; never given.
    OFFLOAD_PATH_REJECTED = 0xC023_1013;
    /// Initiate: the path MTU is larger than the target supports. Documented, but without a value in Windows'
    /// headers: this one is ours, from the range of customers' codes.
    OFFLOAD_PATH_MTU = 0xE023_1014;
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
