//! Query, update, invalidate (CH §5.2 to §5.4).

use super::{terminate::*, trees::*, *};
use crate::{
    chimney::{
        client::UploadReason,
        tree::{
            Block, ClassQuery, InitiateNode, InvalidateTree, ObjectNode, Query, QueryTree,
            TargetContext, TcpQueried, UpdateNode, UpdateTree,
        },
    },
    state::TcpUpdate,
};

type TcpQuery = Query<TcpConst, TcpCached, TcpQueried>;

const SUCCESS: NdisStatus = NdisStatus::SUCCESS;
const FAILURE: NdisStatus = NdisStatus::FAILURE;

/// Creates an update tree with one path and its connections.
fn update_tree(
    neighbor: UpdateNode<NeighborCached>,
    path: UpdateNode<PathCached>,
    tcps: Vec<UpdateNode<Box<TcpUpdate>>>,
) -> UpdateTree {
    let handle = OffloadHandle(0);
    let tcps = tcps.into_iter().map(|tcp| Block::new(handle, tcp)).collect();
    vec![Block::new(handle, neighbor).with(vec![Block::new(handle, path).with(tcps)])]
}

impl Bench {
    pub(super) fn update(&mut self, tree: UpdateTree) -> Vec<NdisStatus> {
        self.port.update(tree);
        self.poll();
        let messages = self.host_messages();
        let answer = messages.iter().find_map(|message| match message {
            ToHost::UpdateComplete(tree) => Some(statuses(tree)),
            _ => None,
        });
        answer.expect("a completion")
    }

    pub(super) fn query(&mut self, tree: QueryTree) -> QueryTree {
        self.port.query(tree);
        self.poll();
        match self.host_messages().pop() {
            Some(ToHost::QueryComplete(tree)) => tree,
            other => panic!("{other:?}"),
        }
    }

    /// Queries all state of a connection.
    pub(super) fn query_all(
        &mut self,
        neighbor: TargetContext,
        path: TargetContext,
        tcp: TargetContext,
    ) -> (NeighborState, PathState, TcpConst, TcpCached, TcpQueried) {
        let tree = self.query(query_tree(neighbor, path, tcp));
        assert_eq!(statuses(&tree), [SUCCESS; 3]);
        let n = answers(&tree[0].payload);
        let p = answers(&tree[0].dependents[0].payload);
        let t = answers(&tree[0].dependents[0].dependents[0].payload);
        (
            NeighborState { constant: n.0, cached: n.1, delegated: n.2 },
            PathState { constant: p.0, cached: p.1 },
            t.0,
            t.1,
            t.2,
        )
    }

    /// Invalidates objects. Returns the statuses and the other messages to the host.
    fn invalidate(&mut self, tree: InvalidateTree) -> (Vec<NdisStatus>, Vec<ToHost>) {
        self.port.invalidate(tree);
        self.poll();
        let mut messages = self.host_messages();
        let at =
            messages.iter().position(|message| matches!(message, ToHost::InvalidateComplete(_)));
        let ToHost::InvalidateComplete(tree) = messages.remove(at.expect("a completion")) else {
            unreachable!("the position is that of a completion")
        };
        (statuses(&tree), messages)
    }
}

pub(super) fn query_tree(n: TargetContext, p: TargetContext, t: TargetContext) -> QueryTree {
    let tcp = node(Some(t), Query::all(), Vec::new());
    vec![node(Some(n), Query::all(), vec![node(Some(p), Query::all(), vec![tcp])])]
}

pub(super) fn answers<C: Copy, A: Copy, D: Copy>(node: &ObjectNode<Query<C, A, D>>) -> (C, A, D) {
    let ObjectNode::Object { payload, .. } = node else { panic!("a placeholder") };
    match *payload {
        Query {
            constant: ClassQuery::Answer(constant),
            cached: ClassQuery::Answer(cached),
            delegated: ClassQuery::Answer(delegated),
        } => (constant, cached, delegated),
        _ => panic!("not all was answered"),
    }
}

