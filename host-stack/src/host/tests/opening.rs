//! Opening of connections, and its failures.

use alloc::{vec, vec::Vec};
use core::net::SocketAddr;

use etherparse::PacketBuilder;
use offload_engine::{
    chimney::client::OffloadHandle, engine::port::ToHost, state::MacAddress, tcp::Flags,
    time::Duration,
};

use super::bench::{Bench, Node, address, config};
use crate::{
    host::{BACKLOG_MAX, ConfigError, HANDSHAKE_MAX, HostConfig},
    socket::{HostError, Notice, OffloadPolicy, Request},
    wire::{self, Frame},
};

const NEVER: [OffloadPolicy; 2] = [OffloadPolicy::Never; 2];

fn to(number: u8, v6: bool, port: u16) -> SocketAddr {
    SocketAddr::new(address(number, v6), port)
}

/// TCP segment from host 1's addresses to host 2's.
fn segment(source_port: u16, seq: u32, flags: &str, payload: &[u8]) -> Vec<u8> {
    segment_to(5000, source_port, seq, flags, payload)
}

fn segment_to(port: u16, source_port: u16, seq: u32, flags: &str, payload: &[u8]) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .tcp(source_port, port, seq, 4096);
    wire::forged(builder, flags, 1, payload)
}

fn failed(node: &Node, handle: OffloadHandle, expected: HostError) -> bool {
    node.has(|notice| {
        matches!(notice, Notice::ConnectFailed { handle: of, error } if *of == handle && *error == expected)
    })
}

#[test]
fn connects_and_accepts() {
    for v6 in [false, true] {
        let mut bench = Bench::new(NEVER);
        let unspecified =
            SocketAddr::new(if v6 { [0_u16; 8].into() } else { [0_u8; 4].into() }, 5000);
        let listener = bench.nodes[1].listen(unspecified, 4, false);
        bench.run(Duration::from_millis(1));
        assert!(
            bench.nodes[1]
                .has(|n| matches!(n, Notice::Listening { local, .. } if *local == unspecified))
        );
        let handle = bench.nodes[0].connect(to(2, v6, 5000), false);
        bench.run(Duration::from_millis(100));
        assert_eq!(bench.nodes[0].established(), (handle, false));
        bench.nodes[1].established();
        assert!(bench.nodes[1].has(|notice| matches!(notice, Notice::Established {
            listener: Some(of), local, remote, ..
        } if *of == listener && *local == to(2, v6, 5000)
            && remote.ip() == address(1, v6) && remote.port() >= 49_152)));
        assert_eq!(bench.nodes[0].host.stats().active_opens, 1);
        assert_eq!(bench.nodes[1].host.stats().passive_opens, 1);
    }
}

#[test]
fn closed_port_refuses() {
    for v6 in [false, true] {
        let mut bench = Bench::new(NEVER);
        let handle = bench.nodes[0].connect(to(2, v6, 5000), false);
        bench.run(Duration::from_millis(100));
        assert!(failed(&bench.nodes[0], handle, HostError::Refused));
        assert_eq!(bench.nodes[0].host.stats().attempt_fails, 1);
        assert_eq!(bench.resets(1), 1);
    }
}

#[test]
fn missing_neighbor_and_silent_peer_are_distinguished() {
    for v6 in [false, true] {
        let mut bench = Bench::new(NEVER);
        let no_neighbor = bench.nodes[0].connect(to(9, v6, 5000), false);
        bench.nodes[1].listen(to(2, v6, 5000), 1, false);
        // Neighbor discovery passes; TCP is dropped.
        bench.passes = |_, frame| !matches!(wire::parse(frame), Frame::Tcp(_));
        let silent = bench.nodes[0].connect(to(2, v6, 5000), false);
        bench.run(Duration::from_millis(4_900));
        assert!(bench.nodes[0].notices.is_empty());
        bench.run(Duration::from_millis(200));
        assert!(failed(&bench.nodes[0], no_neighbor, HostError::HostUnreachable));
        assert!(failed(&bench.nodes[0], silent, HostError::TimedOut));
        assert_eq!(bench.nodes[0].host.connections.len(), 0);
        assert_eq!(bench.nodes[0].host.owners.len(), 0);
    }
}

