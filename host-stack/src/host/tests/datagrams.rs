//! UDP ports of clients.

use alloc::{vec, vec::Vec};
use core::net::SocketAddr;

use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
use offload_engine::{chimney::client::ClientTag, time::Duration};

use super::bench::{Bench, CLIENT, address, config};
use crate::{
    host::{
        HostConfig,
        datagrams::{
            HOLD_MAX, HOP_STALE, HOPS_MAX, PORTS_MAX, RECEIVE_BUFFER_OCTETS, WAITING_MAX,
            WAITING_OF_HOP_MAX,
        },
    },
    socket::{
        ConsumerId, DATAGRAMS_DELIVERED_MAX, HostError, Notice, OffloadPolicy, Request, SocketPort,
    },
};

const PORT: u16 = 5000;
/// Octets of the headers of IPv4 and UDP.
const IPV4_HEADERS: usize = 28;
/// Octets of the headers of IPv6 and UDP.
const IPV6_HEADERS: usize = 48;

/// Datagram: source, destination, payload.
type Received = (SocketAddr, SocketAddr, Vec<u8>);

fn at(node: usize, v6: bool) -> SocketAddr {
    SocketAddr::new(address(node as u8 + 1, v6), PORT)
}

/// Hosts with an open port each.
fn opened() -> Bench {
    let mut bench = Bench::new([OffloadPolicy::Never; 2]);
    bench.nodes.iter().for_each(|node| node.port.request(Request::OpenDatagrams { port: PORT }));
    bench.run(Duration::from_millis(10));
    // Their reports of multicast groups.
    bench.nodes.iter_mut().for_each(|node| node.sent.clear());
    bench
}

fn send(port: &SocketPort, from: SocketAddr, to: SocketAddr, data: &[u8]) {
    port.request(Request::SendDatagram { from, to, data: data.to_vec() });
}

/// Sends from node 0.
fn send_to(bench: &Bench, to: SocketAddr, data: &[u8]) {
    send(&bench.nodes[0].port, at(0, to.is_ipv6()), to, data);
}

/// Datagrams delivered to a node and not consumed.
fn received(bench: &mut Bench, node: usize) -> Vec<Received> {
    let found =
        bench.nodes[node].notices.extract_if(.., |it| matches!(it, Notice::Datagram { .. }));
    let datagram = |notice| match notice {
        Notice::Datagram { source, destination, data } => Some((source, destination, data)),
        _ => None,
    };
    found.filter_map(datagram).collect()
}

/// Number of datagrams whose storage has returned to node 0 since the last call.
fn returned(bench: &mut Bench) -> usize {
    let notices = &mut bench.nodes[0].notices;
    notices.extract_if(.., |notice| matches!(notice, Notice::DatagramSent { .. })).count()
}

/// Answers to requests for ports.
fn answers(notices: impl IntoIterator<Item = Notice>) -> Vec<Result<u16, (u16, HostError)>> {
    let answer = |notice| match notice {
        Notice::DatagramsOpen { port } => Some(Ok(port)),
        Notice::DatagramsFailed { port, error } => Some(Err((port, error))),
        _ => None,
    };
    notices.into_iter().filter_map(answer).collect()
}

/// Frames of UDP that a node has sent.
fn udp_frames(bench: &Bench, node: usize) -> usize {
    let is_udp = |frame: &&Vec<u8>| {
        let packet = SlicedPacket::from_ethernet(frame).unwrap();
        matches!(packet.transport, Some(TransportSlice::Udp(_)))
    };
    bench.nodes[node].sent.iter().filter(is_udp).count()
}

/// Solicitations by ARP that a node has sent for 10.0.0.`number`.
fn solicitations(bench: &Bench, node: usize, number: u8) -> usize {
    let is_for = |frame: &&Vec<u8>| frame[12..14] == [8, 6] && frame[38..42] == [10, 0, 0, number];
    bench.nodes[node].sent.iter().filter(is_for).count()
}

