//! Offload state: neighbor, path and TCP state in three classes, and what moves with a connection.
//!
//! | class | who may change it | back at terminate |
//! |---|---|---|
//! | const | neither | no |
//! | cached | the host, by Update | no |
//! | delegated | the target, while offloaded | yes |
//!
//! Whoever copies state in or out takes these structures apart exhaustively
//! (`let TcpDelegated { a, b } = …`, no `..`), so that a member forgotten in a hand-over does not
//! compile. Ticks are milliseconds (TicksPerSecond 1000, the documented default).

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
    /// Source address of every frame sent for this neighbor; zero means the interface's.
    pub dl_source_address: MacAddress,
    /// 12-bit VLAN id; 0 means untagged.
    pub vlan_id: u16,
}

/// NEIGHBOR_OFFLOAD_STATE_CACHED.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeighborCached {
    /// The next hop's address.
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

/// A neighbor object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeighborState {
    /// Never changes.
    pub constant: NeighborConst,
    /// The host's to change.
    pub cached: NeighborCached,
    /// The target's to change.
    pub delegated: NeighborDelegated,
}

/// PATH_OFFLOAD_STATE_CONST.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathConst {
    /// Our address; same family as the destination's.
    pub source_address: IpAddr,
    /// The peer's address.
    pub destination_address: IpAddr,
}

/// PATH_OFFLOAD_STATE_CACHED.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathCached {
    /// Path MTU in bytes, IP header included.
    pub path_mtu: u32,
}

/// A path object. Its delegated class has no variables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathState {
    /// Never changes.
    pub constant: PathConst,
    /// The host's to change.
    pub cached: PathCached,
}

/// TCP_OFFLOAD_STATE_CONST. As a document of serde this class, like the other two, has the members that Windows'
/// structure has as plain numbers, under their names there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "PascalCase"))]
pub struct TcpConst {
    /// TIMESTAMP_ENABLED: every segment carries a timestamp.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub timestamp_enabled: bool,
    /// SACK_ENABLED: blocks are sent and used.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub sack_enabled: bool,
    /// WINDOW_SCALING_ENABLED: the two scales apply.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub window_scaling_enabled: bool,
    /// The peer's port.
    pub remote_port: u16,
    /// Our port.
    pub local_port: u16,
    /// Shift count of the windows the peer advertises, 0..=14.
    pub snd_wind_scale: u8,
    /// Shift count of the windows we advertise, 0..=14.
    pub rcv_wind_scale: u8,
    /// The MSS that the peer announced.
    pub remote_mss: u16,
    /// The MSS that we announced. Not in Windows' structure; an upload has to repeat it.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub local_mss: u16,
    /// RSS hash of the connection's receive data.
    pub hash_value: u32,
    /// ECN was agreed on by the SYNs (RFC 3168 §6.1.1). Not in Windows' structure.
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
    /// Hint for bytes per receive indication; 0: as much as possible.
    pub rcv_indication_size: u32,
    /// Most keep-alive probes; 0: 10.
    pub ka_probe_count: u8,
    /// Idle ticks before the first keep-alive probe; 0: one second.
    pub ka_timeout: Ticks,
    /// Ticks between unanswered probes; 0: one second.
    pub ka_interval: Ticks,
    /// Most ticks to spend retransmitting one segment: `Some(0)` uses the count limit, `None` (-1) is no limit.
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

/// Probes of an idle connection (RFC 9293 §3.8.4). A connection whose peer does not answer ends after `idle` and
/// `probes` times `interval`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeepAlive {
    /// From the last segment of the peer to the first probe; at least 1 ms.
    pub idle: Duration,
    /// From one probe to the next, and from the last to the end; at least 1 ms.
    pub interval: Duration,
    /// Probes without an answer, at least 1.
    pub probes: u8,
}

impl KeepAlive {
    /// From the last segment of the peer to the end of the connection.
    pub fn limit(&self) -> Duration {
        self.idle + self.interval * u32::from(self.probes)
    }
}

/// What stands for 0 in the keep-alive variables (CH §9.2). With an idle time of nothing probes would never end.
const KEEP_ALIVE_TICKS: Ticks = 1_000;
const KEEP_ALIVE_PROBES: u8 = 10;

impl TcpCached {
    /// The same with this keep-alive, unless it has one, or none is given.
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

    /// How long a connection is idle before the first keep-alive probe.
    pub const fn keep_alive_idle(&self) -> Duration {
        Self::or_a_second(self.ka_timeout)
    }

    /// Time between unanswered keep-alive probes.
    pub const fn keep_alive_interval(&self) -> Duration {
        Self::or_a_second(self.ka_interval)
    }

    /// Unanswered keep-alive probes after which a connection ends.
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

/// New values of a TCP object's cached class, and what they set off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpUpdate {
    /// All cached variables.
    pub cached: TcpCached,
    /// KEEP_ALIVE_RESTART: the keep-alive timer starts from zero, and so does its count (CH-UPD-6).
    pub keep_alive_restart: bool,
    /// MAX_RT_RESTART: TotalRT starts from zero.
    pub max_rt_restart: bool,
    /// UPDATE_RCV_WND: the window that InitialRcvWnd makes possible is advertised to the peer.
    pub update_rcv_wnd: bool,
}

