//! What goes into a connection and what comes out: segments, events, limits, counters.

use core::ops::Range;

use super::{
    ecn::Ecn,
    path_mtu::{PathOptions, SoftError},
    recovery::RecoveryOptions,
    retrieve::UploadThresholds,
    seq::SeqNum,
};
use crate::{
    chimney::client::UploadReason,
    nbl::{NblChain, NetBufferList, ReceiveChain},
    time::Duration,
};

/// The states of RFC 9293 in which a connection can be with the target (CH-ST-1), and Closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum TcpPhase {
    /// No connection any more.
    Closed = 0,
    /// Data flows both ways.
    Established = 4,
    /// Our FIN is sent, not yet acknowledged.
    FinWait1 = 5,
    /// Our FIN is acknowledged.
    FinWait2 = 6,
    /// The peer's FIN has come.
    CloseWait = 7,
    /// Both FINs are out, ours not acknowledged.
    Closing = 8,
    /// The peer's FIN came first, ours is not acknowledged.
    LastAck = 9,
    /// Waiting for old segments to die.
    TimeWait = 10,
}

/// TCP header flags.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Flags(pub u8);

impl Flags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronize.
    pub const SYN: Self = Self(0x02);
    /// Reset.
    pub const RST: Self = Self(0x04);
    /// Push.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgement field is significant.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer is significant.
    pub const URG: Self = Self(0x20);
    /// ECN echo.
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced.
    pub const CWR: Self = Self(0x80);

    /// Whether all of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl core::ops::BitOr for Flags {
    type Output = Self;

    fn bitor(self, rhs: Self) -> Self {
        Self(self.0 | rhs.0)
    }
}

impl core::ops::BitOrAssign for Flags {
    fn bitor_assign(&mut self, rhs: Self) {
        self.0 |= rhs.0;
    }
}

/// A SACK block: bytes `start..end` have arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SackBlock {
    /// First byte.
    pub start: SeqNum,
    /// One beyond the last byte.
    pub end: SeqNum,
}

/// A timestamps option (RFC 7323).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timestamps {
    /// TSval.
    pub value: u32,
    /// TSecr.
    pub echo: u32,
}

/// The TCP header of a received segment, parsed, and its payload. Checksum already verified.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Sequence number.
    pub seq: SeqNum,
    /// Acknowledgement number; meaningful with ACK.
    pub ack: SeqNum,
    /// Flags.
    pub flags: Flags,
    /// Window field as on the wire, unscaled.
    pub window: u16,
    /// Timestamps option.
    pub timestamps: Option<Timestamps>,
    /// SACK blocks, at most 4.
    pub sack: &'a [SackBlock],
    /// Payload.
    pub payload: &'a [u8],
    /// Payload bytes of each original segment if the link coalesced several; 0 if it did not.
    pub gso_size: usize,
    /// The ECN bits of its IP header.
    pub ecn: Ecn,
}

/// What became of a received segment.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Received {
    /// The part of the payload that continues the stream: indicate it now, or settle it. Not to be
    /// indicated while older bytes wait in the backlog or the consumer has refused: then all of it is
    /// settled.
    pub in_order: Range<usize>,
    /// The in-order data ends with a PSH.
    pub push: bool,
}

/// What a connection tells its surroundings.
#[derive(Debug)]
pub enum Event {
    /// Receive requests are complete, in order.
    ReceiveComplete(ReceiveChain),
    /// Lists are complete, in order.
    SendComplete(NblChain),
    /// The disconnect request is complete.
    DisconnectComplete(NetBufferList),
    /// The peer's FIN has come and all data before it is consumed.
    PeerClosed,
    /// An acceptable RST has come.
    Reset,
    /// The bytes to keep posted have doubled or halved (CH-ST-2).
    SendBacklogChange(usize),
    /// An upload is wanted. With a mandatory reason the connection has stopped.
    Retrieve(UploadReason),
    /// The state is Closed and nothing is left to do.
    Closed,
}

