//! Terminate (CH §5.5), urgent data (CH §9.3), hardware failure (CH §5.6).

use super::{trees::*, *};
use crate::{
    chimney::{
        client::UploadReason,
        provider::Forward,
        tree::{Block, InitiateNode, ObjectNode, TargetContext, TcpObject, TerminateTree},
    },
    tcp::Flags,
};

pub(super) fn node<P, D>(
    context: Option<TargetContext>,
    payload: P,
    below: Vec<D>,
) -> Block<ObjectNode<P>, D> {
    let node = match context {
        Some(context) => ObjectNode::Object { context, payload },
        None => ObjectNode::Placeholder,
    };
    Block::new(OffloadHandle(0), node).with(below)
}

/// Creates a terminate tree. `None` is a placeholder.
pub(super) fn terminate_tree(
    neighbor: Option<TargetContext>,
    path: Option<TargetContext>,
    tcps: &[TargetContext],
) -> TerminateTree {
    let tcps = tcps.iter().map(|tcp| node(Some(*tcp), None, Vec::new())).collect();
    vec![node(neighbor, None, vec![node(path, (), tcps)])]
}

/// Returns the first connection of an uploaded tree.
pub(super) fn object(tree: TerminateTree) -> Box<TcpObject> {
    let tcp = tree.into_iter().next().unwrap().dependents.remove(0).dependents.remove(0);
    assert_eq!(tcp.status, NdisStatus::SUCCESS);
    match tcp.payload {
        ObjectNode::Object { payload, .. } => payload.expect("a state"),
        ObjectNode::Placeholder => panic!("a placeholder"),
    }
}

impl Bench {
    pub(super) fn terminate(&mut self, tree: TerminateTree) -> (TerminateTree, Vec<ToHost>) {
        self.port.terminate(tree);
        self.poll();
        let mut messages = self.host_messages();
        let at =
            messages.iter().position(|message| matches!(message, ToHost::TerminateComplete(_)));
        let ToHost::TerminateComplete(tree) = messages.remove(at.expect("a completion")) else {
            unreachable!("the position is that of a completion")
        };
        (tree, messages)
    }

    pub(super) fn upload(&mut self, tcp: TargetContext) -> (Box<TcpObject>, Vec<ToHost>) {
        let (tree, messages) = self.terminate(terminate_tree(None, None, &[tcp]));
        (object(tree), messages)
    }

    pub(super) fn io(&mut self, handle: u64) -> ConnectionIo<'_> {
        let now = self.now;
        self.engine.connections().get(now, OffloadHandle(handle)).unwrap()
    }

    pub(super) fn retrieved(messages: &[ToHost]) -> Vec<(u64, UploadReason)> {
        messages
            .iter()
            .filter_map(|message| match message {
                ToHost::Retrieve { handle, reason } => Some((handle.0, *reason)),
                _ => None,
            })
            .collect()
    }
}

pub(super) fn list(context: u64, text: &'static [u8]) -> NetBufferList {
    NetBufferList::from_mdl(context, Bytes::from_static(text))
}

// CH-TRM-2, -4, -7: one tree uploads a neighbor with all its dependents. Later frames are passed to the host.
#[test]
fn one_tree_uploads_all_objects() {
    let mut bench = Bench::new(10);
    let (n, p, tcps) = bench.offload(&[80, 81]);
    bench.now += Duration::from_secs(2);
    let (tree, messages) = bench.terminate(terminate_tree(Some(n), Some(p), &tcps));
    assert_eq!(statuses(&tree), [NdisStatus::SUCCESS; 4]);
    let ObjectNode::Object { payload: Some(delegated), .. } = tree[0].payload else {
        panic!("the neighbor's state is missing")
    };
    assert_eq!(delegated.nic_reachability_delta, 2_000);
    assert!(messages.is_empty(), "{messages:?}");
    assert_eq!(bench.client().uploaded, [OffloadHandle(80), OffloadHandle(81)]);
    assert!(bench.client().events.is_empty(), "uploaded, not released");
    let objects = bench.engine.objects();
    assert_eq!((objects.neighbors(), objects.paths()), (0, 0));
    assert!(bench.engine.connections().is_empty());
    bench.arrives(from_peer(80, 5000, 1000, b"yours"));
    bench.poll();
    assert!(matches!(bench.host_messages()[..], [ToHost::Frame { .. }]));
    assert!(bench.client().received.is_empty());
    assert_eq!(bench.engine.stats().terminates, 2);
}

/// Returns the first and the last cell of a row.
fn ends(line: &str) -> (&str, &str) {
    let (first, rest) = line.split_once(',').unwrap();
    (first, rest.rsplit_once(',').unwrap().1)
}

