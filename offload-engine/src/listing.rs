//! Rows of connections and listeners for monitoring: states by the names of `ss`, places of data paths by those of
//! Windows.

use core::{fmt, net::SocketAddr};

use crate::{
    chimney::client::{OffloadHandle, UploadReason},
    status::NdisStatus,
    tcp::TcpPhase,
};

/// State of RFC 9293 §3.3.2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocketState {
    /// LISTEN.
    Listen,
    /// SYN-SENT.
    SynSent,
    /// SYN-RECEIVED.
    SynReceived,
    /// ESTABLISHED.
    Established,
    /// FIN-WAIT-1.
    FinWait1,
    /// FIN-WAIT-2.
    FinWait2,
    /// CLOSE-WAIT.
    CloseWait,
    /// CLOSING.
    Closing,
    /// LAST-ACK.
    LastAck,
    /// TIME-WAIT.
    TimeWait,
    /// CLOSED.
    Closed,
}

impl SocketState {
    /// Returns the name in the State column of `ss`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Listen => "LISTEN",
            Self::SynSent => "SYN-SENT",
            Self::SynReceived => "SYN-RECV",
            Self::Established => "ESTAB",
            Self::FinWait1 => "FIN-WAIT-1",
            Self::FinWait2 => "FIN-WAIT-2",
            Self::CloseWait => "CLOSE-WAIT",
            Self::Closing => "CLOSING",
            Self::LastAck => "LAST-ACK",
            Self::TimeWait => "TIME-WAIT",
            Self::Closed => "UNCONN",
        }
    }
}

impl SocketState {
    /// Returns the state with this number in the kernel's TCP_INFO.
    pub const fn of_kernel(number: u8) -> Self {
        match number {
            1 => Self::Established,
            2 => Self::SynSent,
            3 => Self::SynReceived,
            4 => Self::FinWait1,
            5 => Self::FinWait2,
            6 => Self::TimeWait,
            8 => Self::CloseWait,
            9 => Self::LastAck,
            10 => Self::Listen,
            11 => Self::Closing,
            _ => Self::Closed,
        }
    }
}

impl From<TcpPhase> for SocketState {
    fn from(phase: TcpPhase) -> Self {
        match phase {
            TcpPhase::Closed => Self::Closed,
            TcpPhase::Established => Self::Established,
            TcpPhase::FinWait1 => Self::FinWait1,
            TcpPhase::FinWait2 => Self::FinWait2,
            TcpPhase::CloseWait => Self::CloseWait,
            TcpPhase::Closing => Self::Closing,
            TcpPhase::LastAck => Self::LastAck,
            TcpPhase::TimeWait => Self::TimeWait,
        }
    }
}

/// Location of a connection's data path, by the names of Windows' Offload State column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum OffloadState {
    /// In the host stack.
    InHost,
    /// Moving from the host stack to the target.
    Offloading,
    /// In the target.
    Offloaded,
    /// Moving from the target to the host stack.
    Uploading,
    /// In the kernel's TCP, for life.
    Kernel,
}

impl fmt::Display for OffloadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Reason of a migration that was not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Status that the target has returned.
    Target(NdisStatus),
    /// Reason for which the host has not begun it, or not completed it.
    Host(&'static str),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Target(status) => write!(f, "target: {status}"),
            Self::Host(why) => write!(f, "host stack: {why}"),
        }
    }
}

/// Moves of a connection between host and target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MigrationCounts {
    /// Completed offloads.
    pub offloads: u32,
    /// Completed uploads.
    pub uploads: u32,
    /// Reason of the last upload that the target has requested; `None`: it has requested none.
    pub last_upload_reason: Option<UploadReason>,
    /// Migrations, in either direction, that were not done.
    pub refusals: u32,
    /// Reason of the last of them.
    pub last_refusal: Option<Refusal>,
}

/// Row of a connection or of a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionRow {
    /// Name within the node. Connections and listeners share one sequence of names.
    pub handle: OffloadHandle,
    /// Local address. Unspecified: all addresses of the node.
    pub local: SocketAddr,
    /// Address of the peer; `None` for a listener.
    pub remote: Option<SocketAddr>,
    /// State; `None` for an offloaded connection, whose state the target has.
    pub state: Option<SocketState>,
    /// Location of its data path.
    pub offload: OffloadState,
    /// Received bytes that the client has not taken; for a listener, handshakes in progress. `None` as for `state`.
    pub recv_q: Option<usize>,
    /// Sent bytes that the peer has not acknowledged; for a listener, its backlog. `None` as for `state`.
    pub send_q: Option<usize>,
    /// Its moves.
    pub moves: MigrationCounts,
}
