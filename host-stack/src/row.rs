//! A connection or listener as monitoring sees it: one row each, as `ss` has it, and where its data path is, as
//! Windows has it.

use core::{fmt, net::SocketAddr};

use offload_engine::{
    chimney::client::{OffloadHandle, UploadReason},
    status::NdisStatus,
    tcp::TcpPhase,
};
use smoltcp::socket::tcp::State;

/// A state of RFC 9293 §3.3.2, by the name that ss gives it.
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
    /// The name in the State column of `ss`.
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
    /// The state of that number in the kernel's TCP_INFO.
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

impl From<State> for SocketState {
    fn from(state: State) -> Self {
        match state {
            State::Closed => Self::Closed,
            State::Listen => Self::Listen,
            State::SynSent => Self::SynSent,
            State::SynReceived => Self::SynReceived,
            State::Established => Self::Established,
            State::FinWait1 => Self::FinWait1,
            State::FinWait2 => Self::FinWait2,
            State::CloseWait => Self::CloseWait,
            State::Closing => Self::Closing,
            State::LastAck => Self::LastAck,
            State::TimeWait => Self::TimeWait,
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

/// The location of a connection's data path, by the names of Windows' Offload State column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum OffloadState {
    /// With the host stack.
    InHost,
    /// Being handed down.
    Offloading,
    /// With the target.
    Offloaded,
    /// On its way back to the host.
    Uploading,
    /// With the kernel's TCP: a socket, which stays there.
    Kernel,
}

impl fmt::Display for OffloadState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Why a hand-over was not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The status that the target returned.
    Target(NdisStatus),
    /// Why the host has not begun it, or not completed it.
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

/// How a connection has moved between host and target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Moves {
    /// Times that the target has taken it over.
    pub offloads: u32,
    /// Times that the host has taken it back from the target.
    pub uploads: u32,
    /// Why the target last wanted it uploaded; `None`: it never did.
    pub last_upload_reason: Option<UploadReason>,
    /// Hand-overs, either way, that were not done.
    pub refusals: u32,
    /// Why the last one was not.
    pub last_refusal: Option<Refusal>,
}

/// A connection or a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectionRow {
    /// Its name within the node; a listener's comes from the same numbers.
    pub handle: OffloadHandle,
    /// Our end. An unspecified address: all of the node's.
    pub local: SocketAddr,
    /// The peer's end; `None` of a listener.
    pub remote: Option<SocketAddr>,
    /// State; of an offloaded connection `None`: the target knows.
    pub state: Option<SocketState>,
    /// Where its data path is.
    pub offload: OffloadState,
    /// Bytes received that the client has not taken; handshakes under way of a listener. `None` as for
    /// `state`.
    pub recv_q: Option<usize>,
    /// Bytes sent that the peer has not acknowledged; a listener's backlog. `None` as for `state`.
    pub send_q: Option<usize>,
    /// How it has moved.
    pub moves: Moves,
}