// The trace marks the time in the host stack: the last row before an upload, and the first one after the next offload.
#[test]
fn upload_is_traced() {
    let mut bench = Bench::new(10);
    let file = Shared::default();
    bench.engine.start_trace(Box::new(file.clone())).unwrap();
    let (_, _, tcps) = bench.offload(&[80]);
    bench.now += Duration::from_secs(2);
    bench.upload(tcps[0]);
    bench.now += Duration::from_secs(1);
    bench.initiate(80, 80);
    bench.poll();
    drop(bench.engine);
    let text = String::from_utf8(file.0.lock().unwrap().clone()).unwrap();
    let rows: Vec<_> = text.lines().skip(1).map(ends).collect();
    let expected = [("1000", "offloaded"), ("2001000", "in_host"), ("3001000", "offloaded")];
    assert_eq!(rows, expected, "{text}");
}

// The connection of the last frame is checked first for the next frame. Frames of a removed connection are passed to
// the host, even if its slot is reused.
#[test]
fn connection_is_found_after_frame_of_another_connection() {
    let mut bench = Bench::new(10);
    let (_, _, tcps) = bench.offload(&[80, 81]);
    for (port, seq, text) in
        [(80, 5000, b"a"), (81, 5000, b"b"), (81, 5001, b"c"), (80, 5001, b"d")]
    {
        bench.arrives(from_peer(port, seq, 1000, text));
        bench.poll();
    }
    assert_eq!(bench.client().received, b"abcd");
    bench.upload(tcps[0]);
    bench.arrives(from_peer(80, 5002, 1000, b"x"));
    bench.poll();
    assert!(matches!(bench.host_messages()[..], [ToHost::Frame { .. }]));
    bench.initiate(82, 82);
    bench.poll();
    bench.host_messages();
    bench.arrives(from_peer(80, 5002, 1000, b"x"));
    bench.arrives(from_peer(82, 5000, 1000, b"e"));
    bench.poll();
    assert!(matches!(bench.host_messages()[..], [ToHost::Frame { .. }]));
    assert_eq!(bench.client().received, b"abcde");
    assert_eq!(bench.engine.stats().rx_segments, 5);
}

// CH-TRM-2: an object with dependents is not removed. CH-TREE-10: a stale name fails with FAILURE, even if its table
// entry is reused.
#[test]
fn objects_with_dependents_and_stale_names_fail() {
    let mut bench = Bench::new(10);
    let (n, p, tcps) = bench.offload(&[80, 81]);
    let (failure, success) = (NdisStatus::FAILURE, NdisStatus::SUCCESS);
    let (tree, _) = bench.terminate(terminate_tree(Some(n), Some(p), &tcps[..1]));
    assert_eq!(statuses(&tree), [failure, failure, success]);
    let (tree, _) = bench.terminate(terminate_tree(Some(n), None, &[]));
    assert_eq!(statuses(&tree), [failure, success]);
    let (tree, _) = bench.terminate(terminate_tree(Some(n), Some(p), &tcps));
    assert_eq!(
        statuses(&tree),
        [success, success, failure, success],
        "the first was uploaded before"
    );

    let (n2, p2, tcps2) = bench.offload(&[80, 81]);
    assert_eq!((n2.index, p2.index), (n.index, p.index));
    let (tree, _) = bench.terminate(terminate_tree(Some(n), Some(p), &tcps));
    assert_eq!(statuses(&tree), [failure; 4]);
    assert_eq!(bench.engine.connections().len(), 2);
    let (tree, _) = bench.terminate(terminate_tree(Some(n2), Some(p2), &tcps2));
    assert_eq!(statuses(&tree), [success; 4]);
}

