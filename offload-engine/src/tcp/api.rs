//! Inputs and outputs of a connection: segments, requests, events, counters.

use core::ops::Range;

use crate::{
    nbl::{NblChain, NetBufferList, ReceiveChain},
    segment::{Ecn, Flags, SackBlock, Segment, SegmentHeader, SeqNum, SoftError, Timestamps},
    state::TcpPhase,
    time::Duration,
};

/// Result of processing a received segment.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Received {
    /// Part of the payload that continues the stream: indicate or settle it. While older bytes are in the backlog, or
    /// the consumer has refused, all of it is settled.
    pub in_order: Range<usize>,
    /// True if the in-order data ends with a PSH.
    pub push: bool,
}

/// Reason for an upload request (TCP_UPLOAD_REASON).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[repr(u32)]
pub enum UploadReason {
    /// Low traffic (optional): by default, less than 4 KiB in 2 s
    LowActivity = 1,
    /// Loss of sent segments (optional): by default, 5 % of 1,000 data segments retransmitted
    HighDropRate = 2,
    /// Small receive buffers (optional): by default, 16 consecutive receive requests of less than 512 bytes
    SmallIo = 3,
    /// No posted receive (optional): by default, 1 MiB received without one
    NoBufferPreposting = 4,
    /// A segment with URG arrived (mandatory).
    #[cfg_attr(feature = "clap", value(skip))]
    ReceivedUrgentData = 5,
    /// Fragmentation (optional): by default, 10 % of 1,000 packets from the peer
    HighFragmentation = 6,
    /// Reordering (optional): by default, 10 % of 1,000 data segments from the peer
    HighOutOfOrderPackets = 7,
    /// Retransmit, persist or FIN_WAIT_2 limit (mandatory).
    #[cfg_attr(feature = "clap", value(skip))]
    TimeoutExpiration = 8,
    /// The connection depends on an invalidated object (mandatory).
    #[cfg_attr(feature = "clap", value(skip))]
    InvalidState = 9,
    /// Unspecified, such as a shortage of resources (mandatory).
    #[cfg_attr(feature = "clap", value(skip))]
    UploadRequested = 10,
    /// The connection's state is corrupt (mandatory).
    #[cfg_attr(feature = "clap", value(skip))]
    HardwareFailure = 11,
}

impl UploadReason {
    /// True if the target has stopped the connection, so that the host must upload it. Otherwise the upload is optional
    /// (CH §8.2).
    pub const fn is_mandatory(self) -> bool {
        match self {
            Self::ReceivedUrgentData
            | Self::TimeoutExpiration
            | Self::InvalidState
            | Self::UploadRequested
            | Self::HardwareFailure => true,
            Self::LowActivity
            | Self::HighDropRate
            | Self::SmallIo
            | Self::NoBufferPreposting
            | Self::HighFragmentation
            | Self::HighOutOfOrderPackets => false,
        }
    }
}

/// Disconnect type (flags of MiniportTcpOffloadDisconnect).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Disconnect {
    /// Data, then FIN; completes when both are acknowledged.
    Graceful,
    /// RST; outstanding sends complete REQUEST_ABORTED first.
    Abortive,
}

/// An event of a connection.
#[derive(Debug)]
pub enum Event {
    /// Receive requests are complete, in order.
    ReceiveComplete(ReceiveChain),
    /// Lists are complete, in order.
    SendComplete(NblChain),
    /// The disconnect request is complete.
    DisconnectComplete(NetBufferList),
    /// The peer's FIN has arrived and all data before it is consumed.
    PeerClosed,
    /// An acceptable RST has arrived.
    Reset,
    /// The ideal send backlog in bytes has doubled or halved (CH-ST-2).
    SendBacklogChange(usize),
    /// Upload request. With a mandatory reason the connection has stopped.
    Retrieve(UploadReason),
    /// The state is Closed and no work remains.
    Closed,
}

/// Limits of the link for the next segment.
#[derive(Clone, Copy, Debug)]
pub struct TxLimits {
    /// Largest payload of one transmission in bytes; more than the EMSS only with segmentation offload.
    pub gso_payload_max: usize,
    /// True if new data and the FIN may be sent. Otherwise only retransmissions, probes and ACKs are.
    pub new_data: bool,
}

