//! Engines on the queues of one device: frames received by another queue are delivered.

use etherparse::IpFragOffset;

use super::*;
use crate::engine::PASSED_FRAMES_MAX;

fn group(count: usize) -> Vec<Bench> {
    let wires = (0..count).map(|_| Arc::<Mutex<Wire>>::default()).collect::<Vec<_>>();
    let links = wires.iter().map(|wire| Box::new(TestLink(wire.clone())) as Box<dyn Link>);
    let group = Engine::group(links.collect(), EngineConfig::new(OURS)).unwrap();
    let bench = |((engine, port), wire)| Bench {
        engine,
        port,
        wire,
        clients: one_client(),
        now: Instant::from_millis(1),
    };
    group.into_iter().zip(wires).map(bench).collect()
}

/// Counters: frames passed to other engines, frames dropped, frames received from other engines.
fn passed(bench: &Bench) -> (u64, u64, u64) {
    let stats = bench.engine.stats();
    (stats.rx_passed_on, stats.rx_passed_on_dropped, stats.rx_passed_in)
}

#[test]
fn frame_of_another_queue_is_passed_to_its_connection() {
    let mut group = group(3);
    group[1].initiate(7, 80);
    group[1].poll();
    group[1].sent();
    group[2].arrives(from_peer(80, 5000, 1000, b"by the wrong queue"));
    group[2].arrives(from_peer(81, 5000, 1000, b"unknown"));
    group[2].poll();
    assert_eq!(
        group[2].host_messages().len(),
        1,
        "a frame without a connection is passed to the host"
    );
    assert!(group[1].engine.has_input(), "checked before sleeping");
    group[1].poll();
    assert!(!group[1].engine.has_input());
    assert_eq!(group[1].client().received, b"by the wrong queue");
    // The queue of the connection sends the acknowledgment.
    group[1].now += Duration::from_millis(50);
    group[1].poll();
    let sent = group[1].sent();
    assert_eq!(sent.iter().map(|frame| tcp_of(frame).1).collect::<Vec<_>>(), [5018]);
    assert!(group[0].sent().is_empty() && group[2].sent().is_empty());
    assert_eq!([0, 1, 2].map(|queue| passed(&group[queue])), [(0, 0, 0), (0, 0, 1), (1, 0, 0)]);
    assert_eq!(group[2].engine.stats().rx_to_host, 1);
    // A frame received by the connection's own queue is not passed.
    group[1].arrives(from_peer(80, 5018, 1000, b"!"));
    group[1].poll();
    assert_eq!(group[1].client().received, b"by the wrong queue!");
    assert_eq!(passed(&group[1]), (0, 0, 1));
}

// The owning engine verifies the checksum, with the status reported by the link.
#[test]
fn checksum_status_is_passed_with_frame() {
    let mut group = group(2);
    group[0].initiate(7, 80);
    group[0].poll();
    let mut frame = from_peer(80, 5000, 1000, b"data");
    *frame.last_mut().unwrap() ^= 1;
    group[1].arrives(frame.clone());
    group[1].wire.lock().unwrap().receive.push_back((frame, RxChecksum::Valid));
    group[1].poll();
    group[0].poll();
    assert_eq!(group[0].client().received, b"dat`");
    assert_eq!(group[0].engine.stats().rx_checksum_errors, 1);
}

// RFC 9293 MUST-54: an ICMP error has other addresses, so any queue may receive it.
#[test]
fn icmp_errors_of_another_queue_are_delivered_to_connection_and_host() {
    let mut group = group(2);
    group[0].initiate(7, 80);
    group[0].poll();
    let now = group[0].now;
    let list = NetBufferList::from_mdl(1, Bytes::from(vec![1; 1460]));
    group[0].engine.connections().get(now, OffloadHandle(7)).unwrap().send([list].into());
    group[0].poll();
    let sent = group[0].sent();
    let data = sent.iter().find(|frame| !tcp_of(frame).2.is_empty()).unwrap();
    group[1].arrives(too_big(data, 1300));
    group[1].poll();
    assert!(group[1].host_messages().is_empty());
    group[0].host_messages();
    group[0].poll();
    assert_eq!(group[0].engine.stats().rx_path_errors, 1);
    let messages = group[0].host_messages();
    let handle = OffloadHandle(7);
    let narrowed =
        |message: &ToHost| matches!(message, ToHost::PathMtu { handle: of, .. } if *of == handle);
    assert!(messages.iter().any(narrowed), "{messages:?}");
    assert!(messages.iter().any(|message| matches!(message, ToHost::Frame { .. })), "{messages:?}");
}