/// What the link allows for the next segment.
#[derive(Clone, Copy, Debug)]
pub struct TxLimits {
    /// Most payload bytes of one transmission: more than the EMSS only with segmentation offload.
    pub super_segment_max: usize,
}

/// A segment, or super-segment, to be transmitted. The payload is gathered with
/// [`Connection::payload`](super::Connection::payload).
#[derive(Clone, Copy, Debug)]
pub struct Transmit {
    /// Sequence number.
    pub seq: SeqNum,
    /// Acknowledgement number.
    pub ack: SeqNum,
    /// Flags; PSH and FIN belong to the last piece of a super-segment.
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
    /// Payload bytes of each piece when `payload_len` exceeds it (gso_size).
    pub mss: usize,
    /// At least one byte was sent before.
    pub retransmission: bool,
    /// The context of the net buffer list that the first byte belongs to; names it in captures.
    pub nbl_context: Option<u64>,
    /// The ECN bits for its IP header.
    pub ecn: Ecn,
}

/// Policy of PSH (CH-SND-5).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PushPolicy {
    /// On the last segment cut from each net buffer list. Segments end at list boundaries.
    #[default]
    EachList,
    /// On the last segment before the send queue runs empty. Segments span list boundaries.
    QueueEmpty,
}

/// Which congestion controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CongestionAlgorithm {
    /// RFC 9438.
    #[default]
    Cubic,
    /// RFC 5681 and 6582.
    NewReno,
    /// No window but the peer's: for links without loss.
    Unlimited,
}

/// What a congestion controller does besides its algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CongestionOptions {
    /// End the first slow start when the RTT rises (HyStart++, RFC 9406).
    pub hystart: bool,
    /// With `hystart`, end it as well when acknowledgements come without a gap for half of the RTT (HyStart).
    pub ack_train: bool,
    /// Restart from the initial window when nothing was sent for an RTO (RFC 5681 s4.1).
    pub idle_restart: bool,
    /// Reduce a window that was not used for an RTO to halfway what was used of it (RFC 2861 s3). That an
    /// unused window does not grow is no option.
    pub cwnd_validation: bool,
    /// Spread the window over the round trip instead of sending it as ACKs allow.
    pub pacing: bool,
}

impl Default for CongestionOptions {
    /// All but pacing.
    fn default() -> Self {
        Self {
            hystart: true,
            ack_train: true,
            idle_restart: true,
            cwnd_validation: true,
            pacing: false,
        }
    }
}

/// Limits and policies of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// PSH policy.
    pub push: PushPolicy,
    /// Congestion controller.
    pub congestion: CongestionAlgorithm,
    /// What it does besides its algorithm.
    pub congestion_options: CongestionOptions,
    /// Smallest RTO (RFC 6298 2.4 says one second; hosts on LANs use 200 ms).
    pub rto_min: Duration,
    /// Largest RTO.
    pub rto_max: Duration,
    /// Retransmissions of one segment, or window probes in one round, before the connection is given
    /// up (TcpMaximumRetransmissions).
    pub retransmissions_max: u8,
    /// Delay of a delayed ACK.
    pub delayed_ack: Duration,
    /// Segments, or as many bytes as this many full-sized ones hold, before an ACK is sent at once
    /// (TcpAckFrequency).
    pub ack_frequency: u8,
    /// Duplicate ACKs that start fast retransmit.
    pub duplicate_ack_threshold: u8,
    /// Out-of-order gaps kept. A queue that overflows as slow start ends may drop every other segment: fewer
    /// gaps than half of the window's segments cost round trips then.
    pub reassembly_gaps_max: usize,
    /// FIN_WAIT_2 limit.
    pub fin_wait_2: Duration,
    /// TIME_WAIT length.
    pub time_wait: Duration,
    /// Bytes that the receive window may grow to, as the consumer takes them faster; what the window's
    /// scale can say bounds it too. At or below InitialRcvWnd, for example 0: the window does not grow.
    pub rcv_wnd_max: u32,
    /// Bytes that may be in flight on any path, as far as congestion control and the peer allow: enough for a
    /// peer that has to be woken, and fewer frames than a TAP keeps before it drops.
    pub in_flight_min: u64,
    /// Bytes in a second that no path carries more of. On a path whose smallest round trip is longer than
    /// `in_flight_min` takes at this rate, that much may be in flight; what goes beyond it would only wait in
    /// a queue, in a TAP's until it overflows. `u64::MAX`: no limit.
    pub link_rate: u64,
    /// ACKs without delay for full-sized segments after a take-over: a sender in slow start waits for
    /// them.
    pub quick_acks: u8,
    /// A segment without timestamps is dropped although they were agreed, as RFC 7323 s3.2 recommends.
    /// Off, it is taken, without the protection of PAWS, as Linux does: some middleboxes remove options.
    pub timestamps_required: bool,
    /// How the path's MTU is learned.
    pub path: PathOptions,
    /// Parts of loss recovery in use.
    pub recovery: RecoveryOptions,

    /// How long a receive request in push mode that holds some bytes waits for more (TcpPushTicks).
    pub push_delay: Duration,
    /// When to ask for an upload though the connection could go on.
    pub upload: UploadThresholds,
    /// Ask for an upload in TIME_WAIT (CH-EVT-3: that state is the host's). Off, the target sits it out itself, and
    /// the host need not know.
    pub time_wait_uploads: bool,
    /// A SYN at exactly RCV.NXT has the connection uploaded in state CLOSED, as CH s9.2 says. Off, it gets a
    /// challenge ACK as every SYN does (RFC 5961 s4.2): who guesses one number ends nobody's connection.
    pub syn_uploads: bool,
}

