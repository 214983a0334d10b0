//! Failures of initiate, by status (CH §2.1, §9.4). A failed node keeps its state, which [`context`] verifies.

use super::{terminate::*, trees::*, *};
use crate::chimney::{
    provider::OffloadCapabilities,
    tree::{Block, InitiateNode, InitiateTree, TcpObject},
};

const SUCCESS: NdisStatus = NdisStatus::SUCCESS;
const FAILURE: NdisStatus = NdisStatus::FAILURE;

fn bench(limit: impl FnOnce(&mut OffloadCapabilities)) -> Bench {
    let mut config = EngineConfig::new(OURS);
    limit(&mut config.capabilities);
    Bench::with(config)
}

/// Creates a tree of one neighbor, path and connection, modified by `change`.
fn tree(
    port: u16,
    change: impl FnOnce(&mut NeighborState, &mut PathState, &mut TcpObject),
) -> InitiateTree {
    let (mut neighbor, mut path, mut object) = parts(port);
    change(&mut neighbor, &mut path, &mut object);
    let handle = OffloadHandle(port.into());
    let tcp = Block::new(handle, InitiateNode::new(Box::new(object)));
    let path = Block::new(handle, InitiateNode::new(path)).with(vec![tcp]);
    vec![Block::new(handle, InitiateNode::new(neighbor)).with(vec![path])]
}

/// Initiates a tree and returns its statuses. Each node must have its name or its state.
fn answer(bench: &mut Bench, tree: InitiateTree) -> Vec<NdisStatus> {
    let tree = bench.initiate_tree(tree);
    for neighbor in &tree {
        assert_eq!(context(neighbor).is_some(), is_offloaded(neighbor.status));
        for path in &neighbor.dependents {
            assert_eq!(context(path).is_some(), is_offloaded(path.status));
            for tcp in &path.dependents {
                assert_eq!(context(tcp).is_some(), is_offloaded(tcp.status));
            }
        }
    }
    statuses(&tree)
}

fn is_offloaded(status: NdisStatus) -> bool {
    status == SUCCESS || status == PARTIAL
}

fn plain(port: u16) -> InitiateTree {
    tree(port, |_, _, _| {})
}

/// Verifies that with `limit`, `second` is refused until `first` is terminated.
fn frees_its_entries(
    limit: impl FnOnce(&mut OffloadCapabilities),
    first: InitiateTree,
    second: InitiateTree,
) {
    let mut bench = bench(limit);
    let first = bench.initiate_tree(first);
    let path = &first[0].dependents[0];
    let tcp = context(&path.dependents[0]).unwrap();
    let mut refused = bench.initiate_tree(second);
    let (n, p) = (context(&first[0]), context(path));
    assert!(!statuses(&refused).iter().all(|status| *status == SUCCESS));
    bench.terminate(terminate_tree(n, p, &[tcp]));
    // CH-INI-4: refused objects are unchanged, so they can be offloaded again.
    for neighbor in &mut refused {
        if let Some(context) = context(neighbor) {
            neighbor.payload = InitiateNode::Linker(context);
        }
        for path in &mut neighbor.dependents {
            if let Some(context) = context(path) {
                path.payload = InitiateNode::Linker(context);
            }
        }
    }
    let again = bench.initiate_tree(refused);
    assert!(statuses(&again).iter().all(|status| *status == SUCCESS), "{:?}", statuses(&again));
}

// OFFLOAD_NEIGHBOR_ENTRIES. A removed neighbor frees its entry.
#[test]
fn exceeded_neighbor_entries_are_refused() {
    let mut bench = bench(|limits| limits.neighbors_max = 1);
    let (n, p, tcps) = bench.offload(&[80]);
    let refused = [NdisStatus::OFFLOAD_NEIGHBOR_ENTRIES, FAILURE, FAILURE];
    assert_eq!(answer(&mut bench, plain(81)), refused);
    bench.terminate(terminate_tree(Some(n), Some(p), &tcps));
    assert_eq!(answer(&mut bench, plain(81)), [SUCCESS; 3]);
}