/// A segment or GSO packet to transmit. [`Connection::payload`](super::Connection::payload) gathers its payload.
#[derive(Clone, Copy, Debug)]
pub struct Transmit {
    /// Sequence number.
    pub seq: SeqNum,
    /// Acknowledgment number.
    pub ack: SeqNum,
    /// Flags. PSH and FIN apply to the last segment of a GSO packet.
    pub flags: Flags,
    /// Window field as on the wire.
    pub window: u16,
    /// Timestamps option.
    pub timestamps: Option<Timestamps>,
    /// SACK blocks; the first `sack_count` are valid.
    pub sack: [SackBlock; 4],
    /// Valid entries of `sack`.
    pub sack_count: usize,
    /// Payload bytes.
    pub payload_len: usize,
    /// Payload bytes of each segment if `payload_len` exceeds it (gso_size).
    pub mss: usize,
    /// True if at least one byte was sent before.
    pub retransmission: bool,
    /// Context of the net buffer list of the first byte, for captures.
    pub nbl_context: Option<u64>,
    /// ECN bits of the IP header.
    pub ecn: Ecn,
}

impl Transmit {
    /// Fields of the segment's headers.
    #[inline]
    pub fn header(&self) -> SegmentHeader<'_> {
        SegmentHeader {
            seq: self.seq,
            ack: self.ack,
            flags: self.flags,
            window: self.window,
            timestamps: self.timestamps,
            sack: &self.sack[..self.sack_count],
            payload_len: self.payload_len,
            ecn: self.ecn,
        }
    }

    /// Segment as the peer receives it, with this payload; a GSO packet if the payload exceeds the MSS.
    pub fn received<'a>(&'a self, payload: &'a [u8]) -> Segment<'a> {
        let SegmentHeader { seq, ack, flags, window, timestamps, sack, ecn, payload_len: _ } =
            self.header();
        let gso_size = if payload.len() > self.mss { self.mss } else { 0 };
        Segment { seq, ack, flags, window, timestamps, sack, payload, gso_size, ecn }
    }
}

/// State of congestion control and recovery. Names and numbers match Linux.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case")
)]
#[repr(u8)]
pub enum CaState {
    /// No loss or reordering.
    Open = 0,
    /// Segments are out of order or lost, but none is presumed lost yet.
    Disorder = 1,
    /// The window was reduced for an ECN mark (RFC 3168), and the flight of that time is not acknowledged.
    Cwr = 2,
    /// Fast recovery.
    Recovery = 3,
    /// Recovery from a timeout.
    Loss = 4,
}

