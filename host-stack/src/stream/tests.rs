//! What a stream holds of what it has received, and where.

use core::ops::Range;
use std::{boxed::Box, io, os::fd::BorrowedFd, sync::Arc, vec::Vec};

use offload_engine::{
    engine::EngineConfig,
    link::{
        Link, LinkCapabilities, LinkStats, MemoryLink, MemoryLinkOptions, RxBatch, RxFrame,
        TxFrame, TxOutcome, memory_link_pair,
    },
    state::MacAddress,
    sync::Mutex,
};

use super::*;
use crate::{host::HostConfig, node::Core, simulation::Pair, socket::SEND_CREDIT_BYTES};

// A reader that keeps up is given the same two blocks again and again; one that does not gets memory of its own
// for each, and every byte stays what it was.
#[test]
fn blocks_are_filled_anew_when_all_their_pieces_are_gone() {
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

// What is larger than any block, and the least.
#[test]
fn blocks_fit_what_comes() {
    let mut blocks = Blocks::default();
    assert_eq!(&blocks.copy(b"few")[..], b"few");
    assert_eq!(blocks.filling.capacity() + 3, *BLOCK_BYTES.start());
    let large = std::vec![7; BLOCK_BYTES.end() + 1];
    assert_eq!(blocks.copy(&large), large);
}

/// A link that remembers where the frames lie that it has received.
struct Watched {
    link: MemoryLink,
    places: Places,
}

type Places = Arc<Mutex<Vec<Range<usize>>>>;

impl Link for Watched {
    fn capabilities(&self) -> LinkCapabilities {
        self.link.capabilities()
    }
    fn receive(&mut self, now: Instant, batch: &mut RxBatch) -> io::Result<usize> {
        let count = self.link.receive(now, batch)?;
        let place = |frame: RxFrame<'_>| {
            let begin = frame.data.as_ptr() as usize;
            begin..begin + frame.data.len()
        };
        self.places.lock().extend(batch.frames().map(place));
        Ok(count)
    }
    fn transmit(&mut self, now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        self.link.transmit(now, frame)
    }
    fn flush(&mut self, now: Instant) {
        self.link.flush(now);
    }
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    fn poll_at(&self) -> Option<Instant> {
        self.link.poll_at()
    }
    fn stats(&self) -> LinkStats {
        self.link.stats()
    }
}

fn node(number: u8, link: Box<dyn Link>) -> Core {
    let mac = MacAddress([2, 0, 0, 0, 0, number]);
    let addresses = std::vec![([10, 0, 0, number].into(), 24)];
    let host = HostConfig { mac, addresses, ..HostConfig::default() };
    let client = Streams::new;
    Core::new(link, EngineConfig::new(mac), host, client).unwrap()
}

