//! Every variable of the state survives initiate, query, update and terminate.
//!
//! [`variables`] takes the state apart exhaustively, so its list is complete; [`mutate`] has to know every name in it.

use super::{state_operations::*, terminate::*, trees::*, *};
use crate::{
    chimney::{
        provider::OffloadProvider,
        tree::{Block, InitiateNode, ObjectNode, TcpObject, UpdateNode},
    },
    state::{
        TcpUpdate,
        variables::{Class, Variables, list, tcp_variables},
    },
};

/// The state of one connection without its data.
#[derive(Clone, Copy, PartialEq, Debug)]
struct All {
    neighbor: NeighborState,
    path: PathState,
    tcp: TcpState,
}

/// Every variable, by name.
fn variables(state: &All) -> Variables {
    let All { neighbor, path, tcp } = *state;
    let mut all = Vec::new();
    let NeighborState { constant, cached, delegated } = neighbor;
    list!(all, Class::Const, constant, NeighborConst { dl_source_address, vlan_id });
    list!(
        all,
        Class::Cached,
        cached,
        NeighborCached { dl_destination_address, host_reachability_delta }
    );
    list!(all, Class::Delegated, delegated, NeighborDelegated { nic_reachability_delta });
    let PathState { constant, cached } = path;
    list!(all, Class::Const, constant, PathConst { source_address, destination_address });
    list!(all, Class::Cached, cached, PathCached { path_mtu });
    all.extend(tcp_variables(&tcp));
    all
}

/// A connection in the middle of things: data in flight, some of it to be sent again, all timers running.
fn busy() -> All {
    let (neighbor, path, object) = parts(80);
    let mut tcp = object.tcp;
    tcp.constant = TcpConst {
        timestamp_enabled: true,
        sack_enabled: true,
        window_scaling_enabled: true,
        snd_wind_scale: 3,
        rcv_wind_scale: 4,
        hash_value: 0xabcd,
        ecn_enabled: true,
        ..tcp.constant
    };
    tcp.cached = TcpCached { keep_alive_enabled: true, ..tcp.cached };
    tcp.delegated = TcpDelegated {
        snd_nxt: SeqNum(3000),
        snd_max: SeqNum(4000),
        max_snd_wnd: 61_000,
        cwnd: 20_000,
        ss_thresh: 30_000,
        srtt: 320,
        rtt_var: 40,
        ts_recent: 77,
        ts_recent_age: 500,
        ts_time: 9_000,
        total_rt: 300,
        dup_ack_count: 1,
        keep_alive: TimerState { count: 2, timeout_delta: Some(5_000) },
        retransmit: TimerState { count: 1, timeout_delta: Some(700) },
        ..tcp.delegated
    };
    All { neighbor, path, tcp }
}

/// Changes the variable `name`, and what has to change with it.
fn mutate(name: &str, all: &mut All) {
    let All { neighbor, path, tcp } = all;
    let TcpState { constant, cached, delegated } = tcp;
    match name {
        "dl_source_address" => neighbor.constant.dl_source_address = MacAddress([2, 7, 7, 7, 7, 7]),
        "vlan_id" => neighbor.constant.vlan_id = 77,
        "dl_destination_address" => neighbor.cached.dl_destination_address = MacAddress([6; 6]),
        "host_reachability_delta" => neighbor.cached.host_reachability_delta = 123_456,
        "nic_reachability_delta" => neighbor.delegated.nic_reachability_delta = 65_432,
        "source_address" => path.constant.source_address = "10.9.0.1".parse().unwrap(),
        "destination_address" => path.constant.destination_address = "10.9.0.2".parse().unwrap(),
        "path_mtu" => path.cached.path_mtu = 1_400,
        "timestamp_enabled" => constant.timestamp_enabled = false,
        "sack_enabled" => constant.sack_enabled = false,
        "window_scaling_enabled" => {
            constant.window_scaling_enabled = false;
            (constant.snd_wind_scale, constant.rcv_wind_scale) = (0, 0);
        }
        "remote_port" => constant.remote_port = 7,
        "local_port" => constant.local_port = 8,
        "snd_wind_scale" => constant.snd_wind_scale = 9,
        "rcv_wind_scale" => constant.rcv_wind_scale = 2,
        "remote_mss" => constant.remote_mss = 1_000,
        "local_mss" => constant.local_mss = 1_100,
        "hash_value" => constant.hash_value = 5,
        "ecn_enabled" => constant.ecn_enabled = false,
        "keep_alive_enabled" => cached.keep_alive_enabled = false,
        "nagling_enabled" => cached.nagling_enabled = true,
        "initial_rcv_wnd" => cached.initial_rcv_wnd = 70_000,
        "rcv_indication_size" => cached.rcv_indication_size = 99,
        "ka_probe_count" => cached.ka_probe_count = 4,
        "ka_timeout" => cached.ka_timeout = 4_444,
        "ka_interval" => cached.ka_interval = 3_333,
        "max_rt" => cached.max_rt = None,
        "flow_label" => cached.flow_label = 0xf_1234,
        "ttl_or_hop_limit" => cached.ttl_or_hop_limit = 3,
        "tos_or_traffic_class" => cached.tos_or_traffic_class = 0xb8,
        "user_priority" => cached.user_priority = 6,
        _ => mutate_delegated(name, delegated),
    }
}

