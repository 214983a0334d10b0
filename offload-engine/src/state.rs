//! Offload state: neighbor, path and TCP state in three classes, and the data that is handed over with a connection.
//!
//! | class | changed by | returned at terminate |
//! |---|---|---|
//! | const | neither | no |
//! | cached | the host, by Update | no |
//! | delegated | the target, while offloaded | yes |
//!
//! Code that copies state in or out destructures these structures exhaustively (`let TcpDelegated { a, b } = …`, no
//! `..`). So a member forgotten in a hand-over does not compile. Ticks are milliseconds (TicksPerSecond 1000, the
//! documented default).

use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use bytes::Bytes;

pub use crate::mac::MacAddress;
use crate::{nbl::NblChain, segment::SeqNum, time::Duration};

/// Ticks of the chimney's timers: milliseconds.
pub type Ticks = u32;

/// NEIGHBOR_OFFLOAD_STATE_CONST.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeighborConst {
    /// Source address of every frame sent to this neighbor. Zero selects the interface's address.
    pub dl_source_address: MacAddress,
    /// 12-bit VLAN id. 0 means untagged.
    pub vlan_id: u16,
}

/// NEIGHBOR_OFFLOAD_STATE_CACHED.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeighborCached {
    /// MAC address of the next hop.
    pub dl_destination_address: MacAddress,
    /// Ticks since the host last confirmed reachability.
    pub host_reachability_delta: Ticks,
}

/// NEIGHBOR_OFFLOAD_STATE_DELEGATED.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeighborDelegated {
    /// Ticks since the target last confirmed reachability.
    pub nic_reachability_delta: Ticks,
}

/// Neighbor object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeighborState {
    /// Const class, which never changes.
    pub constant: NeighborConst,
    /// Cached class, changed by the host.
    pub cached: NeighborCached,
    /// Delegated class, changed by the target.
    pub delegated: NeighborDelegated,
}

/// PATH_OFFLOAD_STATE_CONST.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathConst {
    /// Local address, of the same family as the destination address.
    pub source_address: IpAddr,
    /// Address of the peer.
    pub destination_address: IpAddr,
}

/// PATH_OFFLOAD_STATE_CACHED.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathCached {
    /// Path MTU in bytes, including the IP header.
    pub path_mtu: u32,
}

/// Path object. Its delegated class has no variables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathState {
    /// Const class, which never changes.
    pub constant: PathConst,
    /// Cached class, changed by the host.
    pub cached: PathCached,
}

/// TCP_OFFLOAD_STATE_CONST. The serde form of the three classes contains the members that are plain numbers in the
/// Windows structure, under their names there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "PascalCase"))]
pub struct TcpConst {
    /// TIMESTAMP_ENABLED: true if every segment carries a timestamp.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub timestamp_enabled: bool,
    /// SACK_ENABLED: true if SACK blocks are sent and used.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub sack_enabled: bool,
    /// WINDOW_SCALING_ENABLED: true if the two scales apply.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub window_scaling_enabled: bool,
    /// Port of the peer.
    pub remote_port: u16,
    /// Local port.
    pub local_port: u16,
    /// Shift count of the windows advertised by the peer, 0..=14.
    pub snd_wind_scale: u8,
    /// Shift count of the windows advertised to the peer, 0..=14.
    pub rcv_wind_scale: u8,
    /// MSS announced by the peer.
    pub remote_mss: u16,
    /// MSS announced to the peer. Not part of the Windows structure; an upload must repeat it.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub local_mss: u16,
    /// RSS hash of the connection's receive data.
    pub hash_value: u32,
    /// True if ECN was negotiated by the SYNs (RFC 3168 §6.1.1). Not part of the Windows structure.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub ecn_enabled: bool,
}