// CH-TRM-3 to -6, -11, CH-SNB-1 to -4: some sent data is acknowledged, received data is buffered, an ACK is due, a
// disconnect pending. The ACK is sent, the disconnect completes with UPLOAD_IN_PROGRESS, and lists are returned
// unchanged.
#[test]
fn terminate_returns_pending_state() {
    let mut bench = Bench::new(10);
    let (_, _, tcps) = bench.offload(&[80]);
    let mut split = NetBufferList::new(2);
    for part in [&b"cd"[..], b"", b"ef"] {
        split.net_buffers.push(Bytes::from_static(part).into());
    }
    bench.io(80).send([list(1, b"ab"), split, list(3, b"gh")].into());
    bench.poll();
    bench.client().takes = 3;
    bench.arrives(from_peer(80, 5000, 1003, b"hello"));
    bench.poll();
    assert_eq!(bench.client().completed.iter().map(|list| list.context).collect::<Vec<_>>(), [1]);
    bench.io(80).disconnect(Disconnect::Graceful, list(9, b"bye"));
    bench.sent();

    let (object, messages) = bench.upload(tcps[0]);
    assert!(messages.is_empty(), "{messages:?}");
    let sent = bench.sent();
    assert_eq!(sent.len(), 1, "the ACK and nothing else");
    assert_eq!(tcp_of(&sent[0]), (1008, 5005, Vec::new()));
    let done: Vec<_> = bench.client().disconnected.iter().map(|l| (l.context, l.status)).collect();
    assert_eq!(done, [(9, NdisStatus::UPLOAD_IN_PROGRESS)]);
    assert_eq!(bench.client().completed.len(), 1, "sends complete in the host");
    assert_eq!(bench.client().uploaded, [OffloadHandle(80)]);

    let delegated = object.tcp.delegated;
    assert_eq!(delegated.state, TcpPhase::FinWait1);
    let edges = (delegated.snd_una.0, delegated.snd_nxt.0, delegated.snd_max.0);
    assert_eq!((edges, delegated.rcv_nxt.0), ((1003, 1008, 1008), 5005));
    let lists: Vec<_> =
        object.send_data.iter().map(|list| (list.context, list.status, list.to_vec())).collect();
    let pending = NdisStatus::PENDING;
    assert_eq!(
        lists,
        [
            (2, pending, b"def".to_vec()),
            (3, pending, b"gh".to_vec()),
            (ConnectionState::DISCONNECT_DATA, pending, b"bye".to_vec()),
        ]
    );
    assert_eq!(object.buffered_data.concat(), b"lo");
    assert_eq!(object.client, Clients::FIRST);
}

// CH-SNB-4, CH-SNC-3: offloaded again, the same lists complete once each and in order. The disconnect's data completes
// no list, because its list has completed before.
#[test]
fn uploaded_connection_can_be_offloaded_again() {
    let mut bench = Bench::new(10);
    let (n, p, tcps) = bench.offload(&[80]);
    bench.io(80).send([list(1, b"ab"), list(2, b"cd")].into());
    bench.io(80).disconnect(Disconnect::Graceful, list(9, b"bye"));
    let (object, _) = bench.upload(tcps[0]);
    assert!(bench.sent().is_empty(), "the terminate precedes transmission");
    let again = Block::new(OffloadHandle(80), InitiateNode::new(object));
    let tree = bench.initiate_tree(vec![linker(n, vec![linker(p, vec![again])])]);
    assert_eq!(statuses(&tree), [NdisStatus::SUCCESS; 3]);
    let stream: Vec<u8> = bench.sent().iter().flat_map(|frame| tcp_of(frame).2).collect();
    assert_eq!(stream, b"abcdbye");
    bench.arrives(from_peer(80, 5000, 1008, b""));
    bench.poll();
    let done: Vec<_> = bench.client().completed.iter().map(|l| (l.context, l.status)).collect();
    assert_eq!(done, [(1, NdisStatus::SUCCESS), (2, NdisStatus::SUCCESS)]);
    assert_eq!(bench.client().disconnected.len(), 1);
}

// CH §8.1: a due RST is sent before the upload, which then fails.
#[test]
fn aborted_connection_has_no_state() {
    let mut bench = Bench::new(10);
    let (_, _, tcps) = bench.offload(&[80]);
    bench.io(80).disconnect(Disconnect::Abortive, NetBufferList::new(7));
    let (tree, messages) = bench.terminate(terminate_tree(None, None, &tcps));
    assert_eq!(tree[0].dependents[0].dependents[0].status, NdisStatus::FAILURE);
    assert!(matches!(messages[..], [ToHost::Released { .. }]), "{messages:?}");
    let sent = bench.sent();
    assert!(sent.len() == 1 && Flags(sent[0][47]).contains(Flags::RST));
    assert_eq!(bench.client().disconnected[0].status, NdisStatus::SUCCESS);
    assert_eq!(bench.client().events, [ConnectionEvent::Released]);
    assert!(bench.client().uploaded.is_empty());
}

fn urgent(mut frame: Vec<u8>) -> Vec<u8> {
    frame[47] |= Flags::URG.0;
    let sum = u16::from_be_bytes([frame[50], frame[51]]);
    frame[50..52].copy_from_slice(&(sum - u16::from(Flags::URG.0)).to_be_bytes());
    frame
}