fn mutate_delegated(name: &str, delegated: &mut TcpDelegated) {
    match name {
        "state" => delegated.state = TcpPhase::CloseWait,
        "rcv_nxt" => delegated.rcv_nxt = SeqNum(u32::MAX - 3),
        "rcv_wnd" => delegated.rcv_wnd = 32_000,
        "snd_una" => delegated.snd_una = SeqNum(2_000),
        "snd_nxt" => delegated.snd_nxt = SeqNum(2_500),
        "snd_max" => delegated.snd_max = SeqNum(3_500),
        "snd_wnd" => delegated.snd_wnd = 10_000,
        "max_snd_wnd" => delegated.max_snd_wnd = 90_000,
        "snd_wl1" => delegated.snd_wl1 = SeqNum(4_900),
        "cwnd" => delegated.cwnd = 44_000,
        "ss_thresh" => delegated.ss_thresh = u32::MAX,
        "srtt" => delegated.srtt = 800,
        "rtt_var" => delegated.rtt_var = 80,
        "ts_recent" => delegated.ts_recent = 0xffff_fff0,
        "ts_recent_age" => delegated.ts_recent_age = 60_000,
        "ts_time" => delegated.ts_time = 0xffff_ff00,
        "total_rt" => delegated.total_rt = 1_700,
        "dup_ack_count" => delegated.dup_ack_count = 2,
        "snd_wnd_probe_count" => {
            delegated.snd_wnd = 0;
            delegated.snd_wnd_probe_count = 3;
        }
        "keep_alive_count" => delegated.keep_alive.count = 5,
        "keep_alive_timeout" => delegated.keep_alive.timeout_delta = Some(0),
        "retransmit_count" => delegated.retransmit.count = 3,
        "retransmit_timeout" => delegated.retransmit.timeout_delta = Some(0),
        "ecn_echo" => delegated.ecn_echo = true,
        other => panic!("{other} is not tried"),
    }
}

fn bench() -> Bench {
    let mut bench = Bench::new(10);
    bench.now = Instant::from_millis(100_000);
    bench
}

fn initiate(all: &All) -> crate::chimney::tree::InitiateTree {
    let mut object = parts(80).2;
    object.tcp = all.tcp;
    // From SND.UNA on; SND.MAX is within.
    object.send_data.push_back(NetBufferList::from_mdl(3, Bytes::from(vec![7; 6_000])));
    let tcp = Block::new(OffloadHandle(80), InitiateNode::new(Box::new(object)));
    let path = Block::new(OffloadHandle(2), InitiateNode::new(all.path)).with(vec![tcp]);
    vec![Block::new(OffloadHandle(1), InitiateNode::new(all.neighbor)).with(vec![path])]
}