/// TCP_OFFLOAD_STATE_CACHED.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "PascalCase"))]
pub struct TcpCached {
    /// KEEP_ALIVE_ENABLED.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub keep_alive_enabled: bool,
    /// NAGLING_ENABLED.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub nagling_enabled: bool,
    /// Default receive window in bytes (SO_RCVBUF).
    pub initial_rcv_wnd: u32,
    /// Hint for the bytes per receive indication. 0 means as many as possible.
    pub rcv_indication_size: u32,
    /// Maximum number of keep-alive probes. 0 means 10.
    pub ka_probe_count: u8,
    /// Idle ticks before the first keep-alive probe. 0 means one second.
    pub ka_timeout: Ticks,
    /// Ticks between unanswered probes. 0 means one second.
    pub ka_interval: Ticks,
    /// Maximum ticks spent retransmitting one segment. `Some(0)` applies the count limit, `None` (-1) is unlimited.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub max_rt: Option<Ticks>,
    /// 20-bit IPv6 flow label.
    pub flow_label: u32,
    /// IPv4 TTL or IPv6 hop limit.
    pub ttl_or_hop_limit: u8,
    /// IPv4 TOS or IPv6 traffic class.
    pub tos_or_traffic_class: u8,
    /// 3-bit 802.1p priority.
    pub user_priority: u8,
}

/// Keep-alive probes of an idle connection (RFC 9293 §3.8.4). If the peer does not answer, the connection is closed
/// after `idle` and `probes` times `interval`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeepAlive {
    /// Time from the last segment of the peer to the first probe; at least 1 ms.
    pub idle: Duration,
    /// Time from one probe to the next, and from the last to the closing; at least 1 ms.
    pub interval: Duration,
    /// Number of unanswered probes, at least 1.
    pub probes: u8,
}

impl KeepAlive {
    /// Time from the last segment of the peer to the closing of the connection.
    pub fn limit(&self) -> Duration {
        self.idle + self.interval * u32::from(self.probes)
    }
}

/// Value that replaces 0 in the keep-alive variables (CH §9.2). With an idle time of 0 probes would be sent without
/// end.
const KEEP_ALIVE_TICKS: Ticks = 1_000;
const KEEP_ALIVE_PROBES: u8 = 10;

impl TcpCached {
    /// Returns the variables with this keep-alive, unless keep-alive is enabled already or `keep_alive` is `None`.
    #[must_use]
    pub fn or_kept_alive(self, keep_alive: Option<KeepAlive>) -> Self {
        let Some(KeepAlive { idle, interval, probes }) = keep_alive else { return self };
        if self.keep_alive_enabled {
            return self;
        }
        let ticks = |time: Duration| Ticks::try_from(time.as_millis().max(1)).unwrap_or(Ticks::MAX);
        Self {
            keep_alive_enabled: true,
            ka_timeout: ticks(idle),
            ka_interval: ticks(interval),
            ka_probe_count: probes.max(1),
            ..self
        }
    }

    /// Idle time before the first keep-alive probe.
    pub const fn keep_alive_idle(&self) -> Duration {
        Self::or_a_second(self.ka_timeout)
    }

    /// Time between unanswered keep-alive probes.
    pub const fn keep_alive_interval(&self) -> Duration {
        Self::or_a_second(self.ka_interval)
    }

    /// Number of unanswered keep-alive probes after which a connection is closed.
    pub const fn keep_alive_probes(&self) -> u8 {
        if self.ka_probe_count == 0 { KEEP_ALIVE_PROBES } else { self.ka_probe_count }
    }

    const fn or_a_second(ticks: Ticks) -> Duration {
        Duration::from_millis(if ticks == 0 { KEEP_ALIVE_TICKS } else { ticks } as u64)
    }
}

impl Default for TcpCached {
    fn default() -> Self {
        Self {
            keep_alive_enabled: false,
            nagling_enabled: false,
            initial_rcv_wnd: 256 * 1024,
            rcv_indication_size: 0,
            ka_probe_count: 10,
            ka_timeout: 7_200_000,
            ka_interval: 1_000,
            max_rt: Some(0),
            flow_label: 0,
            ttl_or_hop_limit: 64,
            tos_or_traffic_class: 0,
            user_priority: 0,
        }
    }
}

/// New values of a TCP object's cached class, and the actions they require.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpUpdate {
    /// All cached variables.
    pub cached: TcpCached,
    /// KEEP_ALIVE_RESTART: true if the keep-alive timer and its count restart from zero (CH-UPD-6).
    pub keep_alive_restart: bool,
    /// MAX_RT_RESTART: true if TotalRT restarts from zero.
    pub max_rt_restart: bool,
    /// UPDATE_RCV_WND: true if the window that InitialRcvWnd permits is advertised to the peer.
    pub update_rcv_wnd: bool,
}