/// What congestion control and recovery are doing. Names and numbers are Linux'.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum CaState {
    /// Nothing special.
    Open = 0,
    /// Segments are missing, but none is presumed lost yet.
    Disorder = 1,
    /// The window was reduced for a mark (RFC 3168), and the flight of that time is not acknowledged.
    Cwr = 2,
    /// Fast recovery.
    Recovery = 3,
    /// A time-out is being repaired.
    Loss = 4,
}

/// What TCP_INFO would say; `None` where unknown. Names are Linux'.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Info {
    /// State.
    pub phase: TcpPhase,
    /// Retransmission time-out.
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
    /// Segments sent, counting each piece of a super-segment.
    pub segs_out: u64,
    /// Segments received.
    pub segs_in: u64,
    /// Segments that held a byte sent before.
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
    /// Retransmission time-outs.
    pub timeouts: u64,
    /// Fast retransmits.
    pub fast_retransmits: u64,
    /// Challenge ACKs sent (RFC 5961).
    pub challenge_acks: u64,
    /// Payload bytes of the peer's full-sized segments, as seen.
    pub rcv_mss: usize,
    /// Round-trip time as the receive side sees it; `None` before the first sample.
    pub rcv_rtt: Option<Duration>,
    /// Limit of our window, bytes: InitialRcvWnd, and what it has grown to.
    pub rcv_space: u64,
    /// Path MTU, bytes of an IP packet.
    pub pmtu: u32,
    /// Times that the path MTU was reduced, by ICMP or because of a black hole.
    pub path_mtu_reductions: u64,
    /// Those of them that no ICMP message had asked for (RFC 2923).
    pub black_holes: u64,
    /// ICMP errors about bytes in flight that are no matter of size.
    pub soft_errors: u64,
    /// The last of them, unless there was progress since: why the connection timed out, if it did.
    pub soft_error: Option<SoftError>,
    /// ICMP errors that quote no byte in flight (RFC 5927 s4.1).
    pub path_errors_ignored: u64,
    /// ECN was agreed on (RFC 3168).
    pub ecn: bool,
    /// Data segments received with a CE mark.
    pub ce_received: u64,
    /// Segments delivered by acknowledgements with ECE.
    pub delivered_ce: u64,
    /// Reductions of the congestion window because of ECE.
    pub ecn_reductions: u64,
    /// Reductions of the congestion window taken back because a timestamp showed that the original had
    /// arrived (RFC 3522).
    pub undo_by_timestamp: u64,
    /// The same, because all that was resent was reported as duplicate (RFC 2883).
    pub undo_by_dsack: u64,
    /// The same, by F-RTO (RFC 5682).
    pub undo_by_f_rto: u64,
    /// Time-outs among what was taken back.
    pub spurious_timeouts: u64,
    /// Reports of duplicates received (RFC 2883).
    pub dsack_dups: u64,
    /// Acknowledgements that told of reordering (RFC 8985 s6.2 step 3).
    pub reord_seen: u64,
    /// What congestion control and recovery are doing.
    pub ca_state: CaState,
    /// Smallest round-trip time; `None` before the first sample.
    pub min_rtt: Option<Duration>,
    /// Segments in [SND.UNA, SND.NXT), as those that follow count in segments of the present size.
    pub unacked: u64,
    /// Those of them selectively acknowledged.
    pub sacked: u64,
    /// Those of them presumed lost and not resent.
    pub lost: u64,
    /// Those of them resent and in flight; what was in flight at the take-over counts as resent.
    pub retrans: u64,
    /// Bytes acknowledged or selectively acknowledged, not in whole segments as Linux' `delivered`.
    pub bytes_delivered: u64,
    /// Bytes for each second; `None` without pacing, or before the first RTT sample.
    pub pacing_rate: Option<u64>,
    /// MSS that the peer was told.
    pub advmss: usize,
    /// Time since data was sent; `None` before.
    pub last_data_sent: Option<Duration>,
    /// Time since data was received; `None` before.
    pub last_data_recv: Option<Duration>,
    /// Time since an acceptable acknowledgement; `None` before.
    pub last_ack_recv: Option<Duration>,
    /// Time with something to send or unacknowledged.
    pub busy_time: Duration,
    /// That part of it in which the peer's window was too small for the next segment.
    pub rwnd_limited: Duration,
}