/// Offloads, and before anything is sent asks for everything.
fn offload(bench: &mut Bench, all: &All) -> (Names, All) {
    // The first poll, without traffic, tells the names; what it sends is no matter. A second engine asks at once.
    let tree = bench.initiate_tree(initiate(all));
    let path = &tree[0].dependents[0];
    let names = (
        context(&tree[0]).expect("the neighbor"),
        context(path).expect("the path"),
        context(&path.dependents[0]).expect("the connection"),
    );
    let mut twin = self::bench();
    twin.port.initiate(initiate(all));
    twin.port.query(query_tree(names.0, names.1, names.2));
    twin.poll();
    let told = twin.told();
    let Some(ToHost::QueryComplete(tree)) = told.last() else { panic!("{told:?}") };
    assert_eq!(statuses(tree), [NdisStatus::SUCCESS; 3]);
    let (n, p) = (answers(&tree[0].payload), answers(&tree[0].dependents[0].payload));
    let t = answers(&tree[0].dependents[0].dependents[0].payload);
    let queried = All {
        neighbor: NeighborState { constant: n.0, cached: n.1, delegated: n.2 },
        path: PathState { constant: p.0, cached: p.1 },
        tcp: TcpState { constant: t.0, cached: t.1, delegated: t.2.delegated },
    };
    (names, queried)
}

/// Offloads and terminates before anything is sent: what comes back.
fn there_and_back(all: &All, names: Names) -> (Option<NeighborDelegated>, Box<TcpObject>) {
    let mut bench = bench();
    bench.port.initiate(initiate(all));
    bench.port.terminate(terminate_tree(Some(names.0), Some(names.1), &[names.2]));
    bench.poll();
    let mut told = bench.told();
    let Some(ToHost::TerminateComplete(tree)) = told.pop() else { panic!("{told:?}") };
    let ObjectNode::Object { payload, .. } = tree[0].payload else { panic!("the neighbor") };
    (payload, object(tree))
}

// CH s3, CH s16 #6: each const, cached and delegated variable comes through unchanged, and changes nothing else.
#[test]
fn each_variable_survives_the_hand_over() {
    let base = busy();
    let before = variables(&base);
    for (index, (name, _, value)) in before.iter().enumerate() {
        let mut all = base;
        mutate(name, &mut all);
        let expected = variables(&all);
        assert_ne!(expected[index].2, *value, "{name} was not changed");
        let (names, queried) = offload(&mut bench(), &all);
        assert_eq!(variables(&queried), expected, "queried with another {name}");
        let (neighbor, object) = there_and_back(&all, names);
        let came_back = All {
            neighbor: NeighborState { delegated: neighbor.unwrap(), ..all.neighbor },
            tcp: object.tcp,
            ..all
        };
        assert_eq!(variables(&came_back), expected, "came back with another {name}");
        let data: usize = object.send_data.iter().map(NetBufferList::data_length).sum();
        assert_eq!(data, 6_000, "{name}");
    }
}

// CH-UPD-1: each cached variable takes an update, and an update touches no other class.
#[test]
fn each_cached_variable_takes_an_update() {
    let base = busy();
    let before = variables(&base);
    for (index, (name, class, _)) in before.iter().enumerate() {
        if *class != Class::Cached {
            continue;
        }
        let mut all = base;
        mutate(name, &mut all);
        let mut bench = bench();
        let ((n, p, t), _) = offload(&mut bench, &base);
        let update = TcpUpdate::of(&base.tcp.cached, all.tcp.cached);
        let handle = OffloadHandle(0);
        let tcp = UpdateNode::Cached { context: t, cached: Box::new(update) };
        let path = UpdateNode::Cached { context: p, cached: all.path.cached };
        let path = Block::new(handle, path).with(vec![Block::new(handle, tcp)]);
        let neighbor = UpdateNode::Cached { context: n, cached: all.neighbor.cached };
        let tree = vec![Block::new(handle, neighbor).with(vec![path])];
        assert_eq!(bench.update(tree), [NdisStatus::SUCCESS; 3]);
        let (neighbor, path, constant, cached, queried) = bench.query_all(n, p, t);
        let tcp = TcpState { constant, cached, delegated: queried.delegated };
        let now = variables(&All { neighbor, path, tcp });
        let expected = variables(&all);
        assert_eq!(now[index], expected[index]);
        for (now, expected) in now.iter().zip(&expected) {
            if now.1 != Class::Delegated {
                assert_eq!(now, expected, "an update of {name}");
            }
        }
    }
}
