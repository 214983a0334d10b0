//! Offload state as a document: objects, classes and members under the names that Windows' structures have,
//! with its conventions: ticks are milliseconds, a timer that does not run is -1, SRtt is carried eight times its
//! value and RttVar four times. Members that Windows does not have stand apart, under "extensions".

use offload_engine::{
    chimney::tree::TcpQueried,
    state::{
        NeighborCached, NeighborConst, NeighborDelegated, NeighborState, PathCached, PathConst,
        PathState, TcpCached, TcpConst, Ticks, TimerState,
    },
};
use serde_json::{Value, json};

/// The three objects of a connection; one that nobody can tell is null.
pub fn tree(
    neighbor: Option<&NeighborState>,
    path: Option<&PathState>,
    constant: &TcpConst,
    cached: &TcpCached,
    queried: &TcpQueried,
) -> Value {
    json!({
        "neighbor": neighbor.map(neighbor_object),
        "path": path.map(path_object),
        "tcp": {
            "const": tcp_const(constant),
            "cached": tcp_cached(cached),
            "delegated": tcp_delegated(queried),
        },
    })
}

fn neighbor_object(state: &NeighborState) -> Value {
    let NeighborState { constant, cached, delegated } = *state;
    let NeighborConst { dl_source_address, vlan_id } = constant;
    let NeighborCached { dl_destination_address, host_reachability_delta } = cached;
    let NeighborDelegated { nic_reachability_delta } = delegated;
    json!({
        "const": { "DlSourceAddress": dl_source_address.to_string(), "VlanId": vlan_id },
        "cached": {
            "DlDestinationAddress": dl_destination_address.to_string(),
            "HostReachabilityDelta": host_reachability_delta,
        },
        "delegated": { "NicReachabilityDelta": nic_reachability_delta },
    })
}

fn path_object(state: &PathState) -> Value {
    let PathState { constant, cached } = *state;
    let PathConst { source_address, destination_address } = constant;
    let PathCached { path_mtu } = cached;
    json!({
        "const": { "SourceAddress": source_address, "DestinationAddress": destination_address },
        "cached": { "PathMtu": path_mtu },
        "delegated": {},
    })
}

fn tcp_const(constant: &TcpConst) -> Value {
    let mut document = json!(constant);
    document["Flags"] = json!({
        "TIMESTAMP_ENABLED": constant.timestamp_enabled,
        "SACK_ENABLED": constant.sack_enabled,
        "WINDOW_SCALING_ENABLED": constant.window_scaling_enabled,
    });
    let TcpConst { local_mss, ecn_enabled, .. } = constant;
    document["extensions"] = json!({ "local_mss": local_mss, "ecn_enabled": ecn_enabled });
    document
}

fn tcp_cached(cached: &TcpCached) -> Value {
    let TcpCached { keep_alive_enabled, nagling_enabled, max_rt, .. } = *cached;
    let mut document = json!(cached);
    document["Flags"] =
        json!({ "KEEP_ALIVE_ENABLED": keep_alive_enabled, "NAGLING_ENABLED": nagling_enabled });
    document["MaxRT"] = ticks(max_rt).into();
    document
}

fn tcp_delegated(queried: &TcpQueried) -> Value {
    let TcpQueried { delegated, send_backlog_size, receive_backlog_size } = *queried;
    let timer = |count: &str, timer: TimerState| {
        let TimerState { count: number, timeout_delta } = timer;
        json!({ count: number, "TimeoutDelta": ticks(timeout_delta) })
    };
    let mut document = json!(delegated);
    document["KeepAlive"] = timer("ProbeCount", delegated.keep_alive);
    document["Retransmit"] = timer("Count", delegated.retransmit);
    document["SendBacklogSize"] = send_backlog_size.into();
    document["ReceiveBacklogSize"] = receive_backlog_size.into();
    document["extensions"] = json!({ "ecn_echo": delegated.ecn_echo });
    document
}

/// A time that may be none, by the convention of the structures: -1.
fn ticks(time: Option<Ticks>) -> i64 {
    time.map_or(-1, i64::from)
}

#[cfg(test)]
mod tests {
    use offload_engine::{
        state::{MacAddress, TcpDelegated},
        tcp::{SeqNum, TcpPhase},
    };

    use super::*;