// OFFLOAD_PATH_ENTRIES.
#[test]
fn exceeded_path_entries_are_refused() {
    let mut bench = bench(|limits| limits.paths_max = 1);
    let (n, p, tcps) = bench.offload(&[80]);
    let refused = [PARTIAL, NdisStatus::OFFLOAD_PATH_ENTRIES, FAILURE];
    assert_eq!(answer(&mut bench, plain(81)), refused);
    bench.terminate(terminate_tree(Some(n), Some(p), &tcps));
    assert_eq!(answer(&mut bench, plain(81)), [SUCCESS; 3]);
}

// OFFLOAD_TCP_ENTRIES: the limit counts both families together.
#[test]
fn exceeded_tcp_entries_are_refused() {
    let mut bench = bench(|limits| limits.connections_max = 1);
    let (n, p, tcps) = bench.offload(&[80]);
    let v6 = |path: &mut PathState| {
        path.constant.source_address = "fe80::1".parse().unwrap();
        path.constant.destination_address = "fe80::2".parse().unwrap();
    };
    let refused = [SUCCESS, PARTIAL, NdisStatus::OFFLOAD_TCP_ENTRIES];
    assert_eq!(answer(&mut bench, tree(81, |_, path, _| v6(path))), refused);
    bench.terminate(terminate_tree(Some(n), Some(p), &tcps));
    assert_eq!(answer(&mut bench, tree(81, |_, path, _| v6(path))), [SUCCESS; 3]);
}

// OFFLOAD_IP_ADDRESS_ENTRIES: distinct source addresses. An entry is freed with the last path of its address.
#[test]
fn exceeded_ip_address_entries_are_refused() {
    let mut bench = bench(|limits| limits.ip_addresses_max = 1);
    let (n, p, tcps) = bench.offload(&[80]);
    assert_eq!(answer(&mut bench, plain(81)), [SUCCESS; 3], "the same address");
    let second =
        |port| tree(port, |_, path, _| path.constant.source_address = "10.0.0.9".parse().unwrap());
    let refused = [PARTIAL, NdisStatus::OFFLOAD_IP_ADDRESS_ENTRIES, FAILURE];
    assert_eq!(answer(&mut bench, second(82)), refused);
    bench.terminate(terminate_tree(Some(n), Some(p), &tcps));
    assert_eq!(answer(&mut bench, second(82)), refused, "one path still has it");

    let mut bench = self::bench(|limits| limits.ip_addresses_max = 1);
    let (n, p, tcps) = bench.offload(&[80]);
    bench.terminate(terminate_tree(Some(n), Some(p), &tcps));
    assert_eq!(answer(&mut bench, second(82)), [SUCCESS; 3]);
}

// OFFLOAD_HW_ADDRESS_ENTRIES: explicit source addresses. Frames to such an address are accepted (CH §3.2).
#[test]
fn exceeded_hw_address_entries_are_refused() {
    let explicit = |port, last| {
        tree(port, |neighbor, _, _| {
            neighbor.constant.dl_source_address = MacAddress([2, 0, 0, 0, 0, last]);
        })
    };
    let mut without = bench(|limits| limits.hw_addresses_max = 0);
    let refused = [NdisStatus::OFFLOAD_HW_ADDRESS_ENTRIES, FAILURE, FAILURE];
    assert_eq!(answer(&mut without, explicit(80, 7)), refused);
    assert_eq!(answer(&mut without, explicit(80, 1)), [SUCCESS; 3], "the interface's own");

    let mut bench = bench(|limits| limits.hw_addresses_max = 1);
    assert_eq!(answer(&mut bench, explicit(80, 7)), [SUCCESS; 3]);
    assert_eq!(answer(&mut bench, explicit(81, 7)), [SUCCESS; 3], "the same");
    assert_eq!(answer(&mut bench, explicit(82, 8)), refused);
    frees_its_entries(|limits| limits.hw_addresses_max = 1, explicit(80, 7), explicit(81, 8));
    let mut frame = from_peer(80, 5000, 1000, b"to seven");
    frame[5] = 7;
    bench.arrives(frame);
    bench.poll();
    assert_eq!(bench.client().received, b"to seven");
    bench.now += Duration::from_millis(50);
    bench.poll();
    assert_eq!(bench.sent()[0][6..12], [2, 0, 0, 0, 0, 7]);
}