#[test]
fn unusable_addresses_fail_at_once() {
    let only_v4 =
        HostConfig { addresses: vec![(address(1, false), 24)], ..config(1, OffloadPolicy::Never) };
    let mut bench = Bench::with([only_v4, config(2, OffloadPolicy::Never)]);
    let node = &bench.nodes[0];
    let no_family = node.connect(to(2, true, 5000), false);
    let no_route = node.connect("192.0.2.1:5000".parse().unwrap(), false);
    let no_port = node.connect(to(2, false, 0), false);
    let from = |local: &str| {
        let handle = OffloadHandle(node.port.allocate());
        node.port.request(Request::Connect {
            handle,
            endpoint: None,
            local: Some(local.parse().unwrap()),
            remote: to(2, false, 5000),
            timeout: Duration::from_secs(1),
            at_once: false,
        });
        handle
    };
    let not_ours = from("10.0.0.77:0");
    let first = from("10.0.0.1:1234");
    let second = from("0.0.0.0:1234");
    bench.settle();
    let node = &bench.nodes[0];
    assert!(failed(node, no_family, HostError::NetworkUnreachable));
    assert!(failed(node, no_route, HostError::NetworkUnreachable));
    assert!(failed(node, no_port, HostError::NetworkUnreachable));
    assert!(failed(node, not_ours, HostError::AddressNotAvailable));
    assert!(!failed(node, first, HostError::AddressInUse));
    assert!(failed(node, second, HostError::AddressInUse));
}

#[test]
fn gateway_reaches_other_links() {
    let far = HostConfig {
        gateways: vec![address(2, false), address(2, true)],
        ..config(1, OffloadPolicy::Never)
    };
    let mut bench = Bench::with([far, config(2, OffloadPolicy::Never)]);
    bench.nodes[0].connect("192.0.2.1:5000".parse().unwrap(), false);
    bench.nodes[0].connect("[2001:db8::1]:5000".parse().unwrap(), false);
    bench.run(Duration::from_millis(100));
    let syns = bench.nodes[0].sent.iter().filter(|f| matches!(wire::parse(f), Frame::Tcp(_)));
    assert!(syns.clone().all(|frame| frame[..6] == [2, 0, 0, 0, 0, 2]));
    assert_eq!(syns.count(), 2);
}

#[test]
fn listeners_do_not_collide() {
    let mut bench = Bench::new(NEVER);
    let node = &bench.nodes[0];
    let first = node.listen(to(1, false, 5000), 1, false);
    let same = node.listen("0.0.0.0:5000".parse().unwrap(), 1, false);
    let other_family = node.listen(to(1, true, 5000), 1, false);
    let foreign = node.listen(to(9, true, 5000), 1, false);
    let ephemeral = node.listen(to(1, false, 0), 1, false);
    bench.settle();
    let node = &bench.nodes[0];
    let listening =
        |id| node.has(|n| matches!(n, Notice::Listening { listener, .. } if *listener == id));
    let failed = |id, why| {
        node.has(|n| matches!(n, Notice::ListenFailed { listener, error } if *listener == id && *error == why))
    };
    assert!(listening(first) && listening(other_family));
    assert!(failed(same, HostError::AddressInUse));
    assert!(failed(foreign, HostError::AddressNotAvailable));
    assert!(node.has(|n| matches!(n, Notice::Listening { listener, local }
        if *listener == ephemeral && local.port() >= 49_152)));
}

#[test]
fn ephemeral_ports_differ() {
    let mut bench = Bench::new(NEVER);
    bench.nodes[1].listen(to(2, false, 5000), 128, false);
    for _ in 0..100 {
        bench.nodes[0].connect(to(2, false, 5000), false);
    }
    bench.run(Duration::from_millis(100));
    let mut ports = Vec::new();
    for notice in &bench.nodes[0].notices {
        let Notice::Established { local, .. } = notice else { panic!("{notice:?}") };
        ports.push(local.port());
    }
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 100);
    assert!(ports.iter().all(|port| *port >= 49_152));
}

/// RFC 792 and RFC 4443: smoltcp answers echo requests.
#[test]
fn answers_ping() {
    let mut bench = Bench::new(NEVER);
    let ethernet = || PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    let (mut v4, mut v6) = (Vec::new(), Vec::new());
    ethernet()
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .icmpv4_echo_request(1, 2)
        .write(&mut v4, b"ping4")
        .unwrap();
    let octets = |number| match address(number, true) {
        core::net::IpAddr::V6(address) => address.octets(),
        core::net::IpAddr::V4(_) => unreachable!(),
    };
    ethernet()
        .ipv6(octets(1), octets(2), 64)
        .icmpv6_echo_request(1, 2)
        .write(&mut v6, b"ping6")
        .unwrap();
    // The first answer is lost while the neighbor is resolved.
    for _ in 0..3 {
        bench.nodes[1].frame(v4.clone());
        bench.nodes[1].frame(v6.clone());
        bench.run(Duration::from_secs(2));
    }
    for answer in [b"ping4", b"ping6"] {
        assert!(bench.nodes[1].sent.iter().any(|frame| frame.ends_with(answer)));
    }
}