// CH-QRY-1: any class of any object can be queried. Other classes are not returned, and each node has its own status.
#[test]
fn classes_are_queried_individually() {
    let mut bench = Bench::new(10);
    let (n, p, tcps) = bench.offload(&[80]);
    let stale = TargetContext { generation: n.generation + 50, ..n };
    let tcp: TcpQuery = Query::delegated();
    let tree = vec![node(
        Some(stale),
        Query::all(),
        vec![
            node(None, Query::all(), vec![node(Some(tcps[0]), tcp, Vec::new())]),
            node(Some(p), Query::delegated(), Vec::new()),
        ],
    )];
    let tree = bench.query(tree);
    assert_eq!(statuses(&tree), [FAILURE, SUCCESS, SUCCESS, SUCCESS]);
    let ObjectNode::Object { payload, .. } = &tree[0].dependents[0].dependents[0].payload else {
        panic!("the connection")
    };
    assert_eq!((payload.constant, payload.cached), (ClassQuery::No, ClassQuery::No));
    let ClassQuery::Answer(queried) = payload.delegated else { panic!("not answered") };
    assert_eq!(queried.delegated.rcv_nxt.0, 5000);
    // CH-QRY-4.
    assert_eq!(queried.delegated.keep_alive.timeout_delta, None);
    let ObjectNode::Object { payload, .. } = &tree[0].payload else { panic!("the neighbor") };
    assert_eq!(payload.cached, ClassQuery::Yes, "a failed node is unchanged");
}

// CH-ST-2, -3: backlog sizes. That of the send side does not depend on posted data.
#[test]
fn backlog_sizes() {
    let mut bench = Bench::new(10);
    let (n, p, tcps) = bench.offload(&[80]);
    let before = bench.query_all(n, p, tcps[0]).4;
    assert!(before.send_backlog_size > 0 && before.send_backlog_size != u32::MAX);
    bench.io(80).send([list(1, b"posted")].into());
    bench.client().takes = 2;
    bench.arrives(from_peer(80, 5000, 1000, b"abcde"));
    bench.poll();
    let after = bench.query_all(n, p, tcps[0]).4;
    assert_eq!(after.send_backlog_size, before.send_backlog_size);
    assert_eq!((before.receive_backlog_size, after.receive_backlog_size), (0, 3));
}