#[test]
fn first_datagram_waits_for_the_neighbor() {
    for v6 in [false, true] {
        let mut bench = opened();
        send_to(&bench, at(1, v6), b"first");
        bench.settle();
        assert_eq!(udp_frames(&bench, 0), 0, "before the neighbor is known");
        bench.run(Duration::from_millis(10));
        let expected = (at(0, v6), at(1, v6), b"first".to_vec());
        assert_eq!(received(&mut bench, 1), [expected]);
        assert!(bench.nodes[0].has(|notice| matches!(notice, Notice::DatagramSent { .. })));
        // The neighbor is known.
        send_to(&bench, at(1, v6), b"");
        bench.run(Duration::from_millis(2));
        assert_eq!(received(&mut bench, 1), [(at(0, v6), at(1, v6), vec![])]);
    }
}

#[test]
fn neighbor_without_an_answer_delays_no_others() {
    let mut bench = opened();
    let absent = SocketAddr::new(address(9, false), PORT);
    let most = WAITING_OF_HOP_MAX;
    (0..2 * most).for_each(|_| send_to(&bench, absent, b"lost"));
    send_to(&bench, at(1, false), b"heard");
    bench.run(Duration::from_millis(10));
    assert_eq!(bench.nodes[0].host.stats().datagrams_out_dropped, most as u64);
    // The storage of those that wait is held for a short time.
    assert_eq!((received(&mut bench, 1).len(), returned(&mut bench)), (1, most + 1));
    bench.run(HOLD_MAX);
    assert_eq!(returned(&mut bench), most);
    assert!(!bench.nodes[0].host.is_silent());
    bench.run(Duration::from_secs(10));
    assert_eq!(bench.nodes[0].host.stats().datagrams_out_dropped, 2 * most as u64);
    assert!(bench.nodes[0].host.is_silent());
    send_to(&bench, absent, b"lost");
    bench.run(Duration::from_secs(10));
    // A later datagram begins again.
    assert_eq!((solicitations(&bench, 0, 9), returned(&mut bench)), (6, 1));
}

#[test]
fn waiting_datagrams_are_bounded() {
    let mut bench = opened();
    for number in 0..2 * WAITING_MAX / WAITING_OF_HOP_MAX {
        let absent = SocketAddr::new(address(number as u8 + 9, false), PORT);
        (0..WAITING_OF_HOP_MAX).for_each(|_| send_to(&bench, absent, b"lost"));
    }
    bench.settle();
    assert_eq!(bench.nodes[0].host.stats().datagrams_out_dropped, WAITING_MAX as u64);
}

#[test]
fn lost_solicitation_is_repeated() {
    let mut bench = opened();
    bench.passes = |_, _| false;
    send_to(&bench, at(1, false), b"first");
    bench.run(Duration::from_millis(500));
    bench.passes = |_, _| true;
    bench.run(Duration::from_secs(1));
    assert_eq!(received(&mut bench, 1).len(), 1);
}

// The address remains in use, so that nothing is delayed, until the neighbor does not answer.
#[test]
fn stale_neighbor_is_solicited_while_in_use() {
    let mut bench = opened();
    send_to(&bench, at(1, false), b"first");
    bench.run(HOP_STALE + Duration::from_secs(1));
    assert_eq!(solicitations(&bench, 0, 2), 1);
    bench.passes = |node, _| node == 0;
    send_to(&bench, at(1, false), b"second");
    bench.run(Duration::from_millis(10));
    assert_eq!((received(&mut bench, 1).len(), solicitations(&bench, 0, 2)), (2, 2));
    bench.run(Duration::from_secs(5));
    assert_eq!(solicitations(&bench, 0, 2), 4);
    send_to(&bench, at(1, false), b"third");
    bench.run(Duration::from_millis(10));
    assert_eq!(received(&mut bench, 1), []);
    bench.passes = |_, _| true;
    bench.run(Duration::from_secs(2));
    assert_eq!(received(&mut bench, 1).len(), 1);
}

