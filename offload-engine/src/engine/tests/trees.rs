//! Initiate: trees, node roles, partial success (CH §4, §5.1).

use super::*;
use crate::chimney::{
    provider::Forward,
    tree::{Block, InitiateNode, InitiateTree, PathBlock, TargetContext, TcpBlock, TcpObject},
};

pub(super) type Tcp = TcpBlock<InitiateNode<Box<TcpObject>>>;
pub(super) type Path = PathBlock<InitiateNode<PathState>, InitiateNode<Box<TcpObject>>>;

/// Names of a neighbor, a path and a connection assigned by the target.
pub(super) type Names = (TargetContext, TargetContext, TargetContext);

pub(super) const PARTIAL: NdisStatus = NdisStatus::OFFLOAD_PARTIAL_SUCCESS;

/// Parts of [`state`]: neighbor, path, connection.
pub(super) fn parts(local_port: u16) -> (NeighborState, PathState, TcpObject) {
    TcpObject::split(Clients::FIRST, state(local_port))
}

/// Creates a new connection node with its port as handle.
pub(super) fn tcp(local_port: u16) -> Tcp {
    Block::new(OffloadHandle(local_port.into()), InitiateNode::new(Box::new(parts(local_port).2)))
}

pub(super) fn path(dependents: Vec<Tcp>) -> Path {
    Block::new(OffloadHandle(2), InitiateNode::new(parts(1).1)).with(dependents)
}

pub(super) fn neighbor(dependents: Vec<Path>) -> InitiateTree {
    vec![Block::new(OffloadHandle(1), InitiateNode::new(parts(1).0)).with(dependents)]
}

/// Creates the node of an offloaded object with dependents.
pub(super) fn linker<S, D>(
    context: TargetContext,
    dependents: Vec<D>,
) -> Block<InitiateNode<S>, D> {
    Block::new(OffloadHandle(0), InitiateNode::Linker(context)).with(dependents)
}

fn placeholder<S, D>(dependents: Vec<D>) -> Block<InitiateNode<S>, D> {
    Block::new(OffloadHandle(0), InitiateNode::Placeholder).with(dependents)
}

/// Creates a path between two address families: refused with FAILURE.
fn broken_path(dependents: Vec<Tcp>) -> Path {
    let mut state = parts(1).1;
    state.constant.destination_address = "fe80::1".parse().unwrap();
    Block::new(OffloadHandle(2), InitiateNode::new(state)).with(dependents)
}

/// Returns the target's name of a node, if it has one.
pub(super) fn context<S, D>(block: &Block<InitiateNode<S>, D>) -> Option<TargetContext> {
    match &block.payload {
        InitiateNode::Placeholder => None,
        InitiateNode::Linker(context) => Some(*context),
        InitiateNode::New { state, context } => {
            // CH-TREE-3, CH-INI-4.
            assert_ne!(state.is_some(), context.is_some(), "state or name, never both");
            *context
        }
    }
}

impl Bench {
    /// Initiates a tree and returns it as completed.
    pub(super) fn initiate_tree(&mut self, tree: InitiateTree) -> InitiateTree {
        let port = &mut self.port;
        port.initiate(tree);
        self.poll();
        let mut messages = self.host_messages();
        let Some(ToHost::InitiateComplete(tree)) = messages.pop() else { panic!("{messages:?}") };
        tree
    }

    /// Offloads a neighbor, a path and connections with these ports. Returns the target's names.
    pub(super) fn offload(
        &mut self,
        ports: &[u16],
    ) -> (TargetContext, TargetContext, Vec<TargetContext>) {
        let tcps = ports.iter().map(|port| tcp(*port)).collect();
        let tree = self.initiate_tree(neighbor(vec![path(tcps)]));
        assert_eq!(statuses(&tree), vec![NdisStatus::SUCCESS; 2 + ports.len()]);
        let path = &tree[0].dependents[0];
        let tcps = path.dependents.iter().map(|tcp| context(tcp).unwrap()).collect();
        (context(&tree[0]).unwrap(), context(path).unwrap(), tcps)
    }
}

/// Returns all statuses in the order of traversal.
pub(super) fn statuses<N, P, T>(tree: &crate::chimney::tree::Tree<N, P, T>) -> Vec<NdisStatus> {
    let mut all = Vec::new();
    for neighbor in tree {
        all.push(neighbor.status);
        for path in &neighbor.dependents {
            all.push(path.status);
            all.extend(path.dependents.iter().map(|tcp| tcp.status));
        }
    }
    all
}