#[test]
fn checksums_are_verified_where_the_link_did_not() {
    let mut bench = Bench::new(NEVER);
    bench.nodes[1].listen(to(2, false, 5000), 8, false);
    bench.settle();
    let mut broken = segment(1000, 7, "S", &[]);
    let last = broken.len() - 1;
    broken[last - 2] ^= 1; // The checksum field ends four bytes before the frame.
    bench.nodes[1].frame(broken.clone());
    bench.settle();
    assert_eq!(bench.nodes[1].host.stats().checksum_errors, 1);
    assert_eq!(bench.nodes[1].host.half_open.len(), 0);
    bench.nodes[1].to_host.send(ToHost::Frame { data: broken, checksum_valid: true }).unwrap();
    bench.settle();
    assert_eq!(bench.nodes[1].host.half_open.len(), 1);
    assert_eq!(bench.nodes[1].host.stats().checksum_errors, 1);
}

#[test]
fn fragments_are_dropped() {
    let mut bench = Bench::new(NEVER);
    bench.nodes[1].listen(to(2, false, 5000), 8, false);
    bench.settle();
    let mut first = segment(1000, 7, "S", &[]);
    first[20] = 0x20; // Flag: more fragments.
    bench.nodes[1].to_host.send(ToHost::Frame { data: first, checksum_valid: true }).unwrap();
    bench.settle();
    assert_eq!(bench.nodes[1].host.stats().fragments_dropped, 1);
    assert_eq!(bench.nodes[1].host.half_open.len(), 0);
}

// RFC 1122 §4.2.3.10: a SYN-ACK flooded by a bridge for another station has no effect, even if its addresses and ports
// match a connection being opened. The connection is offloaded unchanged.
#[test]
fn frames_of_other_stations_are_ignored() {
    let mut bench = Bench::new([OffloadPolicy::Always, OffloadPolicy::Never]);
    bench.passes = |from, frame| from == 0 || frame[12..14] != [8, 0];
    let server = SocketAddr::new(address(2, false), 80);
    bench.nodes[1].listen(server, 4, false);
    bench.nodes[0].connect(server, false);
    bench.run(Duration::from_millis(20));
    let mut other = bench.nodes[1].sent.last().unwrap().clone();
    assert_eq!(other[47] & 0x12, 0x12, "a SYN-ACK");
    other[5] ^= 0x40;
    other[38] ^= 0x40;
    bench.nodes[0].to_host.send(ToHost::Frame { data: other, checksum_valid: true }).unwrap();
    bench.settle();
    bench.passes = |_, _| true;
    bench.run(Duration::from_secs(4));
    assert_eq!(bench.nodes[0].initiates.len(), 1);
}

/// A SYN flood allocates nothing beyond the backlog, is not answered with RST, and expires.
#[test]
fn syn_flood_is_bounded() {
    let mut bench = Bench::new(NEVER);
    bench.nodes[1].listen(to(2, false, 5000), 10_000, false);
    bench.passes = |from, _| from == 0;
    bench.settle();
    for source in 0..3_000 {
        bench.nodes[1].frame(segment(1 + source, 7, "S", &[]));
    }
    bench.settle();
    let host = &bench.nodes[1].host;
    assert_eq!(host.half_open.len(), BACKLOG_MAX);
    assert_eq!(host.owners.len(), BACKLOG_MAX);
    assert_eq!(host.sockets.iter().count(), 0, "none before the handshake is complete");
    assert_eq!(host.stats().listen_overflows, 3_000 - BACKLOG_MAX as u64);
    assert_eq!(host.stats().cookies_sent, 3_000 - BACKLOG_MAX as u64);
    // Another listener of the node has room.
    bench.nodes[1].listen(to(2, false, 5001), 1, false);
    bench.settle();
    bench.nodes[1].frame(segment_to(5001, 1, 7, "S", &[]));
    bench.settle();
    assert_eq!(bench.nodes[1].host.half_open.len(), BACKLOG_MAX + 1);
    bench.run(HANDSHAKE_MAX + Duration::from_millis(1));
    let host = &bench.nodes[1].host;
    assert_eq!((host.half_open.len(), host.owners.len()), (0, 0), "no state is left");
    assert_eq!(bench.resets(1), 0);
    bench.passes = |_, _| true;
    bench.nodes[0].connect(to(2, false, 5000), false);
    bench.run(Duration::from_secs(2));
    bench.nodes[1].established();
}

/// The opener is in ESTABLISHED; its data is lost while it resolves a moved neighbor.
#[test]
fn handshake_survives_neighbor_resolution() {
    let mut bench = Bench::new(NEVER);
    bench.nodes[1].listen(to(2, false, 5000), 8, false);
    bench.passes = |from, frame| match wire::parse(frame) {
        Frame::Tcp(tcp) => from == 1 || tcp.flags.contains(Flags::SYN),
        _ => true,
    };
    let active = bench.nodes[0].connect(to(2, false, 5000), false);
    bench.run(crate::host::upkeep::NEIGHBOR_STALE + Duration::from_secs(1));
    bench.nodes[0].send(active, &b"hello"[..]);
    bench.passes = |_, _| true;
    bench.run(HANDSHAKE_MAX);
    bench.nodes[1].established();
    assert_eq!(bench.nodes[1].data(), b"hello");
    assert_eq!(bench.resets(1), 0);
}

