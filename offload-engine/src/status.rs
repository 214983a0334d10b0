//! NDIS_STATUS values of the chimney and of opening an NDK adapter, numerically equal to those of Windows, so that
//! traces are comparable.

use core::fmt;

/// NDIS_STATUS value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct NdisStatus(pub u32);

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => {
        impl NdisStatus {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// Returns the name without its `NDIS_STATUS_` prefix, if the value is listed here.
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
    /// Success. For a send: every byte was acknowledged by the peer.
    SUCCESS = 0x0000_0000;
    /// Accepted; completes later. The only legal return of send, receive, disconnect and forward (CH-SND-1).
    PENDING = 0x0000_0103;
    /// Adapter status: stop offloading.
    OFFLOAD_PAUSE = 0x4002_0001;
    /// Adapter status: terminate all offloaded objects.
    UPLOAD_ALL = 0x4002_0002;
    /// Adapter status: offloads are accepted again.
    OFFLOAD_RESUME = 0x4002_0003;
    /// Initiate: the object was offloaded, some direct dependents were not.
    OFFLOAD_PARTIAL_SUCCESS = 0x4002_0004;
    /// Defined in Windows' headers, without a documented use. Never returned.
    OFFLOAD_STATE_INVALID = 0x4002_0005;
    /// A MUX driver reports changed hardware capabilities. Never returned, because there is none.
    TCP_CONNECTION_OFFLOAD_HARDWARE_CAPABILITIES = 0x4002_000B;
    /// Any state operation failed.
    FAILURE = 0xC000_0001;
    /// Initiate: out of memory.
    RESOURCES = 0xC000_009A;
    /// Not supported.
    NOT_SUPPORTED = 0xC000_00BB;
    /// NDK: the adapter does not support this version.
    BAD_VERSION = 0xC001_0004;
    /// NDK: the adapter is disabled.
    ADAPTER_NOT_READY = 0xC001_0011;
    /// A receive request was posted after the disconnect event.
    INVALID_STATE = 0xC000_0184;
    /// The connection was reset or aborted. The host does not repeat the request.
    REQUEST_ABORTED = 0xC001_000C;
    /// The request was returned because of an upload. The host repeats it.
    UPLOAD_IN_PROGRESS = 0xC023_1001;
    /// An intermediate driver could not pass a list to the target. Never returned, because there is none.
    REQUEST_UPLOAD = 0xC023_1002;
    /// Status of all lists after that one. Never returned.
    UPLOAD_REQUESTED = 0xC023_1003;
    /// Initiate: no TCP object available.
    OFFLOAD_TCP_ENTRIES = 0xC023_1004;
    /// Initiate: no path object available.
    OFFLOAD_PATH_ENTRIES = 0xC023_1005;
    /// Initiate: no neighbor object available.
    OFFLOAD_NEIGHBOR_ENTRIES = 0xC023_1006;
    /// Initiate: too many source IP addresses.
    OFFLOAD_IP_ADDRESS_ENTRIES = 0xC023_1007;
    /// Initiate: too many explicit source MAC addresses.
    OFFLOAD_HW_ADDRESS_ENTRIES = 0xC023_1008;
    /// Initiate: too many VLAN ids.
    OFFLOAD_VLAN_ENTRIES = 0xC023_1009;
    /// Initiate: too much send data.
    OFFLOAD_TCP_XMIT_BUFFER = 0xC023_100A;
    /// Initiate: too much received data.
    OFFLOAD_TCP_RCV_BUFFER = 0xC023_100B;
    /// Initiate: InitialRcvWnd exceeds the supported maximum.
    OFFLOAD_TCP_RCV_WINDOW = 0xC023_100C;
    /// Initiate: the neighbor's VLAN id is not one of the interface's.
    OFFLOAD_VLAN_MISMATCH = 0xC023_100D;
    /// A receive indication was refused.
    OFFLOAD_DATA_NOT_ACCEPTED = 0xC023_100E;
    /// A local policy forbids offloading.
    OFFLOAD_POLICY = 0xC023_100F;
    /// A receive indication was partly consumed.
    OFFLOAD_DATA_PARTIALLY_ACCEPTED = 0xC023_1010;
    /// Defined in Windows' headers, without a documented use. Never returned.
    OFFLOAD_REQUEST_RESET = 0xC023_1011;
    /// Initiate: the target's policy rejects the connection.
    OFFLOAD_CONNECTION_REJECTED = 0xC023_1012;
    /// In Windows' message table: the path is in no state to be offloaded. Never returned.
    OFFLOAD_PATH_REJECTED = 0xC023_1013;
    /// Initiate: the path MTU exceeds the supported maximum. Documented, but without a value in Windows' headers: this
    /// value is flue's own, from the range of customer codes.
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
