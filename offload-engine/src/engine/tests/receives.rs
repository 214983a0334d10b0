//! Posted receives through the engine: from the frame to the client, and their completion at a terminate.

use bytes::BytesMut;

use super::*;
use crate::chimney::tree::{Block, ObjectNode};

fn room(context: u64, room: usize) -> ReceiveBufferList {
    ReceiveBufferList::from_mdl(context, BytesMut::zeroed(room))
}

impl Bench {
    fn post(&mut self, chain: impl Into<ReceiveChain>) {
        let now = self.now;
        let mut io = self.engine.connections().get(now, OffloadHandle(80)).unwrap();
        io.post_receive(chain.into());
    }

    /// Returns the requests completed since the last call.
    fn receives(&mut self) -> Vec<(u64, NdisStatus, Vec<u8>)> {
        let bytes = |list: &ReceiveBufferList| list.slices().collect::<Vec<_>>().concat();
        let taken = core::mem::take(&mut self.client().receives);
        taken.iter().map(|list| (list.context, list.status, bytes(list))).collect()
    }
}

// CH-IND-5: part of a large frame can be kept beyond the call, whatever follows it. A small one must be copied.
#[test]
fn indicated_data_can_be_kept() {
    let mut bench = Bench::new(10);
    bench.offload(&[80]);
    bench.client().takes = usize::MAX;
    let mut seq = 5000;
    for (fill, length) in [(1, 40_000), (2, 1000), (3, 50_000)] {
        bench.arrives(from_peer(80, seq, 1000, &vec![fill; length]));
        bench.poll();
        seq += length as u32;
    }
    let kept = &bench.client().kept;
    assert_eq!(kept.iter().map(Bytes::len).collect::<Vec<_>>(), [40_000, 50_000]);
    assert!(kept[0].iter().all(|byte| *byte == 1) && kept[1].iter().all(|byte| *byte == 3));
    assert_eq!((bench.client().indications, bench.client().received.len()), (3, 91_000));
}

// CH-RCV-2, -4, CH-IND-2: requests posted outside an upcall are filled before any data is indicated, from frames and
// from buffered data.
#[test]
fn posted_requests_precede_indications() {
    let mut bench = Bench::new(10);
    bench.offload(&[80]);
    bench.post([room(1, 2), room(2, 3)]);
    bench.client().takes = 0;
    bench.arrives(from_peer(80, 5000, 1000, b"abcdefgh"));
    bench.poll();
    let success = NdisStatus::SUCCESS;
    let full = vec![(1, success, b"ab".to_vec()), (2, success, b"cde".to_vec())];
    assert_eq!(bench.receives(), full);
    assert_eq!((bench.client().indications, bench.client().received.len()), (1, 0), "refused");
    bench.client().takes = usize::MAX;
    bench.post([room(3, 2)]);
    bench.poll();
    assert_eq!(bench.receives(), vec![(3, success, b"fg".to_vec())]);
    assert_eq!(bench.client().received, b"h");
}

// CH §10.6: the engine processes the push timer.
#[test]
fn push_timer_completes_partial_request() {
    let mut bench = Bench::new(10);
    bench.offload(&[80]);
    bench.post([room(1, 20)]);
    bench.arrives(peer_segment(80, 5000, 60_000, |tcp| tcp.ack(1000), b"few"));
    bench.poll();
    // The delayed ACK is due first.
    bench.now = bench.engine.poll_at(&bench.clients).unwrap();
    bench.poll();
    assert!(bench.receives().is_empty());
    bench.now = bench.engine.poll_at(&bench.clients).unwrap();
    assert_eq!(bench.now, Instant::from_millis(501));
    bench.poll();
    assert_eq!(bench.receives(), vec![(1, NdisStatus::SUCCESS, b"few".to_vec())]);
}

// CH-TRM-3, -6, -10: a request posted just before the terminate is filled with buffered data. Later requests are
// returned. Placed data is not uploaded again.
#[test]
fn terminate_completes_receive_requests() {
    let mut bench = Bench::new(10);
    let (_, _, tcps) = bench.offload(&[80]);
    bench.client().takes = 0;
    bench.arrives(from_peer(80, 5000, 1000, b"abcdefgh"));
    bench.poll();
    bench.post([room(1, 3), ReceiveBufferList { no_push: true, ..room(2, 9) }, room(3, 9)]);
    let tcp = Block::new(OffloadHandle(80), ObjectNode::Object { context: tcps[0], payload: None });
    let path = Block::new(OffloadHandle(0), ObjectNode::Placeholder).with(vec![tcp]);
    let tree = vec![Block::new(OffloadHandle(0), ObjectNode::Placeholder).with(vec![path])];
    bench.port.terminate(tree);
    bench.poll();
    let (success, uploading) = (NdisStatus::SUCCESS, NdisStatus::UPLOAD_IN_PROGRESS);
    let expected = vec![
        (1, success, b"abc".to_vec()),
        (2, uploading, b"defgh".to_vec()),
        (3, uploading, b"".to_vec()),
    ];
    assert_eq!(bench.receives(), expected);
    assert_eq!(bench.client().uploaded, [OffloadHandle(80)]);
    let messages: Vec<ToHost> =
        core::iter::from_fn(|| bench.port.from_engine.try_recv().ok()).collect();
    let object = messages.into_iter().find_map(|message| match message {
        ToHost::TerminateComplete(mut tree) => {
            match tree.remove(0).dependents.remove(0).dependents.remove(0).payload {
                ObjectNode::Object { payload, .. } => payload,
                ObjectNode::Placeholder => None,
            }
        }
        _ => None,
    });
    let object = object.expect("a state");
    assert!(object.buffered_data.is_empty());
    assert_eq!(object.tcp.delegated.rcv_nxt, SeqNum(5008));
}