#[test]
fn repeated_syn_makes_no_second_connection() {
    let mut bench = Bench::new(NEVER);
    bench.nodes[1].listen(to(2, false, 5000), 8, false);
    for _ in 0..3 {
        bench.nodes[1].frame(segment(1000, 7, "S", &[]));
        bench.settle();
    }
    let host = &bench.nodes[1].host;
    assert_eq!(host.half_open.len(), 1);
    assert_eq!(host.stats().duplicate_syns, 2);
}

#[test]
fn reset_of_a_half_open_connection_frees_its_place() {
    let mut bench = Bench::new(NEVER);
    bench.nodes[1].listen(to(2, false, 5000), 1, false);
    bench.nodes[1].frame(segment(1000, 7, "S", &[]));
    bench.settle();
    assert_eq!(bench.nodes[1].host.half_open.len(), 1);
    bench.nodes[1].frame(segment(1000, 8, "R", &[]));
    bench.settle();
    assert_eq!(bench.nodes[1].host.half_open.len(), 0);
    assert!(bench.nodes[1].notices.iter().all(|n| matches!(n, Notice::Listening { .. })));
    bench.nodes[0].connect(to(2, false, 5000), false);
    bench.run(Duration::from_millis(100));
    bench.nodes[1].established();
}

#[test]
fn connections_outlive_their_listener() {
    let mut bench = Bench::new(NEVER);
    let listener = bench.nodes[1].listen(to(2, false, 5000), 8, false);
    let first = bench.nodes[0].connect(to(2, false, 5000), false);
    bench.run(Duration::from_millis(100));
    let (accepted, _) = bench.nodes[1].established();
    bench.nodes[1].port.request(Request::Unlisten { listener });
    bench.settle();
    let second = bench.nodes[0].connect(to(2, false, 5000), false);
    bench.nodes[0].send(first, &b"still here"[..]);
    bench.run(Duration::from_millis(100));
    assert!(failed(&bench.nodes[0], second, HostError::Refused));
    assert_eq!(bench.nodes[1].data(), b"still here");
    assert!(
        bench.nodes[1].has(|n| matches!(n, Notice::Data { handle, .. } if *handle == accepted))
    );
}

/// Malformed and hostile frames have no effect.
#[test]
fn malformed_frames_are_ignored() {
    let mut random = oorandom::Rand32::new(3);
    let mut bench = Bench::new(NEVER);
    bench.nodes[1].listen("0.0.0.0:5000".parse().unwrap(), 8, false);
    let handle = bench.nodes[0].connect(to(2, false, 5000), false);
    bench.run(Duration::from_millis(100));
    let models = bench.nodes[0].sent.clone();
    for round in 0..20_000 {
        let mut frame = models[round % models.len()].clone();
        for _ in 0..random.rand_range(1..6) {
            let at = random.rand_range(12..frame.len() as u32) as usize;
            frame[at] = random.rand_u32() as u8;
        }
        frame.truncate(random.rand_range(0..frame.len() as u32 * 4) as usize);
        let checksum_valid = random.rand_range(0..2) == 0;
        bench.nodes[1].to_host.send(ToHost::Frame { data: frame, checksum_valid }).unwrap();
        if round % 50 == 0 {
            bench.settle();
        }
    }
    bench.settle();
    assert!(bench.nodes[1].host.connections.len() <= 9);
    assert_eq!(bench.nodes[0].established().0, handle);
}

#[test]
fn impossible_configurations_are_refused() {
    let good = config(1, OffloadPolicy::Never);
    assert_eq!(good.check(), Ok(()));
    let mac = MacAddress([1, 0, 0, 0, 0, 1]);
    assert_eq!(HostConfig { mac, ..good.clone() }.check(), Err(ConfigError::Mac(mac)));
    let addresses = vec![(address(1, false), 24); 9];
    assert_eq!(HostConfig { addresses, ..good.clone() }.check(), Err(ConfigError::Addresses(9)));
    let addresses = vec![(address(1, false), 33)];
    assert_eq!(
        HostConfig { addresses, ..good.clone() }.check(),
        Err(ConfigError::Address(address(1, false), 33))
    );
    assert_eq!(HostConfig { mtu: 1279, ..good.clone() }.check(), Err(ConfigError::Mtu(1279)));
    assert_eq!(
        HostConfig { receive_buffer: 0, ..good.clone() }.check(),
        Err(ConfigError::Buffer(0))
    );
}
