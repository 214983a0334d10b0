//! Memory of received data in a stream.

use core::ops::Range;
use std::{io, sync::Arc, vec::Vec};

use offload_engine::{
    link::{
        Link, MemoryLink, MemoryLinkOptions, RxBatch, RxFrame, memory_link_pair,
        wrapper::{LinkWrapper, wraps},
    },
    sync::Mutex,
};

use super::*;
use crate::{node::Core, simulation::Pair, socket::SEND_CREDIT_BYTES};

// A reader that keeps up is given the same two blocks repeatedly. For a slower one each block has its own memory, and
// no byte changes.
#[test]
fn blocks_are_reused_after_all_pieces_are_dropped() {
    let mut blocks = Blocks::default();
    let data: Vec<u8> = (0..50_000u32).map(|n| n as u8).collect();
    let mut places = std::collections::BTreeSet::new();
    for round in 0..100 {
        let piece = blocks.copy(&data[round..]);
        assert_eq!(piece, data[round..]);
        places.insert(piece.as_ptr() as usize / BLOCK_BYTES.end());
    }
    assert!(places.len() <= 3, "one block, which may straddle: {places:?}");
    let kept: Vec<Bytes> = (0..40).map(|round| blocks.copy(&data[round..])).collect();
    for (round, piece) in kept.iter().enumerate() {
        assert_eq!(piece, &data[round..]);
    }
    assert!(blocks.full.len() <= BLOCKS_MAX);
    drop(kept);
    let small = blocks.copy(b"x");
    assert_eq!(&small[..], b"x");
}

// Data larger than any block, and the minimum.
#[test]
fn block_size_fits_the_data() {
    let mut blocks = Blocks::default();
    assert_eq!(&blocks.copy(b"few")[..], b"few");
    assert_eq!(blocks.filling.capacity() + 3, *BLOCK_BYTES.start());
    let large = std::vec![7; BLOCK_BYTES.end() + 1];
    assert_eq!(blocks.copy(&large), large);
}

/// Link that records the memory of the received frames.
struct RecordingLink {
    link: MemoryLink,
    places: Places,
}

type Places = Arc<Mutex<Vec<Range<usize>>>>;

impl LinkWrapper for RecordingLink {
    wraps!(MemoryLink, link);

    fn receive(&mut self, now: Instant, batch: &mut RxBatch) -> io::Result<usize> {
        let count = self.link.receive(now, batch)?;
        let place = |frame: RxFrame<'_>| {
            let begin = frame.data.as_ptr() as usize;
            begin..begin + frame.data.len()
        };
        self.places.lock().extend(batch.frames().map(place));
        Ok(count)
    }
}

const LIMIT: Instant = Instant::from_millis(60_000);

fn streams(core: &mut Core) -> &mut Streams {
    core.clients.first_mut()
}

/// Two nodes on these links, and an offloaded connection between them.
fn connected(
    near: impl Link + 'static,
    far: impl Link + 'static,
) -> (Pair<Core>, [OffloadHandle; 2]) {
    let mut pair = Pair::stations((near, far));
    let ends = pair.connect(LIMIT);
    pair.until_offloaded(LIMIT, ends);
    (pair, ends)
}

/// Reads all available data.
fn read(pair: &mut Pair<Core>, handle: OffloadHandle, pieces: &mut Vec<Bytes>) {
    pieces.extend(core::iter::from_fn(|| pair.receive(1, handle)));
}

// CH-IND-5: data read from a GSO packet are slices of the buffer that the link has read them into, and are unchanged
// until dropped.
#[test]
fn gso_packet_is_read_in_place() {
    let (near, link) = memory_link_pair(MemoryLinkOptions::default());
    let places = Places::default();
    let (mut pair, [near, far]) = connected(near, RecordingLink { link, places: places.clone() });
    let sent: Vec<u8> = (0..RECEIVE_QUEUE_BYTES_MAX).map(|n| (n ^ (n >> 8)) as u8).collect();
    pair.send(0, near, sent.clone().into());
    let mut pieces: Vec<Bytes> = Vec::new();
    pair.run(LIMIT, |pair| {
        read(pair, far, &mut pieces);
        (pieces.iter().map(Bytes::len).sum::<usize>() == sent.len()).then_some(())
    })
    .unwrap();

    let places = places.lock();
    let is_in_place = |piece: &Bytes| {
        let (begin, end) = (piece.as_ptr() as usize, piece.as_ptr() as usize + piece.len());
        places.iter().any(|place| place.start <= begin && end <= place.end)
    };
    let large: Vec<_> = pieces.iter().filter(|piece| piece.len() >= KEEP_BYTES_MIN).collect();
    assert!(2 * large.iter().map(|piece| piece.len()).sum::<usize>() > sent.len());
    assert!(large.iter().all(|piece| is_in_place(piece)), "a large piece was copied");
    assert_eq!(pieces.concat(), sent, "a buffer with live pieces was overwritten");
}