fn in_vlan(port: u16, vlan_id: u16) -> InitiateTree {
    tree(port, |neighbor, _, _| neighbor.constant.vlan_id = vlan_id)
}

// OFFLOAD_VLAN_ENTRIES: distinct ids. Id 0 needs no entry.
#[test]
fn exceeded_vlan_entries_are_refused() {
    let mut bench = bench(|limits| limits.vlans_max = 1);
    assert_eq!(answer(&mut bench, in_vlan(80, 5)), [SUCCESS; 3]);
    assert_eq!(answer(&mut bench, in_vlan(81, 5)), [SUCCESS; 3]);
    assert_eq!(answer(&mut bench, in_vlan(82, 0)), [SUCCESS; 3]);
    let refused = [NdisStatus::OFFLOAD_VLAN_ENTRIES, FAILURE, FAILURE];
    assert_eq!(answer(&mut bench, in_vlan(83, 6)), refused);
    frees_its_entries(|limits| limits.vlans_max = 1, in_vlan(80, 5), in_vlan(81, 6));
}

// OFFLOAD_VLAN_MISMATCH: table of CH §9.4.
#[test]
fn mismatched_vlan_is_refused() {
    let mut bench = bench(|_| {});
    assert_eq!(answer(&mut bench, in_vlan(80, 5)), [SUCCESS; 3], "the interface has none");
    bench.engine.set_interface_vlans(vec![7, 8]);
    let refused = [NdisStatus::OFFLOAD_VLAN_MISMATCH, FAILURE, FAILURE];
    assert_eq!(answer(&mut bench, in_vlan(81, 5)), refused);
    assert_eq!(answer(&mut bench, in_vlan(81, 8)), [SUCCESS; 3]);
    assert_eq!(answer(&mut bench, in_vlan(82, 0)), [SUCCESS; 3]);
}

// OFFLOAD_PATH_MTU.
#[test]
fn path_mtu() {
    let mut bench = bench(|limits| limits.path_mtu_max = 1500);
    let wide = tree(80, |_, path, _| path.cached.path_mtu = 1501);
    assert_eq!(answer(&mut bench, wide), [PARTIAL, NdisStatus::OFFLOAD_PATH_MTU, FAILURE]);
    assert_eq!(answer(&mut bench, plain(80)), [SUCCESS; 3]);
}

/// Statuses of a tree whose connection is refused with `status`.
fn refused(status: NdisStatus) -> [NdisStatus; 3] {
    [SUCCESS, PARTIAL, status]
}

// OFFLOAD_TCP_XMIT_BUFFER, CH-INI-4: the limit applies to all connections together. Refused lists are unchanged.
#[test]
fn transmit_buffers() {
    let mut bench = bench(|limits| limits.transmit_buffer_max = 10);
    let sends = |port, text: &'static [u8]| {
        tree(port, |_, _, object| object.send_data.push_back(list(7, text)))
    };
    assert_eq!(answer(&mut bench, sends(80, b"1234567")), [SUCCESS; 3]);
    let tree = bench.initiate_tree(sends(81, b"abcd"));
    assert_eq!(statuses(&tree), refused(NdisStatus::OFFLOAD_TCP_XMIT_BUFFER));
    let InitiateNode::New { state: Some(object), context: None } =
        &tree[0].dependents[0].dependents[0].payload
    else {
        panic!("the connection has no state")
    };
    let kept = &object.send_data[0];
    assert_eq!((kept.context, kept.status, kept.data_length()), (7, NdisStatus::PENDING, 4));
    assert_eq!(answer(&mut bench, sends(82, b"abc")), [SUCCESS; 3]);
    frees_its_entries(
        |limits| limits.transmit_buffer_max = 7,
        sends(80, b"1234567"),
        sends(81, b"1"),
    );
}

