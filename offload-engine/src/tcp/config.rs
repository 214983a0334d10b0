//! Limits and policies of a connection.

use super::{api::UploadReason, recovery::RecoveryOptions};
use crate::time::Duration;

crate::option_enum! {
    /// Policy of PSH (CH-SND-5).
    pub enum PushPolicy {
        /// Last segment of each net buffer list; segments end at list boundaries
        #[default]
        #[cfg_attr(feature = "serde", serde(rename = "list"))]
        #[cfg_attr(feature = "clap", value(name = "list"))]
        EachList,
        /// Last segment before the send queue is empty; segments span list boundaries
        #[cfg_attr(feature = "serde", serde(rename = "empty"))]
        #[cfg_attr(feature = "clap", value(name = "empty"))]
        QueueEmpty,
    }
}

crate::option_enum! {
    /// Congestion control algorithm.
    pub enum CongestionAlgorithm {
        /// CUBIC (RFC 9438)
        #[default]
        Cubic,
        /// RFC 5681 and RFC 6582
        #[cfg_attr(feature = "clap", value(name = "newreno"))]
        NewReno,
        /// The peer's window only, for links without loss
        #[cfg_attr(feature = "serde", serde(rename = "none"))]
        #[cfg_attr(feature = "clap", value(name = "none"))]
        Unlimited,
    }
}

/// Options of a congestion controller, other than its algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CongestionOptions {
    /// End the first slow start when the RTT rises (HyStart++, RFC 9406).
    pub hystart: bool,
    /// With `hystart`, also end it when acknowledgments arrive without a gap for half of the RTT (HyStart).
    pub ack_train: bool,
    /// Restart from the initial window after an RTO without transmission (RFC 5681 §4.1).
    pub idle_restart: bool,
    /// Reduce a window not fully used for an RTO to halfway between its size and its use (RFC 2861 §3). An underused
    /// window never grows, with or without this option.
    pub cwnd_validation: bool,
    /// Spread transmissions over the RTT instead of clocking them by ACKs.
    pub pacing: bool,
}

impl Default for CongestionOptions {
    /// All except pacing.
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

/// Sources of path MTU information.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathOptions {
    /// ICMP "too big" reduces the path MTU (RFC 1191, RFC 8201).
    pub icmp_too_big: bool,
    /// Repeated timeouts of large segments reduce the path MTU (RFC 2923 §2.1, RFC 4821 §7.7).
    pub black_hole_detection: bool,
}

impl Default for PathOptions {
    /// Both enabled.
    fn default() -> Self {
        Self { icmp_too_big: true, black_hole_detection: true }
    }
}

/// Threshold for a share of segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Segments per sample; the count restarts after each. 0 counts as 1.
    pub sample: u32,
    /// Threshold in segments per 1,000.
    pub per_mille: u32,
}

impl Share {
    /// True if `count` of `total` reaches the threshold; `None` while the sample is incomplete.
    pub(super) fn is_exceeded(self, count: u64, total: u64) -> Option<bool> {
        let complete = total >= u64::from(self.sample.max(1));
        complete.then(|| count.saturating_mul(1_000) >= total.saturating_mul(self.per_mille.into()))
    }
}

/// Threshold for low activity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Activity {
    /// Length of each sample; at least a millisecond.
    pub interval: Duration,
    /// Minimum bytes per sample, acknowledged and received together.
    pub bytes: u64,
}

/// Threshold for small receive requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SmallIo {
    /// Requests with less room than this, in bytes, are small. Zero-byte requests do not count.
    pub bytes: usize,
    /// Small requests in a row that reach the threshold.
    pub requests: u32,
}

/// Thresholds of optional upload requests; `None` (the default) disables one.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct UploadThresholds {
    /// LowActivity.
    pub low_activity: Option<Activity>,
    /// HighDropRate: retransmitted data segments of all sent, both computed as bytes of full size.
    pub high_drop_rate: Option<Share>,
    /// SmallIO.
    pub small_io: Option<SmallIo>,
    /// NoBufferPreposting: bytes indicated since the last receive request was posted.
    pub no_buffer_preposting: Option<u64>,
    /// HighFragmentation: fragments, of fragments and segments received.
    pub high_fragmentation: Option<Share>,
    /// HighOutOfOrderPackets: data segments that arrived out of order, of all data segments.
    pub high_out_of_order: Option<Share>,
}

impl UploadThresholds {
    /// All thresholds: fewer than 4 KiB moved in 2 s; of 1,000 data segments 50 retransmitted, 100 out of order, or 100
    /// fragments; 16 receive requests of less than 512 bytes in a row; 1 MiB indicated since the last request.
    pub const ALL: Self = Self {
        low_activity: Some(Activity { interval: Duration::from_secs(2), bytes: 4096 }),
        high_drop_rate: Some(Share { sample: 1_000, per_mille: 50 }),
        small_io: Some(SmallIo { bytes: 512, requests: 16 }),
        no_buffer_preposting: Some(1024 * 1024),
        high_fragmentation: Some(Share { sample: 1_000, per_mille: 100 }),
        high_out_of_order: Some(Share { sample: 1_000, per_mille: 100 }),
    };