// CH-TREE-5, -6, -7: the worked example. CH-TREE-3, CH-INI-4: a failed node keeps its state and has no name.
#[test]
fn partial_success_matches_worked_example() {
    let mut bench = Bench::new(1);
    let tree = neighbor(vec![path(vec![tcp(80), tcp(81)]), broken_path(vec![tcp(82)])]);
    let tree = bench.initiate_tree(tree);
    let (n1, p1, p2) = (&tree[0], &tree[0].dependents[0], &tree[0].dependents[1]);
    assert_eq!((n1.status, p1.status), (PARTIAL, PARTIAL));
    assert_eq!(p1.dependents[0].status, NdisStatus::SUCCESS);
    assert_eq!(p1.dependents[1].status, NdisStatus::OFFLOAD_TCP_ENTRIES);
    assert_eq!((p2.status, p2.dependents[0].status), (NdisStatus::FAILURE, NdisStatus::FAILURE));
    assert!(context(n1).is_some() && context(p1).is_some() && context(p2).is_none());
    let named: Vec<_> = [&p1.dependents[0], &p1.dependents[1], &p2.dependents[0]]
        .map(|tcp| context(tcp).is_some())
        .into();
    assert_eq!(named, [true, false, false]);
    let objects = bench.engine.objects();
    assert_eq!((objects.neighbors(), objects.paths()), (1, 1));
    assert_eq!(bench.client().offloaded, [OffloadHandle(80)]);
    // CH-TREE-4.
    bench.arrives(from_peer(80, 5000, 1000, b"live"));
    bench.poll();
    assert_eq!(bench.client().received, b"live");
}

// CH-TREE-1: depth first, then breadth, as seen in the indices of each layer's objects.
#[test]
fn tree_is_traversed_depth_first() {
    let mut bench = Bench::new(10);
    let mut tree = neighbor(vec![path(vec![tcp(80), tcp(81)]), path(vec![tcp(82)])]);
    tree.extend(neighbor(vec![path(vec![tcp(83)])]));
    let tree = bench.initiate_tree(tree);
    let (mut neighbors, mut paths, mut tcps) = (Vec::new(), Vec::new(), Vec::new());
    for neighbor in &tree {
        neighbors.push(context(neighbor).unwrap().index);
        for path in &neighbor.dependents {
            paths.push(context(path).unwrap().index);
            tcps.extend(path.dependents.iter().map(|tcp| context(tcp).unwrap().index));
        }
    }
    assert_eq!((neighbors, paths, tcps), (vec![0, 1], vec![0, 1, 2], vec![0, 1, 2, 3]));
    let handles: Vec<_> = bench.client().offloaded.iter().map(|handle| handle.0).collect();
    assert_eq!(handles, [80, 81, 82, 83]);
}

// CH §4.2, CH-TREE-8: the status of a linker depends on its direct dependents. The status of a placeholder is always
// SUCCESS.
#[test]
fn linker_status_depends_on_its_dependents() {
    let mut bench = Bench::new(4);
    let (n, p, _) = bench.offload(&[80]);
    let tree = bench.initiate_tree(vec![linker(n, vec![linker(p, vec![tcp(81)])])]);
    assert_eq!(statuses(&tree), [NdisStatus::SUCCESS; 3]);

    // The second connection has the same flow and handle as the first.
    let mut some = linker(n, vec![linker(p, vec![tcp(82), tcp(82)])]);
    some.dependents.push(broken_path(Vec::new()));
    let tree = bench.initiate_tree(vec![some]);
    let failure = NdisStatus::FAILURE;
    assert_eq!(statuses(&tree), [PARTIAL, PARTIAL, NdisStatus::SUCCESS, failure, failure]);

    let tree = bench.initiate_tree(vec![linker(n, vec![linker(p, vec![tcp(82), tcp(80)])])]);
    assert_eq!(statuses(&tree), [failure; 4], "all failed");

    let tree = bench.initiate_tree(vec![placeholder(vec![
        linker(p, vec![tcp(83)]),
        path(vec![tcp(84)]),
        placeholder(vec![tcp(84), placeholder(Vec::new())]),
    ])]);
    let success = NdisStatus::SUCCESS;
    assert_eq!(
        statuses(&tree),
        [success, success, success, failure, failure, success, failure, success]
    );
    assert_eq!(bench.engine.connections().len(), 4);
}

// CH-TREE-2, -9: dependents of a refused neighbor are not attempted. The next tree is independent of it.
#[test]
fn failed_neighbor_fails_its_tree_only() {
    let mut config = EngineConfig::new(OURS);
    config.capabilities.neighbors_max = 1;
    let mut bench = Bench::with(config);
    let (n, p, _) = bench.offload(&[80]);
    let mut tree =
        neighbor(vec![path(vec![tcp(81)]), linker(p, vec![tcp(82)]), placeholder(vec![tcp(83)])]);
    tree.push(linker(n, vec![linker(p, vec![tcp(84)])]));
    let tree = bench.initiate_tree(tree);
    let (entries, failure, success) =
        (NdisStatus::OFFLOAD_NEIGHBOR_ENTRIES, NdisStatus::FAILURE, NdisStatus::SUCCESS);
    assert_eq!(
        statuses(&tree),
        [entries, failure, failure, failure, failure, success, failure, success, success, success]
    );
    assert_eq!(bench.engine.connections().len(), 2);
    assert_eq!(bench.engine.objects().paths(), 1);
}