// CH §9.1: the connection counts fragments, the host receives them.
#[test]
fn fragments_are_counted_by_owning_engine() {
    let mut group = group(2);
    group[0].initiate(7, 80);
    group[0].poll();
    group[0].host_messages();
    let mut frame = from_peer(80, 5000, 1000, &[7; 8]);
    // More fragments follow.
    frame[20] |= 0x20;
    let header = Ipv4HeaderSlice::from_slice(&frame[14..]).unwrap().to_header();
    assert!(header.more_fragments && header.fragment_offset == IpFragOffset::ZERO);
    frame[24..26].copy_from_slice(&header.calc_header_checksum().to_be_bytes());
    group[1].arrives(frame);
    group[1].poll();
    group[0].poll();
    assert_eq!(group[0].engine.stats().rx_fragments, 1);
    assert!(matches!(group[0].host_messages()[..], [ToHost::Frame { .. }]));
}

/// After a connection was closed or uploaded, its frames are passed to the host, whichever queue receives them.
#[test]
fn frames_of_removed_connection_are_passed_to_host() {
    let mut group = group(2);
    for handle in [7, 8] {
        group[0].initiate(handle, 80 + handle as u16);
    }
    group[0].poll();
    // Passed while the connection existed, processed after its removal.
    group[1].arrives(from_peer(87, 5000, 1000, b"late"));
    group[1].poll();
    assert_eq!(passed(&group[1]), (1, 0, 0));
    let (now, nbl) = (group[0].now, NetBufferList::new(0));
    let mut io = group[0].engine.connections().get(now, OffloadHandle(7)).unwrap();
    io.disconnect(Disconnect::Abortive, nbl);
    let Bench { engine, clients, .. } = &mut group[0];
    engine.flush(now, clients);
    assert_eq!(group[0].client().events.last(), Some(&ConnectionEvent::Released));
    group[0].host_messages();
    group[0].poll();
    assert!(matches!(group[0].host_messages()[..], [ToHost::Frame { .. }]));
    // Later frames are not passed.
    group[1].arrives(from_peer(87, 5004, 1000, b"later"));
    group[1].arrives(from_peer(88, 5000, 1000, b"of the other"));
    group[1].poll();
    assert!(matches!(group[1].host_messages()[..], [ToHost::Frame { .. }]));
    group[0].poll();
    assert_eq!(group[0].client().received, b"of the other");
    assert_eq!((passed(&group[0]), passed(&group[1])), ((0, 0, 2), (2, 0, 0)));
}

#[test]
fn passed_frames_are_bounded() {
    let mut group = group(2);
    group[0].initiate(7, 80);
    group[0].poll();
    for _ in 0..PASSED_FRAMES_MAX + 10 {
        group[1].arrives(from_peer(80, 5000, 1000, b"again"));
    }
    while group[1].poll() {}
    assert_eq!(passed(&group[1]), (PASSED_FRAMES_MAX as u64, 10, 0));
    while group[0].poll() {}
    assert_eq!(passed(&group[0]), (0, 0, PASSED_FRAMES_MAX as u64));
    assert_eq!(group[0].client().received, b"again");
}

#[test]
fn host_has_one_doorbell_per_group() {
    let group = group(2);
    let [first, second] = &group[..] else { panic!("two engines") };
    assert!(Arc::ptr_eq(first.engine.host_doorbell(), second.engine.host_doorbell()));
    assert!(Arc::ptr_eq(first.engine.host_doorbell(), &second.port.host_doorbell));
    assert!(!Arc::ptr_eq(first.engine.doorbell(), second.engine.doorbell()));
    assert!(Engine::group(Vec::new(), EngineConfig::new(OURS)).unwrap().is_empty());
}
