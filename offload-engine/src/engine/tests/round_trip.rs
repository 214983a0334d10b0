//! Migration of every state variable by initiate, query, update and terminate.
//!
//! [`variables`] destructures the state exhaustively, so its list is complete. [`changes`] must name each variable in
//! it.

use super::{state_operations::*, terminate::*, trees::*, *};
use crate::{
    chimney::tree::{Block, InitiateNode, ObjectNode, TcpObject, UpdateNode},
    state::{
        TcpUpdate,
        variables::{self, Change, Class, Variables, differing, list, tcp_changes, tcp_variables},
    },
};

/// State of one connection, without its data.
#[derive(Clone, Copy, PartialEq, Debug)]
struct FullState {
    neighbor: NeighborState,
    path: PathState,
    tcp: TcpState,
}

/// Lists every variable by name.
fn variables(state: &FullState) -> Variables {
    let FullState { neighbor, path, tcp } = *state;
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

fn busy() -> FullState {
    let (neighbor, path, object) = parts(80);
    FullState { neighbor, path, tcp: variables::busy(object.tcp) }
}

type Changing = Box<dyn Fn(&mut FullState)>;

/// Changes of all variables, with their names.
fn changes() -> Vec<(&'static [&'static str], Changing)> {
    let others: [Change<FullState>; 8] = [
        (&["dl_source_address"], |all| {
            all.neighbor.constant.dl_source_address = MacAddress([2, 7, 7, 7, 7, 7]);
        }),
        (&["vlan_id"], |all| all.neighbor.constant.vlan_id = 77),
        (&["dl_destination_address"], |all| {
            all.neighbor.cached.dl_destination_address = MacAddress([6; 6]);
        }),
        (&["host_reachability_delta"], |all| {
            all.neighbor.cached.host_reachability_delta = 123_456;
        }),
        (&["nic_reachability_delta"], |all| {
            all.neighbor.delegated.nic_reachability_delta = 65_432;
        }),
        (&["source_address"], |all| {
            all.path.constant.source_address = "10.9.0.1".parse().unwrap();
        }),
        (&["destination_address"], |all| {
            all.path.constant.destination_address = "10.9.0.2".parse().unwrap();
        }),
        (&["path_mtu"], |all| all.path.cached.path_mtu = 1_400),
    ];
    let others = others.into_iter().map(|(names, change)| (names, Box::new(change) as Changing));
    let tcp = tcp_changes().into_iter().map(|(names, change)| {
        (names, Box::new(move |all: &mut FullState| change(&mut all.tcp)) as Changing)
    });
    others.chain(tcp).collect()
}

fn bench() -> Bench {
    let mut bench = Bench::new(10);
    bench.now = Instant::from_millis(100_000);
    bench
}

fn initiate(all: &FullState) -> crate::chimney::tree::InitiateTree {
    let mut object = parts(80).2;
    object.tcp = all.tcp;
    // Starts at SND.UNA and includes SND.MAX.
    object.send_data.push_back(NetBufferList::from_mdl(3, Bytes::from(vec![7; 6_000])));
    let tcp = Block::new(OffloadHandle(80), InitiateNode::new(Box::new(object)));
    let path = Block::new(OffloadHandle(2), InitiateNode::new(all.path)).with(vec![tcp]);
    vec![Block::new(OffloadHandle(1), InitiateNode::new(all.neighbor)).with(vec![path])]
}

/// Offloads a connection and queries all its state before anything is sent.
fn offload(bench: &mut Bench, all: &FullState) -> (Names, FullState) {
    // The first poll, without traffic, determines the names; the segments it sends are ignored. A second engine is
    // queried immediately.
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
    let messages = twin.host_messages();
    let Some(ToHost::QueryComplete(tree)) = messages.last() else { panic!("{messages:?}") };
    assert_eq!(statuses(tree), [NdisStatus::SUCCESS; 3]);
    let (n, p) = (answers(&tree[0].payload), answers(&tree[0].dependents[0].payload));
    let t = answers(&tree[0].dependents[0].dependents[0].payload);
    let queried = FullState {
        neighbor: NeighborState { constant: n.0, cached: n.1, delegated: n.2 },
        path: PathState { constant: p.0, cached: p.1 },
        tcp: TcpState { constant: t.0, cached: t.1, delegated: t.2.delegated },
    };
    (names, queried)
}

/// Offloads and terminates a connection before anything is sent. Returns the uploaded state.
fn offload_and_upload(
    all: &FullState,
    names: Names,
) -> (Option<NeighborDelegated>, Box<TcpObject>) {
    let mut bench = bench();
    bench.port.initiate(initiate(all));
    bench.port.terminate(terminate_tree(Some(names.0), Some(names.1), &[names.2]));
    bench.poll();
    let mut messages = bench.host_messages();
    let Some(ToHost::TerminateComplete(tree)) = messages.pop() else { panic!("{messages:?}") };
    let ObjectNode::Object { payload, .. } = tree[0].payload else { panic!("the neighbor") };
    (payload, object(tree))
}

// CH §3, CH §16 #6: each const, cached and delegated variable is offloaded unchanged and affects no other one.
#[test]
fn each_variable_survives_hand_over() {
    let base = busy();
    let before = variables(&base);
    let mut changed = Vec::new();
    for (name, change) in changes() {
        let mut all = base;
        change(&mut all);
        let expected = variables(&all);
        let differ = differing(&before, &expected);
        assert!(differ.iter().all(|of| name.contains(of)), "{name:?}: {differ:?}");
        changed.extend(differ);
        let (names, queried) = offload(&mut bench(), &all);
        assert_eq!(variables(&queried), expected, "queried with another {name:?}");
        let (neighbor, object) = offload_and_upload(&all, names);
        let uploaded = FullState {
            neighbor: NeighborState { delegated: neighbor.unwrap(), ..all.neighbor },
            tcp: object.tcp,
            ..all
        };
        assert_eq!(variables(&uploaded), expected, "uploaded with another {name:?}");
        let data: usize = object.send_data.iter().map(NetBufferList::data_length).sum();
        assert_eq!(data, 6_000, "{name:?}");
    }
    let missing: Vec<_> = before.iter().filter(|(name, ..)| !changed.contains(name)).collect();
    assert!(missing.is_empty(), "no change of {missing:?}");
}

// CH-UPD-1: an update sets each cached variable, and changes no other class.
#[test]
fn each_cached_variable_is_updated() {
    let base = busy();
    let before = variables(&base);
    for (index, (name, class, _)) in before.iter().enumerate() {
        if *class != Class::Cached {
            continue;
        }
        let mut all = base;
        let of_it = changes().into_iter().find(|(names, _)| *names == [*name]);
        of_it.expect("a change of it alone").1(&mut all);
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
        let now = variables(&FullState { neighbor, path, tcp });
        let expected = variables(&all);
        assert_eq!(now[index], expected[index]);
        for (now, expected) in now.iter().zip(&expected) {
            if now.1 != Class::Delegated {
                assert_eq!(now, expected, "an update of {name}");
            }
        }
    }
}