    /// Adds the threshold of `reason` from [`UploadThresholds::ALL`]. Mandatory reasons have none.
    #[must_use]
    pub const fn with(self, reason: UploadReason) -> Self {
        match reason {
            UploadReason::LowActivity => Self { low_activity: Self::ALL.low_activity, ..self },
            UploadReason::HighDropRate => Self { high_drop_rate: Self::ALL.high_drop_rate, ..self },
            UploadReason::SmallIo => Self { small_io: Self::ALL.small_io, ..self },
            UploadReason::NoBufferPreposting => {
                Self { no_buffer_preposting: Self::ALL.no_buffer_preposting, ..self }
            }
            UploadReason::HighFragmentation => {
                Self { high_fragmentation: Self::ALL.high_fragmentation, ..self }
            }
            UploadReason::HighOutOfOrderPackets => {
                Self { high_out_of_order: Self::ALL.high_out_of_order, ..self }
            }
            UploadReason::ReceivedUrgentData
            | UploadReason::TimeoutExpiration
            | UploadReason::InvalidState
            | UploadReason::UploadRequested
            | UploadReason::HardwareFailure => self,
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
    /// Options of the congestion controller.
    pub congestion_options: CongestionOptions,
    /// Smallest RTO (RFC 6298 §2.4 recommends one second; hosts on LANs use 200 ms).
    pub rto_min: Duration,
    /// Largest RTO.
    pub rto_max: Duration,
    /// Retransmissions of one segment, or window probes in one round, before the connection times out
    /// (TcpMaximumRetransmissions).
    pub retransmissions_max: u8,
    /// Delay of a delayed ACK.
    pub delayed_ack: Duration,
    /// Segments, or the bytes of this many full-sized ones, after which an ACK is sent without delay (TcpAckFrequency).
    pub ack_frequency: u8,
    /// Duplicate ACKs that trigger fast retransmit.
    pub duplicate_ack_threshold: u8,
    /// Maximum number of out-of-order gaps kept. A queue that overflows at the end of slow start may drop every other
    /// segment. Fewer gaps than half of the window's segments then cost round trips.
    pub reassembly_gaps_max: usize,
    /// FIN_WAIT_2 limit.
    pub fin_wait_2: Duration,
    /// TIME_WAIT length.
    pub time_wait: Duration,
    /// Largest receive window of autotuning in bytes, also bounded by the window scale. A value at or below
    /// InitialRcvWnd, such as 0, disables growth.
    pub rcv_wnd_max: u32,
    /// In-flight bytes allowed on any path, within the congestion window and the peer's window. Enough for the wake-up
    /// latency of a peer, and fewer frames than a TAP queues before it drops.
    pub in_flight_min: u64,
    /// Largest rate of any path, in bytes per second. If the minimum RTT exceeds the time that `in_flight_min` takes at
    /// this rate, rate times RTT may be in flight. More would only fill a queue, and overflow that of a TAP.
    /// `u64::MAX`: unlimited.
    pub link_rate: u64,
    /// ACKs without delay for full-sized segments after an offload: a sender in slow start depends on them.
    pub quick_acks: u8,
    /// Drop segments without timestamps if the option was negotiated, as RFC 7323 §3.2 recommends. Otherwise they are
    /// accepted without PAWS, as in Linux: some middleboxes remove options.
    pub timestamps_required: bool,
    /// Sources of path MTU information.
    pub path: PathOptions,
    /// Enabled parts of loss recovery.
    pub recovery: RecoveryOptions,

    /// Time that a partly filled receive request in push mode waits for more data (TcpPushTicks).
    pub push_delay: Duration,
    /// Thresholds of optional upload requests.
    pub upload: UploadThresholds,
    /// Request an upload in TIME_WAIT, as an engine does by default. CH-EVT-3 assigns that state to the host, where a
    /// connection takes some hundred bytes. Otherwise the connection is kept until TIME_WAIT ends.
    pub time_wait_uploads: bool,
    /// Upload the connection in state CLOSED on a SYN at exactly RCV.NXT (CH §9.2). Otherwise it gets a challenge ACK
    /// as every SYN (RFC 5961 §4.2), so that an attacker who guesses one number cannot end a connection.
    pub syn_uploads: bool,
}

impl Default for Config {
    /// Values of RFC 9293 and Linux: RTO of 200 ms to 60 s, 15 retransmissions, an ACK for every second segment or
    /// after 40 ms, 3 duplicate ACKs, 2,048 out-of-order gaps, FIN_WAIT_2 of 120 s (the chimney's value), TIME_WAIT of
    /// 60 s, a receive window that grows to 4 MiB, 16 quick ACKs, a push timer of 500 ms (the chimney's value).
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