// CH-IND-5: what is read of a super-segment is its bytes in the buffer that the link has read them into, and stays
// them while nobody drops it.
#[test]
fn a_super_segment_is_read_where_it_has_arrived() {
    const LIMIT: Instant = Instant::from_millis(60_000);
    const TIMEOUT: Duration = Duration::from_secs(60);
    let (near, link) = memory_link_pair(MemoryLinkOptions::default());
    let places = Places::default();
    let far = Watched { link, places: places.clone() };
    let mut pair = Pair::new(node(1, Box::new(near)), node(2, Box::new(far)));
    let address = SocketAddr::from(([10, 0, 0, 2], 7));
    let listener = pair.b.clients.first_mut::<Streams>().listen(address, 1);
    let listens = |pair: &mut Pair<Core>| pair.b.clients.first_mut::<Streams>().listening(listener);
    pair.run(LIMIT, listens).unwrap().unwrap();
    let near = pair.a.clients.first_mut::<Streams>().connect(None, address, TIMEOUT);
    let far =
        pair.run(LIMIT, |pair| pair.b.clients.first_mut::<Streams>().accept(listener)).unwrap();
    let offloaded = |streams: &Streams, handle| {
        streams.status(handle).is_some_and(|status| status.state == OffloadState::Offloaded)
    };
    let both = |pair: &mut Pair<Core>| {
        let both =
            offloaded(pair.a.clients.first(), near) && offloaded(pair.b.clients.first(), far);
        both.then_some(())
    };
    pair.run(LIMIT, both).unwrap();

    let sent: Vec<u8> = (0..RECEIVE_QUEUE_BYTES_MAX).map(|n| (n ^ (n >> 8)) as u8).collect();
    let (now, data) = (pair.now, Bytes::from(sent.clone()));
    pair.a.clients.first_mut::<Streams>().send(now, pair.a.engine.connections(), near, data);
    let mut pieces: Vec<Bytes> = Vec::new();
    let all = |pair: &mut Pair<Core>| {
        let (now, b) = (pair.now, &mut pair.b);
        while let Some(piece) =
            b.clients.first_mut::<Streams>().receive(now, b.engine.connections(), far)
        {
            pieces.push(piece);
        }
        (pieces.iter().map(Bytes::len).sum::<usize>() == sent.len()).then_some(())
    };
    pair.run(LIMIT, all).unwrap();

    let places = places.lock();
    let is_in_place = |piece: &Bytes| {
        let (begin, end) = (piece.as_ptr() as usize, piece.as_ptr() as usize + piece.len());
        places.iter().any(|place| place.start <= begin && end <= place.end)
    };
    let large: Vec<_> = pieces.iter().filter(|piece| piece.len() >= KEEP_BYTES_MIN).collect();
    assert!(2 * large.iter().map(|piece| piece.len()).sum::<usize>() > sent.len());
    assert!(large.iter().all(|piece| is_in_place(piece)), "a large piece was copied");
    assert_eq!(pieces.concat(), sent, "a buffer was read into that somebody has a piece of");
}

// "In order": what a client has sent just before it resets its connection, and nobody was given, is younger than what
// the host was given.
#[test]
fn lists_of_a_reset_connection_come_back_in_order() {
    const LIMIT: Instant = Instant::from_millis(60_000);
    let (near, far) = memory_link_pair(MemoryLinkOptions::default());
    let mut pair = Pair::new(node(1, Box::new(near)), node(2, Box::new(far)));
    let address = SocketAddr::from(([10, 0, 0, 2], 7));
    let listener = pair.b.clients.first_mut::<Streams>().listen(address, 1);
    pair.run(LIMIT, |pair| pair.b.clients.first_mut::<Streams>().listening(listener))
        .unwrap()
        .unwrap();
    let handle =
        pair.a.clients.first_mut::<Streams>().connect(None, address, Duration::from_secs(60));
    pair.run(LIMIT, |pair| {
        let status = pair.a.clients.first_mut::<Streams>().status(handle)?;
        (status.connected && status.state == OffloadState::Offloaded).then_some(())
    })
    .unwrap();
    pair.a.clients.first_mut::<Streams>().upload(handle);
    pair.run(LIMIT, |pair| {
        (pair.a.clients.first_mut::<Streams>().status(handle)?.state == OffloadState::InHost)
            .then_some(())
    })
    .unwrap();
    let (now, a) = (pair.now, &mut pair.a);
    let data = Bytes::from(std::vec![0; SEND_CREDIT_BYTES]);
    // The first goes to the host, the others have no credit.
    let sent: Vec<u64> = (0..3)
        .map(|_| {
            a.clients.first_mut::<Streams>().send(now, a.engine.connections(), handle, data.clone())
        })
        .collect();
    a.clients.first_mut::<Streams>().abort(now, a.engine.connections(), handle);
    let mut back = Vec::new();
    pair.run(LIMIT, |pair| {
        back.extend(
            pair.a
                .clients
                .first_mut::<Streams>()
                .completed(handle)
                .into_iter()
                .map(|list| list.context),
        );
        (back.len() == sent.len()).then_some(())
    })
    .unwrap();
    assert_eq!(back, sent);
    assert_eq!(pair.a.clients.first_mut::<Streams>().status(handle).unwrap().unacknowledged, 0);
}