// CH §9.3: nothing is acknowledged from the urgent segment on. Its frames, up to the limit, are passed to the host
// after the state.
#[test]
fn urgent_data_is_kept_for_host() {
    let mut bench = Bench::new(10);
    let (_, _, tcps) = bench.offload(&[80, 81]);
    bench.arrives(from_peer(80, 5000, 1000, b"before"));
    bench.poll();
    bench.arrives(urgent(from_peer(80, 5006, 1000, b"urgent")));
    for index in 0..HELD_FRAMES_MAX as u32 {
        bench.arrives(from_peer(80, 5012 + index, 1000, b"x"));
    }
    bench.now += Duration::from_millis(500);
    while bench.poll() {}
    assert!(bench.sent().is_empty(), "no ACK");
    let messages = bench.host_messages();
    assert_eq!(Bench::retrieved(&messages), [(80, UploadReason::ReceivedUrgentData)]);
    assert_eq!(messages.len(), 1, "{messages:?}");
    let stopped = ConnectionEvent::Retrieve(UploadReason::ReceivedUrgentData);
    assert_eq!(bench.client().events, [stopped]);
    let stats = bench.engine.stats();
    assert_eq!((stats.rx_held, stats.rx_held_dropped), (HELD_FRAMES_MAX as u64, 1));
    // CH-FWD: segments forwarded by the host remain the host's.
    let frame = urgent(from_peer(80, 5006, 1000, b"urgent"));
    bench.port.forward(Forward { connection: tcps[0], frame, status: NdisStatus::PENDING });
    let frame = urgent(from_peer(81, 5000, 1000, b"urgent"));
    bench.port.forward(Forward { connection: tcps[1], frame, status: NdisStatus::PENDING });
    bench.poll();
    for message in bench.host_messages() {
        if let ToHost::ForwardComplete(forward) = message {
            assert_eq!(forward.status, NdisStatus::UPLOAD_IN_PROGRESS);
        }
    }

    let (object, messages) = bench.upload(tcps[0]);
    assert_eq!(object.tcp.delegated.rcv_nxt.0, 5006);
    let frames: Vec<_> = messages
        .iter()
        .map(|message| match message {
            ToHost::Frame { data, checksum_valid: true } => tcp_of(data).0,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        frames,
        (0..HELD_FRAMES_MAX as u32)
            .map(|index| 5006 + index + 5 * u32::from(index > 0))
            .collect::<Vec<_>>()
    );
    assert_eq!(bench.client().received, b"before");
}

// CH §9.3: the bytes of kept frames are bounded too.
#[test]
fn held_bytes_are_bounded() {
    let mut bench = Bench::new(10);
    bench.offload(&[80]);
    bench.arrives(urgent(from_peer(80, 5000, 1000, b"urgent")));
    let large = from_peer(80, 5006, 1000, &vec![1; 60_000]);
    let room = HELD_BYTES_MAX / large.len();
    for _ in 0..=room {
        bench.arrives(large.clone());
    }
    bench.poll();
    let stats = bench.engine.stats();
    assert_eq!((stats.rx_held, stats.rx_held_dropped), (1 + room as u64, 1));
}

// CH §5.6: an operation detects the failure, fails, and raises Retrieve, then Abort. At terminate requests complete
// with REQUEST_ABORTED, and there is no state (CH-TRM-9). The failure is reported once (CH §13 #26).
#[test]
fn hardware_failure_aborts_connection() {
    for terminate_first in [false, true] {
        let mut bench = Bench::new(10);
        let (_, _, tcps) = bench.offload(&[80, 81]);
        bench.io(80).send([list(1, b"lost")].into());
        bench.poll();
        assert!(bench.engine.inject_failure(OffloadHandle(80)));
        assert!(bench.client().events.is_empty());
        let mut messages = Vec::new();
        if !terminate_first {
            let tree = vec![node(
                None,
                (),
                vec![node(None, (), vec![node(Some(tcps[0]), (), Vec::new())])],
            )];
            bench.port.invalidate(tree);
            bench.poll();
            messages.extend(bench.host_messages());
            let Some(ToHost::InvalidateComplete(tree)) = messages.pop() else {
                panic!("{messages:?}")
            };
            assert_eq!(tree[0].dependents[0].dependents[0].status, NdisStatus::FAILURE);
        }
        let (tree, rest) = bench.terminate(terminate_tree(None, None, &tcps));
        messages.extend(rest);
        assert_eq!(statuses(&tree)[2..], [NdisStatus::FAILURE, NdisStatus::SUCCESS]);
        let failure = UploadReason::HardwareFailure;
        assert_eq!(Bench::retrieved(&messages), [(80, failure)]);
        assert!(
            matches!(messages[1..], [ToHost::Released { handle: OffloadHandle(80) }]),
            "{messages:?}"
        );
        assert_eq!(
            bench.client().events,
            [ConnectionEvent::Retrieve(failure), ConnectionEvent::Abort, ConnectionEvent::Released]
        );
        let done: Vec<_> = bench.client().completed.iter().map(|l| (l.context, l.status)).collect();
        assert_eq!(done, [(1, NdisStatus::REQUEST_ABORTED)]);
        assert_eq!(bench.client().uploaded, [OffloadHandle(81)]);
    }
}