/// A connection cannot be taken over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// A phase in which no connection can be handed over (CH-ST-1).
    #[error("TCP: the connection is in a state in which it cannot be handed over")]
    Phase,
    /// SND.UNA <= SND.NXT <= SND.MAX does not hold, or the data handed over does not reach SND.MAX.
    #[error("TCP: send sequence variables and handed-over data disagree")]
    SendSequence,
    /// A scale above 14 (RFC 7323 s2.3).
    #[error("TCP: window scale above 14")]
    WindowScale,
    /// More buffered or out-of-order data than the receive window.
    #[error("TCP: more received data than the receive window")]
    ReceiveData,
}

impl Default for Config {
    /// RFC 9293 and Linux' habits: RTO of 200 ms to 60 s, 15 retransmissions, an ACK for every second
    /// segment or after 40 ms, 3 duplicate ACKs, 2,048 gaps out of order, FIN_WAIT_2 of 120 s
    /// (the chimney's value), TIME_WAIT of 60 s, a receive window that grows to 4 MiB, 16 quick ACKs,
    /// a push timer of 500 ms (the chimney's value).
    fn default() -> Self {
        Self {
            push: PushPolicy::default(),
            congestion: CongestionAlgorithm::default(),
            congestion_options: CongestionOptions::default(),
            rto_min: Duration::from_millis(200),
            rto_max: Duration::from_secs(60),
            retransmissions_max: 15,
            delayed_ack: Duration::from_millis(40),
            ack_frequency: 2,
            duplicate_ack_threshold: 3,
            reassembly_gaps_max: 2048,
            fin_wait_2: Duration::from_secs(120),
            time_wait: Duration::from_secs(60),
            rcv_wnd_max: 4 * 1024 * 1024,
            in_flight_min: 1024 * 1024,
            link_rate: 10_000_000_000,
            quick_acks: 16,
            timestamps_required: false,
            path: PathOptions::default(),
            recovery: RecoveryOptions::default(),
            push_delay: Duration::from_millis(500),
            upload: UploadThresholds::default(),
            time_wait_uploads: false,
            syn_uploads: false,
        }
    }
}