// OFFLOAD_TCP_RCV_BUFFER: counts undelivered and out-of-order bytes. They are freed with the connection.
#[test]
fn receive_buffers() {
    let mut bench = bench(|limits| limits.receive_buffer_max = 10);
    let brings = |port| {
        tree(port, |_, _, object| {
            object.buffered_data = vec![Bytes::from_static(b"1234")];
            object.out_of_order = vec![(SeqNum(5100), Bytes::from_static(b"5678"))];
        })
    };
    let taken = bench.initiate_tree(brings(80));
    let tcp = context(&taken[0].dependents[0].dependents[0]).unwrap();
    let full = refused(NdisStatus::OFFLOAD_TCP_RCV_BUFFER);
    assert_eq!(answer(&mut bench, brings(81)), full);
    bench.upload(tcp);
    assert_eq!(answer(&mut bench, brings(81)), [SUCCESS; 3]);
}

// OFFLOAD_TCP_RCV_WINDOW.
#[test]
fn receive_window() {
    let mut bench = bench(|limits| limits.receive_window_max = 59_999);
    assert_eq!(answer(&mut bench, plain(80)), refused(NdisStatus::OFFLOAD_TCP_RCV_WINDOW));
    let smaller = tree(80, |_, _, object| object.tcp.cached.initial_rcv_wnd = 59_999);
    assert_eq!(answer(&mut bench, smaller), [SUCCESS; 3]);
}

// OFFLOAD_CONNECTION_REJECTED: decision of the target's admission policy.
#[test]
fn connection_rejected() {
    let mut bench = bench(|_| {});
    bench.engine.set_admission(Box::new(|path, tcp| {
        path.cached.path_mtu >= 1280 && tcp.constant.local_port != 80
    }));
    assert_eq!(answer(&mut bench, plain(80)), refused(NdisStatus::OFFLOAD_CONNECTION_REJECTED));
    assert_eq!(answer(&mut bench, plain(81)), [SUCCESS; 3]);
}

// FAILURE: features ruled out by the capabilities, a state that cannot be offloaded (CH-ST-1) or contradicts itself,
// and a connection that is offloaded already (CH-INI-1).
#[test]
fn failures() {
    let mut bench = bench(|limits| {
        limits.support_ipv6 = false;
        limits.support_sack = false;
    });
    let v6 = tree(80, |_, path, _| {
        path.constant.source_address = "fe80::1".parse().unwrap();
        path.constant.destination_address = "fe80::2".parse().unwrap();
    });
    assert_eq!(answer(&mut bench, v6), [PARTIAL, FAILURE, FAILURE]);
    let changes: [fn(&mut TcpObject); 4] = [
        |object| object.tcp.constant.sack_enabled = true,
        |object| object.tcp.delegated.state = TcpPhase::Closed,
        |object| object.tcp.constant.snd_wind_scale = 15,
        |object| object.tcp.delegated.snd_nxt = SeqNum(999),
    ];
    for change in changes {
        let tree = tree(80, |_, _, object| change(object));
        assert_eq!(answer(&mut bench, tree), refused(FAILURE));
    }
    assert_eq!(answer(&mut bench, plain(80)), [SUCCESS; 3]);
    assert_eq!(answer(&mut bench, plain(80)), refused(FAILURE), "the same flow and handle");
    assert_eq!(bench.engine.stats().initiate_failures, 6);
}

// CH-ST-1: a connection in TIME_WAIT cannot be offloaded.
#[test]
fn time_wait_connection_is_refused() {
    let mut bench = bench(|_| {});
    let waiting = tree(80, |_, _, object| object.tcp.delegated.state = TcpPhase::TimeWait);
    assert_eq!(answer(&mut bench, waiting), refused(FAILURE));
}

// A failed initiate uses no name, count or limit.
#[test]
fn failed_initiate_leaves_no_entries() {
    let mut bench = bench(|limits| limits.connections_max = 0);
    for _ in 0..3 {
        let tree = bench.initiate_tree(plain(80));
        let (n, p) = (context(&tree[0]).unwrap(), context(&tree[0].dependents[0]).unwrap());
        let (tree, _) = bench.terminate(terminate_tree(Some(n), Some(p), &[]));
        assert_eq!(statuses(&tree), [SUCCESS; 2]);
    }
    let objects = bench.engine.objects();
    assert_eq!((objects.neighbors(), objects.paths()), (0, 0));
}