// CH-TREE-9, -10, CH-UPD-2: a path is found only below its own neighbor, and only by its own name.
#[test]
fn names_of_other_objects_are_refused() {
    let mut bench = Bench::new(10);
    let (n1, p1, tcps) = bench.offload(&[80]);
    let (n2, _, _) = bench.offload(&[81]);
    let failure = NdisStatus::FAILURE;
    for (neighbor, path) in [(n2, p1), (p1, p1), (n1, n1), (tcps[0], p1), (n1, tcps[0])] {
        let tree = bench.initiate_tree(vec![linker(neighbor, vec![linker(path, vec![tcp(90)])])]);
        let all = statuses(&tree);
        assert_eq!((all[1], all[2]), (failure, failure), "{neighbor:?} {path:?}");
    }
    assert_eq!(bench.engine.connections().len(), 2);
    assert_eq!(bench.engine.stats().initiate_failures, 5);
}

// CH-INI-5, CH-DEL-3: data offloaded with the connection is delivered from the target's memory.
#[test]
fn buffered_data_precedes_new_data() {
    let mut bench = Bench::new(10);
    let mut object = parts(80).2;
    object.buffered_data = vec![Bytes::from_static(b"left "), Bytes::from_static(b"behind ")];
    let node = Block::new(OffloadHandle(80), InitiateNode::new(Box::new(object)));
    bench.initiate_tree(neighbor(vec![path(vec![node])]));
    bench.arrives(from_peer(80, 5000, 1000, b"and new"));
    bench.poll();
    assert_eq!(bench.client().received, b"left behind and new");
}

// CH-FWD-2, -5: a segment is passed to the connection that the host names, and completed once with its status.
#[test]
fn forwarded_segments_complete() {
    let mut bench = Bench::new(10);
    let (_, _, tcps) = bench.offload(&[80, 81]);
    let mut forward = |connection, frame| {
        bench.port.forward(Forward { connection, frame, status: NdisStatus::PENDING });
        bench.poll();
        match bench.host_messages().pop() {
            Some(ToHost::ForwardComplete(done)) => done.status,
            other => panic!("{other:?}"),
        }
    };
    let frame = from_peer(80, 5000, 1000, b"late");
    assert_eq!(forward(tcps[0], frame.clone()), NdisStatus::SUCCESS);
    assert_eq!(
        forward(tcps[1], frame.clone()),
        NdisStatus::REQUEST_ABORTED,
        "of another connection"
    );
    assert_eq!(forward(tcps[0], vec![0; 20]), NdisStatus::REQUEST_ABORTED, "no segment");
    let gone = TargetContext { generation: tcps[0].generation + 100, ..tcps[0] };
    assert_eq!(forward(gone, frame), NdisStatus::UPLOAD_IN_PROGRESS, "not offloaded");
    assert_eq!(bench.client().received, b"late");
    let stats = bench.engine.stats();
    assert_eq!((stats.forwards, stats.forwards_dropped), (1, 3));
}

// CH-FWD-2: segments that the host received before the hand-over are older than those the target has received since.
// They are processed in order within the node, so no acknowledgment reports a gap.
#[test]
fn forwarded_segments_precede_later_ones() {
    let mut bench =
        Bench::with(EngineConfig { waits_for_forwards: true, ..EngineConfig::new(OURS) });
    let (_, _, tcps) = bench.offload(&[80]);
    bench.arrives(from_peer(80, 5006, 1000, b"later"));
    bench.poll();
    assert_eq!((bench.client().received.len(), bench.sent().len()), (0, 0));
    let frame = from_peer(80, 5000, 1000, b"first ");
    bench.port.forward(Forward { connection: tcps[0], frame, status: NdisStatus::PENDING });
    bench.port.forwarded(tcps[0]);
    bench.arrives(from_peer(80, 5011, 1000, b" and last"));
    bench.poll();
    assert_eq!(bench.client().received, b"first later and last");
    let acknowledged: Vec<u32> = bench.sent().iter().map(|frame| tcp_of(frame).1).collect();
    assert_eq!(acknowledged, [5020]);
    assert_eq!(bench.engine.stats().rx_held, 1);
}

// A window of small segments exceeds the limit for stopped connections, and is kept here. The peer would treat dropped
// ones as lost.
#[test]
fn window_of_early_segments_is_kept() {
    let mut bench =
        Bench::with(EngineConfig { waits_for_forwards: true, ..EngineConfig::new(OURS) });
    let (_, _, tcps) = bench.offload(&[80]);
    let count = 10 * HELD_FRAMES_MAX;
    for index in 0..count as u32 {
        bench.arrives(from_peer(80, 5000 + index, 1000, b"x"));
    }
    while bench.poll() {}
    assert!(bench.client().received.is_empty());
    bench.port.forwarded(tcps[0]);
    bench.poll();
    let stats = bench.engine.stats();
    assert_eq!((stats.rx_held, stats.rx_held_dropped), (count as u64, 0));
    assert_eq!(bench.client().received.len(), count);
}
