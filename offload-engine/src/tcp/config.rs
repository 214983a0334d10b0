//! Limits and policies of a connection.

use super::{api::UploadReason, recovery::RecoveryOptions};
use crate::time::Duration;

crate::option_enum! {
    /// Policy of PSH (CH-SND-5).
    pub enum PushPolicy {
        /// The last one cut from each net buffer list; segments end at list boundaries
        #[default]
        #[cfg_attr(feature = "serde", serde(rename = "list"))]
        #[cfg_attr(feature = "clap", value(name = "list"))]
        EachList,
        /// The last one before the send queue runs empty; segments span list boundaries
        #[cfg_attr(feature = "serde", serde(rename = "empty"))]
        #[cfg_attr(feature = "clap", value(name = "empty"))]
        QueueEmpty,
    }
}

crate::option_enum! {
    /// Which congestion controller.
    pub enum CongestionAlgorithm {
        /// CUBIC, RFC 9438
        #[default]
        Cubic,
        /// RFC 5681 and 6582
        #[cfg_attr(feature = "clap", value(name = "newreno"))]
        NewReno,
        /// No window but the peer's: for links without loss
        #[cfg_attr(feature = "serde", serde(rename = "none"))]
        #[cfg_attr(feature = "clap", value(name = "none"))]
        Unlimited,
    }
}

/// What a congestion controller does besides its algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CongestionOptions {
    /// End the first slow start when the RTT rises (HyStart++, RFC 9406).
    pub hystart: bool,
    /// With `hystart`, end it as well when acknowledgements come without a gap for half of the RTT (HyStart).
    pub ack_train: bool,
    /// Restart from the initial window when nothing was sent for an RTO (RFC 5681 §4.1).
    pub idle_restart: bool,
    /// Reduce a window that was not used for an RTO to halfway what was used of it (RFC 2861 §3). That an
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

/// How a connection learns its path MTU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathOptions {
    /// ICMP "too big" narrows the path MTU (RFC 1191, RFC 8201).
    pub icmp_too_big: bool,
    /// Repeated time-outs of large segments do (RFC 2923 §2.1, RFC 4821 §7.7).
    pub black_hole_detection: bool,
}

impl Default for PathOptions {
    /// Both.
    fn default() -> Self {
        Self { icmp_too_big: true, black_hole_detection: true }
    }
}

/// A share of segments that is too large.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Segments in a sample; after each the count starts anew. 0 counts as 1.
    pub sample: u32,
    /// Of 1,000 segments in a sample, so many are too many.
    pub per_mille: u32,
}

impl Share {
    /// Whether `count` of `total` is too many; `None` while the sample is not complete.
    pub(super) fn judge(self, count: u64, total: u64) -> Option<bool> {
        let complete = total >= u64::from(self.sample.max(1));
        complete.then(|| count.saturating_mul(1_000) >= total.saturating_mul(self.per_mille.into()))
    }
}

/// Traffic that is too little.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Activity {
    /// How long each sample is; at least a millisecond.
    pub interval: Duration,
    /// Fewer bytes than these in a sample, acknowledged and received together, are too few.
    pub bytes: u64,
}

/// Receive requests that are too small.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SmallIo {
    /// Less room than this, in bytes, is too small. Zero-byte requests do not count.
    pub bytes: usize,
    /// How many in a row.
    pub requests: u32,
}

/// Thresholds of optional upload requests; `None`, the default of each: never.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct UploadThresholds {
    /// LowActivity.
    pub low_activity: Option<Activity>,
    /// HighDropRate: data segments sent again, of all sent, both counted as bytes of full size.
    pub high_drop_rate: Option<Share>,
    /// SmallIO.
    pub small_io: Option<SmallIo>,
    /// NoBufferPreposting: bytes indicated since a receive request was posted last.
    pub no_buffer_preposting: Option<u64>,
    /// HighFragmentation: fragments, of fragments and segments received.
    pub high_fragmentation: Option<Share>,
    /// HighOutOfOrderPackets: data segments that arrived beyond a hole, of all data segments.
    pub high_out_of_order: Option<Share>,
}

impl UploadThresholds {
    /// All of them: fewer than 4 KiB moved in 2 s; of 1,000 data segments 50 sent again, 100 beyond a hole, or 100
    /// fragments; 16 receive requests of less than 512 bytes in a row; 1 MiB indicated since the last request.
    pub const ALL: Self = Self {
        low_activity: Some(Activity { interval: Duration::from_secs(2), bytes: 4096 }),
        high_drop_rate: Some(Share { sample: 1_000, per_mille: 50 }),
        small_io: Some(SmallIo { bytes: 512, requests: 16 }),
        no_buffer_preposting: Some(1024 * 1024),
        high_fragmentation: Some(Share { sample: 1_000, per_mille: 100 }),
        high_out_of_order: Some(Share { sample: 1_000, per_mille: 100 }),
    };

    /// These thresholds and that of `reason`, as [`UploadThresholds::ALL`] has it. Mandatory reasons have none.
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
    /// What it does besides its algorithm.
    pub congestion_options: CongestionOptions,
    /// Smallest RTO (RFC 6298 §2.4 recommends one second; hosts on LANs use 200 ms).
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
    /// Bytes that the receive window may grow to, as the consumer takes them faster; the window's
    /// scale bounds it too. At or below InitialRcvWnd, for example 0: the window does not grow.
    pub rcv_wnd_max: u32,
    /// Bytes that may be in flight on any path, within the congestion window and the peer's window: enough for a
    /// peer that has to be woken, and fewer frames than a TAP queues before it drops.
    pub in_flight_min: u64,
    /// Largest rate of any path, in bytes per second. On a path whose smallest round trip is longer than
    /// `in_flight_min` takes at this rate, rate times round trip may be in flight; more would only fill a queue, and
    /// overflow that of a TAP. `u64::MAX`: no limit.
    pub link_rate: u64,
    /// ACKs without delay for full-sized segments after a take-over: a sender in slow start waits for
    /// them.
    pub quick_acks: u8,
    /// A segment without timestamps is dropped although they were agreed, as RFC 7323 §3.2 recommends.
    /// Off, it is taken, without the protection of PAWS, as Linux does: some middleboxes remove options.
    pub timestamps_required: bool,
    /// How the path's MTU is learned.
    pub path: PathOptions,
    /// Parts of loss recovery in use.
    pub recovery: RecoveryOptions,

    /// How long a receive request in push mode that holds some bytes waits for more (TcpPushTicks).
    pub push_delay: Duration,
    /// Thresholds of optional upload requests.
    pub upload: UploadThresholds,
    /// Ask for an upload in TIME_WAIT (CH-EVT-3: that state is the host's, where a connection takes some hundred
    /// bytes), as an engine does by default. Off, the connection stays as it is until TIME_WAIT ends.
    pub time_wait_uploads: bool,
    /// A SYN at exactly RCV.NXT has the connection uploaded in state CLOSED (CH §9.2). Off, it gets a challenge ACK as
    /// every SYN does (RFC 5961 §4.2), so that an attacker who guesses one number cannot end a connection.
    pub syn_uploads: bool,
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