/// Members of TCP_INFO; `None` if unknown. Names match Linux.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Info {
    /// State.
    pub phase: TcpPhase,
    /// Retransmission timeout.
    pub rto: Duration,
    /// Smoothed RTT; `None` before the first sample.
    pub rtt: Option<Duration>,
    /// RTT variance.
    pub rttvar: Option<Duration>,
    /// Effective send MSS.
    pub snd_mss: usize,
    /// Congestion window, bytes.
    pub snd_cwnd: u64,
    /// Slow start threshold, bytes; `None` before the first loss.
    pub snd_ssthresh: Option<u64>,
    /// Peer's window, bytes.
    pub snd_wnd: u64,
    /// Our window, bytes.
    pub rcv_wnd: u64,
    /// Segments sent, counted after segmentation.
    pub segs_out: u64,
    /// Segments received.
    pub segs_in: u64,
    /// Segments that contained a byte sent before.
    pub total_retrans: u64,
    /// Bytes sent, without retransmissions.
    pub bytes_sent: u64,
    /// Bytes retransmitted.
    pub bytes_retrans: u64,
    /// Bytes acknowledged by the peer.
    pub bytes_acked: u64,
    /// Bytes received in order.
    pub bytes_received: u64,
    /// Segments sent with PSH.
    pub push_out: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Fast retransmits.
    pub fast_retransmits: u64,
    /// Challenge ACKs sent (RFC 5961).
    pub challenge_acks: u64,
    /// Payload bytes of the peer's full-sized segments, measured.
    pub rcv_mss: usize,
    /// RTT measured by the receive side; `None` before the first sample.
    pub rcv_rtt: Option<Duration>,
    /// Limit of our window in bytes: InitialRcvWnd, or the size it has grown to.
    pub rcv_space: u64,
    /// Path MTU, bytes of an IP packet.
    pub pmtu: u32,
    /// Reductions of the path MTU, by ICMP or black-hole detection.
    pub path_mtu_reductions: u64,
    /// Reductions of the path MTU by black-hole detection (RFC 2923).
    pub black_holes: u64,
    /// ICMP errors about bytes in flight other than "too big".
    pub soft_errors: u64,
    /// Last soft error, unless data was acknowledged since; explains a connection timeout.
    pub soft_error: Option<SoftError>,
    /// ICMP errors that quote no byte in flight (RFC 5927 §4.1).
    pub path_errors_ignored: u64,
    /// True if ECN was negotiated (RFC 3168).
    pub ecn: bool,
    /// Data segments received with a CE mark.
    pub ce_received: u64,
    /// Segments delivered by acknowledgments with ECE.
    pub delivered_ce: u64,
    /// Reductions of the congestion window by ECE.
    pub ecn_reductions: u64,
    /// Congestion window reductions undone because a timestamp showed that the original had arrived (RFC 3522).
    pub undo_by_timestamp: u64,
    /// Reductions undone because all retransmissions were reported as duplicates (RFC 2883).
    pub undo_by_dsack: u64,
    /// Reductions undone by F-RTO (RFC 5682).
    pub undo_by_f_rto: u64,
    /// Timeouts among the undone reductions.
    pub spurious_timeouts: u64,
    /// Duplicate reports (DSACK) received (RFC 2883).
    pub dsack_dups: u64,
    /// Acknowledgments that revealed reordering (RFC 8985 §6.2 step 3).
    pub reord_seen: u64,
    /// State of congestion control and recovery.
    pub ca_state: CaState,
    /// Minimum RTT; `None` before the first sample.
    pub min_rtt: Option<Duration>,
    /// Segments in [SND.UNA, SND.NXT), in units of the current segment size.
    pub unacked: u64,
    /// Selectively acknowledged segments of `unacked`.
    pub sacked: u64,
    /// Segments of `unacked` presumed lost and not retransmitted.
    pub lost: u64,
    /// Segments of `unacked` retransmitted and in flight; the flight at the offload counts as retransmitted.
    pub retrans: u64,
    /// Bytes acknowledged or selectively acknowledged. Linux counts whole segments in `delivered`.
    pub bytes_delivered: u64,
    /// Pacing rate in bytes per second; `None` without pacing, or before the first RTT sample.
    pub pacing_rate: Option<u64>,
    /// MSS advertised to the peer.
    pub advmss: usize,
    /// Time since data was sent; `None` before.
    pub last_data_sent: Option<Duration>,
    /// Time since data was received; `None` before.
    pub last_data_recv: Option<Duration>,
    /// Time since an acceptable acknowledgment; `None` before.
    pub last_ack_recv: Option<Duration>,
    /// Time with unsent or unacknowledged data.
    pub busy_time: Duration,
    /// Part of `busy_time` in which the peer's window was too small for the next segment.
    pub rwnd_limited: Duration,
}

/// Error of a connection state that cannot be offloaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// A phase in which no connection can be offloaded (CH-ST-1).
    #[error("TCP: connection cannot be offloaded in its state")]
    Phase,
    /// SND.UNA <= SND.NXT <= SND.MAX does not hold, or the send data does not reach SND.MAX.
    #[error("TCP: send sequence variables and send data disagree")]
    SendSequence,
    /// A scale above 14 (RFC 7323 §2.3).
    #[error("TCP: window scale out of range: expected at most 14")]
    WindowScale,
    /// More buffered or out-of-order data than the receive window.
    #[error("TCP: received data exceeds the receive window")]
    ReceiveData,
}
