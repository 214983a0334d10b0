//! Transmission: a full link, and GSO packets segmented for a plain link.

use super::*;

// A full link delays frames. It neither drops nor reorders them.
#[test]
fn full_link_delays_frames() {
    let mut bench = Bench::new(10);
    bench.initiate(1, 80);
    bench.poll();
    bench.sent();
    bench.wire.lock().unwrap().full = true;
    let now = bench.now;
    for text in [&b"one"[..], b"two"] {
        let list = NetBufferList::from_mdl(1, Bytes::from_static(text));
        bench.engine.connections().get(now, OffloadHandle(1)).unwrap().send([list].into());
        bench.engine.flush(now, &mut bench.clients);
    }
    assert!(bench.sent().is_empty());
    assert!(bench.engine.awaits_writable());
    // The link has room again. Data posted before the next poll does not overtake queued frames.
    bench.wire.lock().unwrap().full = false;
    let list = NetBufferList::from_mdl(1, Bytes::from_static(b"three"));
    bench.engine.connections().get(now, OffloadHandle(1)).unwrap().send([list].into());
    bench.engine.flush(now, &mut bench.clients);
    bench.poll();
    let payloads: Vec<_> = bench.sent().iter().map(|frame| tcp_of(frame).2).collect();
    assert_eq!(payloads, [b"one".to_vec(), b"two".to_vec(), b"three".to_vec()]);
    assert!(!bench.engine.awaits_writable());
    assert_eq!(bench.engine.stats().tx_lost, 0);
}

// For a link that does not segment, the engine polls TCP once per GSO packet and segments it. The frames equal those of
// a segmenting link. A link that becomes full neither drops nor reorders them.
#[test]
fn gso_packet_is_segmented_for_plain_link() {
    for full in [false, true] {
        let mut bench = Bench::new(10);
        bench.initiate(1, 80);
        bench.poll();
        bench.sent();
        let data: Vec<u8> = (0..10_000_u32).map(|n| (n / 7) as u8).collect();
        let mut buffer = NetBuffer::new();
        buffer.push_mdl(Bytes::copy_from_slice(&data[..1001]));
        buffer.push_mdl(Bytes::copy_from_slice(&data[1001..]));
        let mut list = NetBufferList::new(42);
        list.net_buffers.push(buffer);
        bench.wire.lock().unwrap().full = full;
        let (now, before) = (bench.now, bench.engine.stats());
        bench.engine.connections().get(now, OffloadHandle(1)).unwrap().send([list].into());
        bench.engine.flush(now, &mut bench.clients);
        bench.wire.lock().unwrap().full = false;
        bench.poll();
        let sent = bench.sent();
        assert_eq!(sent.len(), 7);
        let (mut seq, mut carried) = (1000, Vec::new());
        let id = |frame: &[u8]| u16::from_be_bytes([frame[18], frame[19]]);
        for (index, frame) in sent.iter().enumerate() {
            let tcp = classify(frame).unwrap();
            assert!(tcp.checksum_is_valid());
            let (at, ack, payload) = tcp_of(frame);
            assert_eq!((at, ack), (seq, 5000));
            assert!(payload.len() == 1460 || index == 6);
            let pushes = frame[14 + 20 + 13] & Flags::PSH.0 != 0;
            assert_eq!(pushes, index == 6, "PSH ends the list");
            assert_eq!(id(frame), id(&sent[0]) + index as u16);
            seq += payload.len() as u32;
            carried.extend(payload);
        }
        assert_eq!(carried, data);
        let stats = bench.engine.stats();
        assert_eq!((stats.tx_segments - before.tx_segments, stats.tx_lost), (7, 0));
        assert_eq!(stats.tx_stalled, if full { 7 } else { 0 });
        let comments = core::mem::take(&mut bench.wire.lock().unwrap().comments);
        let named = comments.iter().filter(|comment| comment.ends_with("NBL 0x2a")).count();
        assert_eq!(named, usize::from(!full), "the first frame, unless it was queued");
        bench.arrives(from_peer(80, 5000, 11_000, b""));
        bench.poll();
        assert_eq!(bench.client().completed.len(), 1);
    }
}

// A full device is not polled repeatedly. All frames are sent once it has room.
#[test]
fn full_link_is_not_polled() {
    let mut bench = Bench::new(10);
    bench.initiate(1, 80);
    bench.poll();
    bench.sent();
    bench.wire.lock().unwrap().full = true;
    for _ in 0..STALLED_FRAMES_MAX {
        bench.port.to_engine.send(FromHost::Frame(vec![0; 60])).unwrap();
    }
    while bench.poll() {}
    let mut buffer = NetBuffer::new();
    buffer.push_mdl(Bytes::from_static(b"data"));
    let mut list = NetBufferList::new(1);
    list.net_buffers.push(buffer);
    let now = bench.now;
    bench.engine.connections().get(now, OffloadHandle(1)).unwrap().send([list].into());
    assert!(!bench.poll() && !bench.engine.has_input() && bench.engine.awaits_writable());
    bench.wire.lock().unwrap().full = false;
    while bench.poll() {}
    assert_eq!(bench.sent().len(), STALLED_FRAMES_MAX + 1);
}

// RFC 3168 §6.1.2: the first frame has CWR, the last has PSH and FIN.
#[test]
fn flags_of_segmented_frames() {
    let all = Flags::ACK | Flags::PSH | Flags::FIN | Flags::CWR | Flags::ECE;
    let piece = |first, last| crate::engine::transmit::flags_of_piece(all, first, last);
    assert_eq!(piece(true, true), all);
    assert_eq!(piece(true, false), Flags::ACK | Flags::CWR | Flags::ECE);
    assert_eq!(piece(false, false), Flags::ACK | Flags::ECE);
    assert_eq!(piece(false, true), Flags::ACK | Flags::PSH | Flags::FIN | Flags::ECE);
}
