//! More out-of-order blocks than fit into smoltcp.

use alloc::{vec, vec::Vec};
use core::ops::Range;

use bytes::Bytes;
use offload_engine::{
    chimney::client::OffloadHandle,
    state::ConnectionState,
    tcp::{SeqNum, Timestamps},
    time::Duration,
};

use super::{
    bench::Bench,
    offloading::pattern,
    uploading::{copy, offloaded},
};
use crate::{
    socket::Request,
    wire::{self, Acknowledgment, Frame, FrameAddresses},
};

/// Size of the alternating gaps and blocks, in bytes.
const STEP: u32 = 10;
const BLOCKS: u32 = 50;

/// Blocks of a stream that begins at `first`, each in two pieces.
fn blocks(first: SeqNum, stream: &[u8]) -> Vec<(SeqNum, Bytes)> {
    let pieces = (0..BLOCKS).flat_map(|block| {
        let at = (2 * block + 1) * STEP;
        [at..at + 4, at + 4..at + STEP]
    });
    let piece = |range: Range<u32>| {
        (
            first + range.start,
            Bytes::copy_from_slice(&stream[range.start as usize..range.end as usize]),
        )
    };
    pieces.map(piece).collect()
}

/// Delivers these bytes of the peer's stream.
fn deliver(bench: &mut Bench, state: &ConnectionState, stream: &[u8], range: Range<u32>) {
    let path = &state.path.constant;
    let (remote, local) = (state.tcp.constant.remote_port, state.tcp.constant.local_port);
    let way = FrameAddresses {
        macs: (state.neighbor.cached.dl_destination_address, bench.nodes[1].host.config.mac),
        from: (path.destination_address, remote).into(),
        to: (path.source_address, local).into(),
    };
    let delegated = &state.tcp.delegated;
    let ack = Acknowledgment {
        seq: delegated.rcv_nxt + range.start,
        ack: delegated.snd_una,
        window: 40_000,
        timestamps: Some(Timestamps { value: delegated.ts_recent, echo: delegated.ts_time }),
        ece: false,
        fin: false,
    };
    let payload = &stream[range.start as usize..range.end as usize];
    bench.nodes[1].frame(wire::data_frame(way, 64, &ack, payload).unwrap());
    bench.run(Duration::from_millis(20));
}

/// Acknowledgments of the second host as offsets in the stream, in order.
fn acknowledged(bench: &Bench, first: SeqNum) -> Vec<u32> {
    let acks = bench.nodes[1].sent.iter().filter_map(|frame| match wire::parse(frame) {
        Frame::Tcp(segment) => u32::try_from(segment.ack.distance(first)).ok(),
        _ => None,
    });
    acks.collect()
}

/// The second host uploads a connection with all blocks; frames of its peer arrive only through [`deliver`].
fn uploaded_with_blocks() -> (Bench, OffloadHandle, ConnectionState, Vec<u8>) {
    let (mut bench, handles, mut state) = offloaded();
    bench.passes = |_, _| false;
    let stream = pattern((2 * BLOCKS * STEP) as usize, 3);
    state.out_of_order = blocks(state.tcp.delegated.rcv_nxt, &stream);
    bench.nodes[1].port.request(Request::Upload { handle: handles[1] });
    bench.settle();
    bench.nodes[1].terminated(|_| Some(copy(&state)));
    bench.settle();
    bench.nodes[1].sent.clear();
    (bench, handles[1], state, stream)
}

/// Bytes before, in and after a gap.
fn gap(index: u32, more: u32) -> Range<u32> {
    (2 * index * STEP).saturating_sub(more)..(2 * index + 1) * STEP + more
}

// RFC 2018 §8: data reported by SACK are not requested again, and no acknowledgment ends within them.
#[test]
fn excess_blocks_are_stored() {
    for more in [0, 3, 7] {
        let (mut bench, _, state, stream) = uploaded_with_blocks();
        let first = state.tcp.delegated.rcv_nxt;
        // A segment that does not fit into smoltcp is retransmitted.
        for index in [BLOCKS - 1, BLOCKS - 3, 20, 33, 34, 1] {
            deliver(&mut bench, &state, &stream, gap(index, more));
        }
        for index in 0..BLOCKS {
            deliver(&mut bench, &state, &stream, gap(index, more));
        }
        assert!(bench.nodes[1].data() == stream, "{} bytes", bench.nodes[1].data().len());
        let acks = acknowledged(&bench, first);
        assert!(acks.iter().all(|ack| ack % (2 * STEP) == 0), "{acks:?}");
        assert_eq!(acks.last(), Some(&(2 * BLOCKS * STEP)));
        assert!(bench.nodes[1].host.connections.values().all(|of| of.receive.beyond.is_empty()));
    }
}

// They are offloaded again with the others, even before they fit into smoltcp.
#[test]
fn stored_blocks_are_offloaded() {
    let (mut bench, handle, state, stream) = uploaded_with_blocks();
    for index in [0, 1, 2, BLOCKS - 1] {
        deliver(&mut bench, &state, &stream, gap(index, 0));
    }
    bench.nodes[1].port.request(Request::Offload { handle });
    bench.settle();
    let again = bench.nodes[1].initiates.pop_front().expect("it is offloaded").state;
    let rcv_nxt = again.tcp.delegated.rcv_nxt;
    assert_eq!(rcv_nxt, state.tcp.delegated.rcv_nxt + 6 * STEP);
    let mut has = vec![false; stream.len()];
    let mut last = rcv_nxt;
    for (seq, data) in &again.out_of_order {
        assert!(seq.is_after(last), "in order");
        last = *seq;
        let at = seq.distance(state.tcp.delegated.rcv_nxt) as usize;
        assert_eq!(data[..], stream[at..at + data.len()]);
        has[at..at + data.len()].fill(true);
    }
    for block in 3..BLOCKS {
        let at = ((2 * block + 1) * STEP) as usize;
        assert!(has[at..at + STEP as usize].iter().all(|has| *has), "block {block}");
    }
}