impl TcpUpdate {
    /// The flags that a host sets when `old` becomes `new`: each for the members that have changed.
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

/// A timer as the chimney carries it: a count, and ticks until it is due (`None` is -1, not running).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TimerState {
    /// Retransmissions, window probes or keep-alive probes so far.
    pub count: u8,
    /// Ticks until due; `None`: not running; `Some(0)`: due now.
    pub timeout_delta: Option<Ticks>,
}

/// The states of RFC 9293 in which a connection can be with the target (CH-ST-1), and Closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
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

impl TcpPhase {
    /// Returns whether the peer's FIN lies left of RCV.NXT.
    pub const fn has_peer_closed(self) -> bool {
        matches!(self, Self::CloseWait | Self::Closing | Self::LastAck | Self::TimeWait)
    }
}

/// TCP_OFFLOAD_STATE_DELEGATED.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "PascalCase"))]
pub struct TcpDelegated {
    /// RFC 9293 state; one of those in which a connection can be offloaded (CH-ST-1).
    pub state: TcpPhase,
    /// RCV.NXT.
    pub rcv_nxt: SeqNum,
    /// Receive window in bytes, unscaled. RCV.NXT + RCV.WND is the right edge that was advertised.
    pub rcv_wnd: u32,
    /// Oldest unacknowledged.
    pub snd_una: SeqNum,
    /// Next to send.
    pub snd_nxt: SeqNum,
    /// One beyond the highest ever sent.
    pub snd_max: SeqNum,
    /// The peer's window in bytes, unscaled.
    pub snd_wnd: u32,
    /// Largest window the peer ever advertised.
    pub max_snd_wnd: u32,
    /// Sequence of the segment used for the last window update.
    #[cfg_attr(feature = "serde", serde(rename = "SendWL1"))]
    pub snd_wl1: SeqNum,
    /// Congestion window in bytes; 0: the target starts its own.
    #[cfg_attr(feature = "serde", serde(rename = "CWnd"))]
    pub cwnd: u32,
    /// Slow start threshold in bytes; `u32::MAX`: none yet.
    pub ss_thresh: u32,
    /// Smoothed RTT, 8 times its value in ticks; 0: no sample yet.
    #[cfg_attr(feature = "serde", serde(rename = "SRtt"))]
    pub srtt: u16,
    /// RTT variance, 4 times its value in ticks.
    pub rtt_var: u16,
    /// Timestamp to echo next.
    pub ts_recent: u32,
    /// Ticks since `ts_recent` was taken.
    pub ts_recent_age: Ticks,
    /// The timestamp value a segment sent now would carry.
    pub ts_time: u32,
    /// Ticks already spent retransmitting the current segment.
    #[cfg_attr(feature = "serde", serde(rename = "TotalRT"))]
    pub total_rt: Ticks,
    /// Duplicate acknowledgements seen for SND.UNA.
    pub dup_ack_count: u8,
    /// Current round of window probes.
    pub snd_wnd_probe_count: u8,
    /// Keep-alive.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub keep_alive: TimerState,
    /// Retransmit, persist or FIN_WAIT_2 timer.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub retransmit: TimerState,
    /// A CE mark has come, and no CWR since: ECE is due (RFC 3168 §6.1.3). Not in Windows' structure.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub ecn_echo: bool,
}

/// A TCP object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpState {
    /// Never changes.
    pub constant: TcpConst,
    /// The host's to change.
    pub cached: TcpCached,
    /// The target's to change.
    pub delegated: TcpDelegated,
}

/// Everything that moves when one connection is handed over: neighbor, path and TCP object, and data.
#[derive(Debug)]
pub struct ConnectionState {
    /// The next hop.
    pub neighbor: NeighborState,
    /// The route.
    pub path: PathState,
    /// The connection.
    pub tcp: TcpState,
    /// Bytes from SND.UNA on: in flight up to SND.MAX, unsent beyond (CH-SNB-1 to -4).
    pub send_data: NblChain,
    /// Acknowledged bytes left of RCV.NXT that no consumer has taken yet (CH-DEL-3).
    pub buffered_data: Vec<Bytes>,
    /// Bytes right of RCV.NXT that a SACK has promised to keep. Not in Windows' structure, where they
    /// are dropped; dropping them would renege (RFC 2018 §8).
    pub out_of_order: Vec<(SeqNum, Bytes)>,
}

impl ConnectionState {
    /// An established connection with nothing in flight: no options agreed on, MSS 1,460 bytes, path MTU 1,500, both
    /// windows of `window` bytes, SND.NXT `local_seq`, RCV.NXT `remote_seq`, and an unknown neighbor. For who drives a
    /// target without a host stack, as tests do; what is to differ is set afterwards.
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

    /// Context of the last list of `send_data` if it is the data of a graceful disconnect whose own list has
    /// completed UPLOAD_IN_PROGRESS: its completion is not reported. Reserved: clients do not use it.
    pub const DISCONNECT_DATA: u64 = u64::MAX;
}

#[cfg(test)]
pub(crate) mod variables;