impl TcpUpdate {
    /// Returns the update from `old` to `new`, with a flag for each group of changed members.
    pub fn of(old: &TcpCached, new: TcpCached) -> Self {
        let keep_alive =
            |c: &TcpCached| (c.keep_alive_enabled, c.ka_timeout, c.ka_interval, c.ka_probe_count);
        Self {
            cached: new,
            keep_alive_restart: keep_alive(old) != keep_alive(&new),
            max_rt_restart: old.max_rt != new.max_rt,
            update_rcv_wnd: old.initial_rcv_wnd != new.initial_rcv_wnd,
        }
    }
}

/// Chimney timer: a count, and ticks until it is due (`None` is -1, not running).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TimerState {
    /// Number of retransmissions, window probes or keep-alive probes so far.
    pub count: u8,
    /// Ticks until due. `None` if it is not running, `Some(0)` if it is due now.
    pub timeout_delta: Option<Ticks>,
}

/// States of RFC 9293 in which a connection can be offloaded (CH-ST-1), and Closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[repr(u32)]
pub enum TcpPhase {
    /// No connection.
    Closed = 0,
    /// Data can be sent in both directions.
    Established = 4,
    /// The local FIN is sent and not yet acknowledged.
    FinWait1 = 5,
    /// The local FIN is acknowledged.
    FinWait2 = 6,
    /// The peer's FIN was received.
    CloseWait = 7,
    /// Both FINs are sent, the local one is not acknowledged.
    Closing = 8,
    /// The peer's FIN was received first, and the local one is not acknowledged.
    LastAck = 9,
    /// Waits until old segments have expired.
    TimeWait = 10,
}

impl TcpPhase {
    /// True if the peer's FIN is before RCV.NXT.
    pub const fn has_peer_closed(self) -> bool {
        matches!(self, Self::CloseWait | Self::Closing | Self::LastAck | Self::TimeWait)
    }
}

/// TCP_OFFLOAD_STATE_DELEGATED.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "PascalCase"))]
pub struct TcpDelegated {
    /// RFC 9293 state, one of those in which a connection can be offloaded (CH-ST-1).
    pub state: TcpPhase,
    /// RCV.NXT.
    pub rcv_nxt: SeqNum,
    /// Receive window in bytes, unscaled. RCV.NXT + RCV.WND is the advertised right edge.
    pub rcv_wnd: u32,
    /// Oldest unacknowledged sequence number.
    pub snd_una: SeqNum,
    /// Next sequence number to send.
    pub snd_nxt: SeqNum,
    /// Sequence number after the highest one sent.
    pub snd_max: SeqNum,
    /// Window of the peer in bytes, unscaled.
    pub snd_wnd: u32,
    /// Largest window advertised by the peer so far.
    pub max_snd_wnd: u32,
    /// Sequence number of the segment used for the last window update.
    #[cfg_attr(feature = "serde", serde(rename = "SendWL1"))]
    pub snd_wl1: SeqNum,
    /// Congestion window in bytes. 0 if the target starts with its own.
    #[cfg_attr(feature = "serde", serde(rename = "CWnd"))]
    pub cwnd: u32,
    /// Slow start threshold in bytes. `u32::MAX` if there is none yet.
    pub ss_thresh: u32,
    /// Smoothed RTT, 8 times its value in ticks. 0 if there is no sample yet.
    #[cfg_attr(feature = "serde", serde(rename = "SRtt"))]
    pub srtt: u16,
    /// RTT variance, 4 times its value in ticks.
    pub rtt_var: u16,
    /// Timestamp to echo next.
    pub ts_recent: u32,
    /// Ticks since `ts_recent` was received.
    pub ts_recent_age: Ticks,
    /// Timestamp value of a segment sent now.
    pub ts_time: u32,
    /// Ticks already spent retransmitting the current segment.
    #[cfg_attr(feature = "serde", serde(rename = "TotalRT"))]
    pub total_rt: Ticks,
    /// Duplicate acknowledgments received for SND.UNA.
    pub dup_ack_count: u8,
    /// Current round of window probes.
    pub snd_wnd_probe_count: u8,
    /// Keep-alive timer.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub keep_alive: TimerState,
    /// Retransmit, persist or FIN_WAIT_2 timer.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub retransmit: TimerState,
    /// True if a CE mark was received, and no CWR since: ECE is due (RFC 3168 §6.1.3). Not part of the Windows
    /// structure.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub ecn_echo: bool,
}