/// Local port, destination address and VLAN tag of the frames sent since the last call.
fn labels(bench: &Bench) -> Vec<(u16, [u8; 6], Option<u16>)> {
    let mut all: Vec<_> = bench
        .sent()
        .iter()
        .map(|frame| {
            let tagged = frame[12..14] == [0x81, 0];
            let tag = tagged.then(|| u16::from_be_bytes([frame[14], frame[15]]));
            let at = if tagged { 38 } else { 34 };
            let port = u16::from_be_bytes([frame[at], frame[at + 1]]);
            (port, frame[..6].try_into().unwrap(), tag)
        })
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

// CH-UPD-5: the neighbor's address and the path's MTU apply to every dependent connection, and to no other.
#[test]
fn updates_apply_to_all_dependents() {
    let mut bench = Bench::new(10);
    let (n, p, _) = bench.offload(&[80, 81]);
    let tree = bench.initiate_tree(vec![linker(n, vec![path(vec![tcp(82)])])]);
    assert_eq!(statuses(&tree), [SUCCESS; 3]);
    bench.offload(&[90]);
    bench.poll();
    let new =
        NeighborCached { dl_destination_address: MacAddress([2; 6]), host_reachability_delta: 7 };
    let tree = update_tree(
        UpdateNode::Cached { context: n, cached: new },
        UpdateNode::Cached { context: p, cached: PathCached { path_mtu: 1000 } },
        Vec::new(),
    );
    assert_eq!(bench.update(tree), [SUCCESS; 2]);
    bench.sent();
    for port in [80, 81, 82, 90] {
        let data = Bytes::from(vec![7; 2_000]);
        bench.io(port).send([NetBufferList::from_mdl(1, data)].into());
    }
    bench.poll();
    let longest = |bench: &Bench, port: u16| {
        let wire = bench.wire.lock().unwrap();
        let of_port = wire.sent.iter().filter(|frame| frame[34..36] == port.to_be_bytes());
        of_port.map(|frame| frame.len() - 14).max()
    };
    let mtus = [80, 81, 82, 90].map(|port| longest(&bench, port));
    assert_eq!(mtus, [Some(1000), Some(1000), Some(1500), Some(1500)]);
    let to = |mac: MacAddress| mac.0;
    let new = to(MacAddress([2; 6]));
    assert_eq!(
        labels(&bench),
        [(80, new, None), (81, new, None), (82, new, None), (90, to(PEERS), None)]
    );
}

// CH-UPD-2, -7, CH §16 #24: paths are linked to another neighbor under load, and the previous one can be terminated.
// Its VLAN and address are no longer used.
#[test]
fn paths_are_linked_to_another_neighbor() {
    let mut bench = Bench::new(10);
    let (n, p, tcps) = bench.offload(&[80, 81]);
    bench.io(80).send([list(1, b"before")].into());
    bench.poll();
    assert_eq!(labels(&bench), [(80, PEERS.0, None)]);
    let mut other = parts(1).0;
    other.constant.vlan_id = 9;
    other.cached.dl_destination_address = MacAddress([4; 6]);
    let other = Block::new(OffloadHandle(5), InitiateNode::new(other));
    let tree = bench.initiate_tree(vec![other]);
    let n2 = context(&tree[0]).unwrap();

    let link = |neighbor, path| {
        update_tree(UpdateNode::Linker(neighbor), UpdateNode::Linker(path), Vec::new())
    };
    let stale = TargetContext { generation: 999, ..n2 };
    assert_eq!(bench.update(link(stale, p)), [FAILURE; 2]);
    assert_eq!(bench.update(link(n2, stale)), [SUCCESS, FAILURE]);
    assert_eq!(bench.terminate(terminate_tree(Some(n), None, &[])).0[0].status, FAILURE);
    assert_eq!(bench.update(link(n2, p)), [SUCCESS; 2]);
    assert_eq!(bench.terminate(terminate_tree(Some(n), None, &[])).0[0].status, SUCCESS);

    bench.io(80).send([list(2, b"after")].into());
    bench.io(81).send([list(3, b"too")].into());
    bench.poll();
    assert_eq!(labels(&bench), [(80, [4; 6], Some(9)), (81, [4; 6], Some(9))]);
    // CH §9.4: the accepted VLAN tags change too.
    bench.arrives(from_peer(80, 5000, 1000, b"untagged"));
    bench.poll();
    assert_eq!(bench.engine.stats().rx_vlan_dropped, 1);
    let (tree, _) = bench.terminate(terminate_tree(Some(n2), Some(p), &tcps));
    assert_eq!(statuses(&tree), [SUCCESS; 4]);
}

fn invalidate_tree(
    neighbor: Option<TargetContext>,
    path: Option<TargetContext>,
    tcp: Option<TargetContext>,
) -> InvalidateTree {
    let tcps = tcp.map(|tcp| node(Some(tcp), (), Vec::new())).into_iter().collect();
    vec![node(neighbor, (), vec![node(path, (), tcps)])]
}

// CH-INV-1 to -3, s13 #9, #10: no segment is sent if an object at any level is invalid. A connection with data to send
// requests its upload once, at the invalidation or at its first attempt to send.
#[test]
fn dependents_of_invalid_object_send_nothing() {
    for level in 0..3 {
        let mut bench = Bench::new(10);
        let (n, p, tcps) = bench.offload(&[80, 81]);
        bench.offload(&[90]);
        bench.io(80).send([list(1, b"in flight")].into());
        bench.poll();
        bench.sent();
        let tree = match level {
            0 => invalidate_tree(Some(n), None, None),
            1 => invalidate_tree(None, Some(p), None),
            _ => invalidate_tree(None, None, Some(tcps[0])),
        };
        let (all, messages) = bench.invalidate(tree);
        assert!(all.iter().all(|status| *status == SUCCESS), "level {level}: {all:?}");
        let reason = UploadReason::InvalidState;
        assert_eq!(Bench::retrieved(&messages), [(80, reason)], "level {level}");

        // Neither data nor retransmissions nor acknowledgments are sent.
        bench.io(81).send([list(2, b"first attempt")].into());
        bench.io(90).send([list(3, b"goes on")].into());
        bench.poll();
        bench.arrives(from_peer(80, 5000, 1000, b"unanswered"));
        bench.now += Duration::from_secs(5);
        bench.poll();
        let messages = bench.host_messages();
        let expected: &[(u64, UploadReason)] = if level < 2 { &[(81, reason)] } else { &[] };
        assert_eq!(Bench::retrieved(&messages), expected, "level {level}");
        let ports: Vec<_> = labels(&bench).iter().map(|label| label.0).collect();
        assert_eq!(ports, if level < 2 { vec![90] } else { vec![81, 90] });
        // CH-INV-3, CH-TRM: the objects still exist, and are uploaded.
        let (tree, _) = bench.terminate(terminate_tree(Some(n), Some(p), &tcps));
        assert_eq!(statuses(&tree), [SUCCESS; 4], "level {level}");
    }
}

// CH-UPD-7: a path is invalidated, then linked to a new neighbor. A connection that had nothing to send continues
// normally.
#[test]
fn relinked_path_is_valid_again() {
    let mut bench = Bench::new(10);
    let (n, p, tcps) = bench.offload(&[80]);
    let (n2, _, _) = bench.offload(&[90]);
    bench.poll();
    bench.sent();
    let (_, messages) = bench.invalidate(invalidate_tree(Some(n), None, None));
    assert!(messages.is_empty(), "{messages:?}");
    // CH-UPD-3, CH-INI: an invalid object cannot be updated, and no new object can depend on it.
    let cached = parts(1).0.cached;
    let refused = UpdateNode::Cached { context: n, cached };
    assert_eq!(
        bench.update(update_tree(refused, UpdateNode::Placeholder, Vec::new())),
        [FAILURE, SUCCESS]
    );
    let tree = bench.initiate_tree(vec![linker(n, vec![linker(p, vec![tcp(91)])])]);
    assert_eq!(statuses(&tree), [FAILURE; 3]);
    let tree = update_tree(UpdateNode::Linker(n2), UpdateNode::Linker(p), Vec::new());
    assert_eq!(bench.update(tree), [SUCCESS; 2]);
    bench.io(80).send([list(1, b"the rest")].into());
    bench.poll();
    assert_eq!(tcp_of(&bench.sent()[0]).2, b"the rest");
    let (tree, _) = bench.terminate(terminate_tree(Some(n), None, &[]));
    assert_eq!(tree[0].status, SUCCESS);
    let (tree, _) = bench.terminate(terminate_tree(None, Some(p), &tcps));
    assert_eq!(statuses(&tree), [SUCCESS; 3]);
}

// CH-INV-2, CH-DIS: an abortive disconnect closes an invalid connection without sending its RST.
#[test]
fn invalid_connection_sends_no_reset() {
    let mut bench = Bench::new(10);
    let (n, _, _) = bench.offload(&[80]);
    bench.invalidate(invalidate_tree(Some(n), None, None));
    bench.io(80).disconnect(Disconnect::Abortive, NetBufferList::new(7));
    bench.poll();
    assert!(bench.sent().is_empty());
    assert_eq!(bench.client().disconnected.len(), 1);
    assert_eq!(bench.client().events, [ConnectionEvent::Released]);
    assert_eq!(bench.engine.stats().tx_invalid, 1);
}

// CH-UPD-4: nodes that cannot be updated fail, and all others are updated.
#[test]
fn stale_names_fail_without_effect_on_other_nodes() {
    let mut bench = Bench::new(10);
    let (n, p, tcps) = bench.offload(&[80]);
    let stale = |context: TargetContext| TargetContext { generation: 777, ..context };
    bench.io(80).send([list(1, b"before")].into());
    bench.poll();
    let cached = TcpCached { ttl_or_hop_limit: 9, initial_rcv_wnd: 60_000, ..TcpCached::default() };
    let update = |context| UpdateNode::Cached {
        context,
        cached: Box::new(TcpUpdate::of(&TcpCached::default(), cached)),
    };
    let tree = update_tree(
        UpdateNode::Cached { context: stale(n), cached: parts(1).0.cached },
        UpdateNode::Cached { context: stale(p), cached: PathCached { path_mtu: 600 } },
        vec![
            update(stale(tcps[0])),
            update(tcps[0]),
            UpdateNode::Linker(tcps[0]),
            UpdateNode::Placeholder,
        ],
    );
    assert_eq!(bench.update(tree), [FAILURE, FAILURE, FAILURE, SUCCESS, SUCCESS, SUCCESS]);
    bench.sent();
    bench.io(80).send([list(1, b"x")].into());
    bench.poll();
    let frame = bench.sent().remove(0);
    assert_eq!(frame[22], 9, "TTL");
    // CH §6.4: identifications are of the target's half, and continue.
    assert_eq!(frame[18..20], [0x80, 2], "after data and an ACK");
    let (_, messages) =
        bench.invalidate(invalidate_tree(Some(stale(n)), Some(stale(p)), Some(stale(tcps[0]))));
    assert!(messages.is_empty());
    let (_, path, ..) = bench.query_all(n, p, tcps[0]);
    assert_eq!(path.cached.path_mtu, 1500);
}

/// Sends data on port 80 and returns its frame.
fn next_frame(bench: &mut Bench) -> Vec<u8> {
    bench.io(80).send([list(5, b"?")].into());
    bench.poll();
    bench.sent().into_iter().find(|frame| frame.ends_with(b"?")).expect("a frame")
}

/// Applies one random step to a connection.
fn step(
    bench: &mut Bench,
    random: &mut oorandom::Rand32,
    n: TargetContext,
    p: TargetContext,
    t: TargetContext,
) {
    let queried = bench.query_all(n, p, t);
    let delegated = queried.4.delegated;
    let (rcv_nxt, snd_max) = (delegated.rcv_nxt.0, delegated.snd_max.0);
    match random.rand_range(0..6) {
        0 => bench.arrives(from_peer(80, rcv_nxt, snd_max, b"data")),
        1 => bench.arrives(from_peer(80, rcv_nxt + 10, snd_max, b"beyond a gap")),
        2 => bench.arrives(from_peer(80, rcv_nxt, snd_max, b"")),
        3 => {
            let mac = MacAddress([2, 0, 0, 0, 1, random.rand_range(0..200) as u8]);
            let cached = NeighborCached {
                dl_destination_address: mac,
                host_reachability_delta: random.rand_range(0..5_000),
            };
            let node = UpdateNode::Cached { context: n, cached };
            bench.update(update_tree(node, UpdateNode::Placeholder, Vec::new()));
        }
        4 => {
            let cached = TcpCached {
                ttl_or_hop_limit: random.rand_range(1..255) as u8,
                tos_or_traffic_class: (random.rand_range(0..64) << 2) as u8,
                user_priority: random.rand_range(0..8) as u8,
                ..queried.3
            };
            let cached = Box::new(TcpUpdate::of(&queried.3, cached));
            let node = UpdateNode::Cached { context: t, cached };
            bench.update(update_tree(UpdateNode::Placeholder, UpdateNode::Placeholder, vec![node]));
        }
        _ => {
            bench.client().takes = random.rand_range(0..5) as usize;
            bench.now += Duration::from_millis(random.rand_range(0..90).into());
            bench.engine.connections().get(bench.now, OffloadHandle(80)).unwrap().resume_receive();
        }
    }
    bench.poll();
    bench.sent();
}

// CH-QRY-1: at any time a query matches the engine's state, which the next sent frame and the next accepted data show.
#[test]
fn query_matches_transmitted_segments() {
    let first = std::env::var("FLUE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = first.map_or(0..60, |seed: u64| seed..seed + 1);
    for seed in seeds {
        let again = format!(
            "FLUE_SEED={seed} cargo test -p offload-engine --lib query_matches_transmitted_segments"
        );
        let mut random = oorandom::Rand32::new(seed);
        let mut bench = Bench::new(10);
        let (n, p, tcps) = bench.offload(&[80]);
        let t = tcps[0];
        bench.io(80).resume_receive();
        for _ in 0..20 {
            step(&mut bench, &mut random, n, p, t);
            let (neighbor, path, constant, cached, queried) = bench.query_all(n, p, t);
            let delegated = queried.delegated;
            let frame = next_frame(&mut bench);
            let tagged = usize::from(frame[12..14] == [0x81, 0]);
            let (ip, tcp) = (14 + 4 * tagged, 34 + 4 * tagged);
            assert_eq!(frame[..6], neighbor.cached.dl_destination_address.0, "{again}");
            assert_eq!(tagged == 1, cached.user_priority > 0, "{again}");
            assert!(tagged == 0 || frame[14] >> 5 == cached.user_priority, "{again}");
            assert_eq!(frame[ip + 1] & 0xfc, cached.tos_or_traffic_class, "{again}");
            assert_eq!(frame[ip + 8], cached.ttl_or_hop_limit, "{again}");
            assert_eq!(frame[ip + 12..ip + 16], [10, 0, 0, 1], "{again}: {path:?}");
            let word = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
            let half = |at: usize| u16::from_be_bytes(frame[at..at + 2].try_into().unwrap());
            assert_eq!((half(tcp), half(tcp + 2)), (constant.local_port, constant.remote_port));
            assert_eq!(word(tcp + 4), delegated.snd_nxt.0, "{again}: sequence number");
            assert_eq!(word(tcp + 8), delegated.rcv_nxt.0, "{again}: acknowledgment");
            // The advertised window may grow with this segment, and never shrinks.
            assert!(u32::from(half(tcp + 14)) >= delegated.rcv_wnd, "{again}: window");
            let waiting = bench.query_all(n, p, t).4;
            assert_eq!(waiting.delegated.snd_nxt - 1, delegated.snd_nxt, "{again}");
            assert_eq!(u32::from(half(tcp + 14)), waiting.delegated.rcv_wnd, "{again}: window");
        }
    }
}
