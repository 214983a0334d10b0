//! An established connection, as a host hands it over.

use std::net::{IpAddr, Ipv4Addr};

use offload_engine::{
    nbl::NblChain,
    state::{
        ConnectionState, MacAddress, NeighborCached, NeighborConst, NeighborDelegated,
        NeighborState, PathCached, PathConst, PathState, TcpCached, TcpConst, TcpDelegated,
        TcpState,
    },
    tcp::{SeqNum, TcpPhase},
};

/// What two ends have agreed on; the same both ways.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) sack: bool,
    pub(crate) timestamps: bool,
    /// Payload bytes of a segment, options included.
    pub(crate) mss: u16,
    pub(crate) scale: u8,
    /// Bytes.
    pub(crate) window: u32,
}

/// Established, nothing sent yet.
pub(crate) fn state(shape: Shape, local: SeqNum, remote: SeqNum) -> ConnectionState {
    let Shape { sack, timestamps, mss, scale, window } = shape;
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let constant = TcpConst {
        timestamp_enabled: timestamps,
        sack_enabled: sack,
        ecn_enabled: false,
        window_scaling_enabled: true,
        remote_port: 1,
        local_port: 2,
        snd_wind_scale: scale,
        rcv_wind_scale: scale,
        remote_mss: mss,
        local_mss: mss,
        hash_value: 0,
    };
    let delegated = TcpDelegated {
        state: TcpPhase::Established,
        rcv_nxt: remote,
        rcv_wnd: window,
        snd_una: local,
        snd_nxt: local,
        snd_max: local,
        snd_wnd: window,
        max_snd_wnd: window,
        snd_wl1: remote,
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
        keep_alive: Default::default(),
        retransmit: Default::default(),
        ecn_echo: false,
    };
    ConnectionState {
        neighbor: NeighborState {
            constant: NeighborConst { dl_source_address: MacAddress::default(), vlan_id: 0 },
            cached: NeighborCached {
                dl_destination_address: MacAddress([2, 0, 0, 0, 0, 1]),
                host_reachability_delta: 0,
            },
            delegated: NeighborDelegated { nic_reachability_delta: 0 },
        },
        path: PathState {
            constant: PathConst { source_address: address, destination_address: address },
            cached: PathCached { path_mtu: 1500 },
        },
        tcp: TcpState {
            constant,
            cached: TcpCached { initial_rcv_wnd: window, ..TcpCached::default() },
            delegated,
        },
        send_data: NblChain::new(),
        buffered_data: Vec::new(),
        out_of_order: Vec::new(),
    }
}