/// TCP object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpState {
    /// Const class, which never changes.
    pub constant: TcpConst,
    /// Cached class, changed by the host.
    pub cached: TcpCached,
    /// Delegated class, changed by the target.
    pub delegated: TcpDelegated,
}

/// State of one connection for a hand-over: neighbor, path and TCP object, and data.
#[derive(Debug)]
pub struct ConnectionState {
    /// Next hop.
    pub neighbor: NeighborState,
    /// Path.
    pub path: PathState,
    /// TCP state.
    pub tcp: TcpState,
    /// Bytes from SND.UNA on: in flight up to SND.MAX, unsent beyond (CH-SNB-1 to -4).
    pub send_data: NblChain,
    /// Acknowledged bytes before RCV.NXT that no consumer has taken (CH-DEL-3).
    pub buffered_data: Vec<Bytes>,
    /// Bytes beyond RCV.NXT that were reported by SACK and must be kept. Not part of the Windows structure, where they
    /// are dropped. Dropping them would be reneging (RFC 2018 §8).
    pub out_of_order: Vec<(SeqNum, Bytes)>,
}

impl ConnectionState {
    /// Creates an established connection with nothing in flight. No options are negotiated, the MSS is 1,460 bytes, the
    /// path MTU 1,500. Both windows have `window` bytes, SND.NXT is `local_seq`, RCV.NXT is `remote_seq`, and the
    /// neighbor is unknown. For callers that drive a target without a host stack, such as tests, which then modify it.
    pub fn established(
        local: SocketAddr,
        remote: SocketAddr,
        (local_seq, remote_seq): (SeqNum, SeqNum),
        window: u32,
    ) -> Self {
        let neighbor = NeighborState {
            constant: NeighborConst { dl_source_address: MacAddress::default(), vlan_id: 0 },
            cached: NeighborCached {
                dl_destination_address: MacAddress::default(),
                host_reachability_delta: 0,
            },
            delegated: NeighborDelegated { nic_reachability_delta: 0 },
        };
        let path = PathState {
            constant: PathConst { source_address: local.ip(), destination_address: remote.ip() },
            cached: PathCached { path_mtu: 1500 },
        };
        let constant = TcpConst {
            timestamp_enabled: false,
            sack_enabled: false,
            window_scaling_enabled: false,
            remote_port: remote.port(),
            local_port: local.port(),
            snd_wind_scale: 0,
            rcv_wind_scale: 0,
            remote_mss: 1460,
            local_mss: 1460,
            hash_value: 0,
            ecn_enabled: false,
        };
        let cached = TcpCached { initial_rcv_wnd: window, ..TcpCached::default() };
        let delegated = TcpDelegated {
            state: TcpPhase::Established,
            rcv_nxt: remote_seq,
            rcv_wnd: window,
            snd_una: local_seq,
            snd_nxt: local_seq,
            snd_max: local_seq,
            snd_wnd: window,
            max_snd_wnd: window,
            snd_wl1: remote_seq,
            cwnd: 0,
            ss_thresh: u32::MAX,
            srtt: 0,
            rtt_var: 0,
            ts_recent: 0,
            ts_recent_age: 0,
            ts_time: 0,
            total_rt: 0,
            dup_ack_count: 0,
            snd_wnd_probe_count: 0,
            keep_alive: TimerState::default(),
            retransmit: TimerState::default(),
            ecn_echo: false,
        };
        Self {
            neighbor,
            path,
            tcp: TcpState { constant, cached, delegated },
            send_data: NblChain::new(),
            buffered_data: Vec::new(),
            out_of_order: Vec::new(),
        }
    }

    /// Context of the last list of `send_data` if it is the data of a graceful disconnect whose own list has completed
    /// with UPLOAD_IN_PROGRESS. Its completion is not reported. Clients must not use this context.
    pub const DISCONNECT_DATA: u64 = u64::MAX;
}

#[cfg(test)]
pub(crate) mod variables;