#[test]
fn next_hops_are_bounded() {
    let config = |number| HostConfig {
        addresses: vec![([10, 0, 0, number].into(), 8)],
        ..config(number, OffloadPolicy::Never)
    };
    let mut bench = Bench::with([config(1), config(2)]);
    bench.nodes.iter().for_each(|node| node.port.request(Request::OpenDatagrams { port: PORT }));
    for number in 0..HOPS_MAX as u32 + 100 {
        let [_, _, c, d] = number.to_be_bytes();
        send_to(&bench, SocketAddr::from(([10, 1, c, d], PORT)), b"lost");
    }
    bench.settle();
    assert!(bench.nodes[0].host.datagrams.next_hops() == HOPS_MAX);
    send_to(&bench, at(1, false), b"heard");
    bench.run(Duration::from_millis(10));
    assert_eq!(received(&mut bench, 1).len(), 1);
}

#[test]
fn datagram_for_an_own_address_returns() {
    for v6 in [false, true] {
        let mut bench = opened();
        send_to(&bench, at(0, v6), b"self");
        let closed = SocketAddr::new(at(0, v6).ip(), PORT + 1);
        send_to(&bench, closed, b"closed");
        bench.run(Duration::from_millis(10));
        let expected = (at(0, v6), at(0, v6), b"self".to_vec());
        assert_eq!(received(&mut bench, 0), [expected]);
        assert!(bench.nodes[0].sent.is_empty(), "{:?}", bench.nodes[0].sent);
    }
}

#[test]
fn port_belongs_to_one_client() {
    let mut bench = opened();
    let requests = bench.nodes[0].port.requests().clone();
    let second = requests.register(ClientTag(CLIENT.0 + 1), "second", ConsumerId(77));
    second.request(Request::OpenDatagrams { port: PORT });
    // It can neither use, consume from, nor close a port of the first one.
    send(&second, at(0, false), at(1, false), b"forged");
    second.request(Request::CloseDatagrams { port: PORT });
    second.request(Request::OpenDatagrams { port: 0 });
    bench.run(Duration::from_millis(10));
    let refused = [Err((PORT, HostError::AddressInUse)), Err((0, HostError::AddressNotAvailable))];
    let notices = core::iter::from_fn(|| second.notice());
    assert_eq!(answers(notices), refused);
    assert_eq!(received(&mut bench, 1), []);
    bench.nodes[0].port.request(Request::CloseDatagrams { port: PORT });
    second.request(Request::OpenDatagrams { port: PORT });
    bench.run(Duration::from_millis(1));
    assert_eq!(answers(core::iter::from_fn(|| second.notice())), [Ok(PORT)]);
    // A client that unregisters closes its ports.
    second.request(Request::Unregister);
    bench.nodes[0].notices.clear();
    bench.nodes[0].port.request(Request::OpenDatagrams { port: PORT });
    bench.run(Duration::from_millis(1));
    assert_eq!(answers(bench.nodes[0].notices.drain(..)), [Ok(PORT)]);
}

#[test]
fn ports_are_bounded() {
    let mut bench = Bench::new([OffloadPolicy::Never; 2]);
    let ports = 1..=PORTS_MAX as u16 + 1;
    ports.for_each(|port| bench.nodes[0].port.request(Request::OpenDatagrams { port }));
    bench.run(Duration::from_millis(1));
    let answers = answers(bench.nodes[0].notices.drain(..));
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), PORTS_MAX);
    assert_eq!(answers.last(), Some(&Err((PORTS_MAX as u16 + 1, HostError::TooManyPorts))));
}

#[test]
fn datagrams_not_consumed_are_bounded() {
    let mut bench = opened();
    let data = vec![7; 1000];
    let in_buffer = RECEIVE_BUFFER_OCTETS / data.len();
    let count = DATAGRAMS_DELIVERED_MAX + 2 * in_buffer;
    (0..count).for_each(|_| send_to(&bench, at(0, false), &data));
    bench.run(Duration::from_millis(10));
    let mut delivered = received(&mut bench, 0);
    assert_eq!(delivered.len(), DATAGRAMS_DELIVERED_MAX);
    let mut total = 0;
    while let Some((.., data)) = delivered.pop() {
        total += 1;
        bench.nodes[0].port.request(Request::DatagramConsumed { port: PORT, data });
        if delivered.is_empty() {
            bench.run(Duration::from_millis(1));
            delivered = received(&mut bench, 0);
        }
    }
    assert_eq!(total, DATAGRAMS_DELIVERED_MAX + in_buffer);
}