    fn delegated() -> TcpDelegated {
        TcpDelegated {
            state: TcpPhase::CloseWait,
            rcv_nxt: SeqNum(u32::MAX),
            rcv_wnd: 2,
            snd_una: SeqNum(3),
            snd_nxt: SeqNum(4),
            snd_max: SeqNum(5),
            snd_wnd: 6,
            max_snd_wnd: 7,
            snd_wl1: SeqNum(8),
            cwnd: 9,
            ss_thresh: 10,
            srtt: 11,
            rtt_var: 12,
            ts_recent: 13,
            ts_recent_age: 14,
            ts_time: 15,
            total_rt: 16,
            dup_ack_count: 17,
            snd_wnd_probe_count: 18,
            keep_alive: TimerState { count: 19, timeout_delta: None },
            retransmit: TimerState { count: 20, timeout_delta: Some(0) },
            ecn_echo: true,
        }
    }

    fn queried() -> TcpQueried {
        TcpQueried { delegated: delegated(), send_backlog_size: 22, receive_backlog_size: 21 }
    }

    // CH §3.6, in the order of declaration; a timer that does not run is -1, one that is due 0.
    #[test]
    fn delegated_members_have_windows_names() {
        let document = tcp_delegated(&queried());
        let members = [
            "RcvWnd",
            "SndUna",
            "SndNxt",
            "SndMax",
            "SndWnd",
            "MaxSndWnd",
            "SendWL1",
            "CWnd",
            "SsThresh",
            "SRtt",
            "RttVar",
            "TsRecent",
            "TsRecentAge",
            "TsTime",
            "TotalRT",
            "DupAckCount",
            "SndWndProbeCount",
        ];
        for (member, value) in members.into_iter().zip(2..) {
            assert_eq!(document[member], value, "{member}");
        }
        assert_eq!(document["State"], "CloseWait");
        assert_eq!(document["RcvNxt"], u32::MAX);
        assert_eq!(document["KeepAlive"], json!({ "ProbeCount": 19, "TimeoutDelta": -1 }));
        assert_eq!(document["Retransmit"], json!({ "Count": 20, "TimeoutDelta": 0 }));
        assert_eq!(document["ReceiveBacklogSize"], 21);
        assert_eq!(document["SendBacklogSize"], 22);
    }

    // CH §3.1 to §3.5: three objects, each in its classes.
    #[test]
    fn each_object_has_its_classes() {
        let mac = |last| MacAddress([2, 0, 0, 0, 0, last]);
        let neighbor = NeighborState {
            constant: NeighborConst { dl_source_address: mac(1), vlan_id: 5 },
            cached: NeighborCached { dl_destination_address: mac(2), host_reachability_delta: 3 },
            delegated: NeighborDelegated { nic_reachability_delta: 4 },
        };
        let path = PathState {
            constant: PathConst {
                source_address: "10.0.0.2".parse().unwrap(),
                destination_address: "10.0.0.1".parse().unwrap(),
            },
            cached: PathCached { path_mtu: 1500 },
        };
        let constant = TcpConst {
            timestamp_enabled: true,
            sack_enabled: false,
            window_scaling_enabled: true,
            remote_port: 80,
            local_port: 5000,
            snd_wind_scale: 7,
            rcv_wind_scale: 8,
            remote_mss: 1460,
            local_mss: 1440,
            hash_value: 0,
            ecn_enabled: false,
        };
        let cached = TcpCached { max_rt: None, ..TcpCached::default() };
        let document = tree(Some(&neighbor), Some(&path), &constant, &cached, &queried());
        for (object, class, member, value) in [
            ("neighbor", "const", "DlSourceAddress", json!("02:00:00:00:00:01")),
            ("neighbor", "const", "VlanId", json!(5)),
            ("neighbor", "cached", "DlDestinationAddress", json!("02:00:00:00:00:02")),
            ("neighbor", "cached", "HostReachabilityDelta", json!(3)),
            ("neighbor", "delegated", "NicReachabilityDelta", json!(4)),
            ("path", "const", "SourceAddress", json!("10.0.0.2")),
            ("path", "const", "DestinationAddress", json!("10.0.0.1")),
            ("path", "cached", "PathMtu", json!(1500)),
            ("tcp", "const", "RemotePort", json!(80)),
            ("tcp", "const", "LocalPort", json!(5000)),
            ("tcp", "const", "SndWindScale", json!(7)),
            ("tcp", "const", "RcvWindScale", json!(8)),
            ("tcp", "const", "RemoteMss", json!(1460)),
            ("tcp", "cached", "MaxRT", json!(-1)),
            ("tcp", "cached", "TtlOrHopLimit", json!(64)),
            ("tcp", "delegated", "SendBacklogSize", json!(22)),
        ] {
            assert_eq!(document[object][class][member], value, "{object}.{class}.{member}");
        }
        assert_eq!(document["path"]["delegated"], json!({}));
        assert_eq!(document["tcp"]["const"]["Flags"]["SACK_ENABLED"], false);
        assert!(tree(None, None, &constant, &cached, &queried())["path"].is_null());
    }
}