// Completion order: lists that the client sent just before a reset, and that no stack has received, are newer than
// those of the host.
#[test]
fn lists_of_reset_connection_are_returned_in_order() {
    let (near, far) = memory_link_pair(MemoryLinkOptions::default());
    let (mut pair, [handle, _]) = connected(near, far);
    streams(&mut pair.a).upload(handle);
    pair.run(LIMIT, |pair| {
        (streams(&mut pair.a).status(handle)?.state == OffloadState::InHost).then_some(())
    })
    .unwrap();
    let data = Bytes::from(std::vec![0; SEND_CREDIT_BYTES]);
    // The host accepts the first; the others exceed the credit.
    let sent: Vec<u64> = (0..3).map(|_| pair.send(0, handle, data.clone())).collect();
    let (now, Core { clients, engine, .. }) = (pair.now, &mut pair.a);
    clients.first_mut::<Streams>().abort(now, engine.connections(), handle);
    let mut back = Vec::new();
    pair.run(LIMIT, |pair| {
        let completed = streams(&mut pair.a).completed(handle).into_iter();
        back.extend(completed.map(|list| list.context));
        (back.len() == sent.len()).then_some(())
    })
    .unwrap();
    assert_eq!(back, sent);
    assert_eq!(streams(&mut pair.a).status(handle).unwrap().unacknowledged, 0);
}

/// Uploads the second node's connection and offloads it again.
fn upload_and_offload(pair: &mut Pair<Core>, handle: OffloadHandle) {
    let reach = |pair: &mut Pair<Core>, state| {
        let is_there = |status: StreamStatus| (status.state == state).then_some(());
        pair.run(LIMIT, |pair| streams(&mut pair.b).status(handle).and_then(is_there)).unwrap();
    };
    streams(&mut pair.b).upload(handle);
    reach(pair, OffloadState::InHost);
    streams(&mut pair.b).offload(handle);
    reach(pair, OffloadState::Offloaded);
}

// CH-RCV-1, -4, -8: receive requests do not change the stream, which arrives in pieces of their size while offloaded.
// This holds over any migrations and pauses of the reader; the FIN completes empty requests.
#[test]
fn receive_requests_are_filled() {
    const BYTES: usize = 3 * RECEIVE_QUEUE_BYTES_MAX;
    const REQUEST_BYTES: usize = 700;
    let (near, far) = memory_link_pair(MemoryLinkOptions::default());
    let (mut pair, [near, far]) = connected(near, far);
    streams(&mut pair.b).post_receives(REQUEST_BYTES);
    let sent: Vec<u8> = (0..BYTES).map(|n| (n ^ (n >> 8)) as u8).collect();
    let mut pieces: Vec<Bytes> = Vec::new();
    for (round, part) in sent.chunks(BYTES / 3).enumerate() {
        // The first upload precedes the stream's first request.
        upload_and_offload(&mut pair, far);
        let (first, before) = (pieces.len(), part.len() * round);
        pair.send(0, near, Bytes::copy_from_slice(part));
        if round == 2 {
            // Nothing is read, so all data that fits is held.
            pair.run(LIMIT, |pair| {
                (streams(&mut pair.b).status(far)?.unread >= part.len() - REQUEST_BYTES)
                    .then_some(())
            })
            .unwrap();
        }
        pair.run(LIMIT, |pair| {
            read(pair, far, &mut pieces);
            (pieces.iter().map(Bytes::len).sum::<usize>() == before + part.len()).then_some(())
        })
        .unwrap();
        assert!(pieces[first..].iter().all(|piece| piece.len() <= REQUEST_BYTES));
        assert!(pieces.len() - first < 2 * part.len() / REQUEST_BYTES, "most are full");
    }
    assert_eq!(pieces.concat(), sent);
    let (now, Core { clients, engine, .. }) = (pair.now, &mut pair.a);
    clients.first_mut::<Streams>().shutdown(now, engine.connections(), near);
    pair.run(LIMIT, |pair| streams(&mut pair.b).status(far)?.peer_closed.then_some(())).unwrap();
    let stream = &streams(&mut pair.b).streams[&far];
    assert_eq!((stream.receives_posted, stream.status.unread), (0, 0));
    // No piece holds the memory of a request.
    assert_eq!(stream.request_memory.len(), RECEIVES_POSTED);
}

// While too much data is unread no request is posted; requests are posted again with the next data for which there is
// room.
#[test]
fn receive_requests_pause() {
    const REQUEST_BYTES: usize = 700;
    // The request that exceeds the limit, and the one posted with it.
    const FILLED: usize = RECEIVE_QUEUE_BYTES_MAX / REQUEST_BYTES + 2;
    let (near, far) = memory_link_pair(MemoryLinkOptions::default());
    let (mut pair, [near, far]) = connected(near, far);
    streams(&mut pair.b).post_receives(REQUEST_BYTES);
    upload_and_offload(&mut pair, far);
    let state = |pair: &mut Pair<Core>| {
        let stream = &streams(&mut pair.b).streams[&far];
        (stream.receives_posted, stream.status.unread)
    };
    pair.send(0, near, std::vec![1; FILLED * REQUEST_BYTES].into());
    let is_full =
        |pair: &mut Pair<Core>| (state(pair) == (0, FILLED * REQUEST_BYTES)).then_some(());
    pair.run(LIMIT, is_full).unwrap();
    // Not so much that refused data would be accepted again.
    while state(&mut pair).1 > RECEIVE_QUEUE_BYTES_MAX * 3 / 4 {
        pair.receive(1, far).unwrap();
    }
    let unread = state(&mut pair).1;
    pair.send(0, near, Bytes::from_static(b"more"));
    let is_posted =
        |pair: &mut Pair<Core>| (state(pair) == (RECEIVES_POSTED, unread + 4)).then_some(());
    pair.run(LIMIT, is_posted).unwrap();
}