#[test]
fn longest_datagram_fills_a_packet() {
    for (v6, headers) in [(false, IPV4_HEADERS), (true, IPV6_HEADERS)] {
        let mut bench = opened();
        let longest = 1500 - headers;
        send_to(&bench, at(1, v6), &vec![1; longest]);
        send_to(&bench, at(1, v6), &vec![2; longest + 1]);
        send_to(&bench, at(1, v6), &vec![3; 100_000]);
        bench.run(Duration::from_millis(10));
        let lengths = received(&mut bench, 1).iter().map(|it| it.2.len()).collect::<Vec<_>>();
        assert_eq!((lengths, udp_frames(&bench, 0)), (vec![longest], 1));
        assert_eq!(bench.nodes[0].host.stats().datagrams_out_dropped, 2);
    }
    // RFC 791: routers do not fragment it.
    let mut bench = opened();
    send_to(&bench, at(1, false), b"whole");
    bench.run(Duration::from_millis(10));
    let frame = bench.nodes[0].sent.last().unwrap();
    assert_eq!((frame[23], frame[20] & 0xe0), (17, 0x40));
}

#[test]
fn impossible_destinations_and_sources_are_dropped() {
    let mut bench = opened();
    let v4 = |octets: [u8; 4]| SocketAddr::from((octets, PORT));
    for to in [
        v4([10, 0, 0, 255]),
        v4([224, 0, 0, 1]),
        v4([255; 4]),
        v4([0; 4]),
        v4([192, 168, 0, 1]),
        SocketAddr::from(([10, 0, 0, 2], 0)),
    ] {
        send_to(&bench, to, b"lost");
    }
    let sends = [
        (v4([10, 0, 0, 7]), at(1, false)),
        (SocketAddr::new(at(0, false).ip(), PORT + 1), at(1, false)),
        (at(0, true), at(1, false)),
    ];
    sends.iter().for_each(|(from, to)| send(&bench.nodes[0].port, *from, *to, b"lost"));
    bench.run(Duration::from_secs(5));
    assert!(bench.nodes[0].sent.is_empty(), "{:?}", bench.nodes[0].sent);
    assert_eq!(bench.nodes[0].host.stats().datagrams_out_dropped, 9);
}

// Each frame differs from a delivered one in one respect.
#[test]
fn malformed_datagrams_are_dropped() {
    let mut bench = opened();
    let frame = |to_mac: u8, to: u8, port: u16| {
        let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, to_mac])
            .ipv4([10, 0, 0, 1], [10, 0, 0, to], 64)
            .udp(PORT, port);
        let mut frame = Vec::new();
        builder.write(&mut frame, b"octets").unwrap();
        frame
    };
    let good = frame(2, 2, PORT);
    let changed = |at: usize, value: u8| {
        let mut frame = good.clone();
        frame[at] = value;
        frame
    };
    let hostile = [
        ("another station", frame(3, 2, PORT)),
        ("another address", frame(2, 3, PORT)),
        ("closed port", frame(2, 2, PORT + 1)),
        ("checksum of UDP", changed(good.len() - 1, 0)),
        ("checksum of IP", changed(24, 0)),
        ("short length of UDP", changed(39, 7)),
        ("long length of UDP", changed(39, 200)),
        ("truncated", good[..good.len() - 1].to_vec()),
        ("no header", good[..14 + 20 + 7].to_vec()),
    ];
    for (what, frame) in hostile {
        bench.nodes[1].frame(frame);
        bench.run(Duration::from_millis(2));
        assert_eq!(received(&mut bench, 1), [], "{what}");
    }
    bench.nodes[1].frame(good);
    bench.run(Duration::from_millis(2));
    assert_eq!(received(&mut bench, 1).len(), 1);
}
