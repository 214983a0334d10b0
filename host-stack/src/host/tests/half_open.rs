//! Floods of SYNs that are never acknowledged: clients are served during and after them.

use alloc::{vec, vec::Vec};
use core::net::{IpAddr, SocketAddr};

use etherparse::{PacketBuilder, TcpOptionElement};
use offload_engine::{
    chimney::client::OffloadHandle, engine::port::ToHost, tcp::Flags, time::Duration,
};

use super::bench::{Bench, address, config};
use crate::{
    host::{HostConfig, half_open::HALF_OPEN_YIELDS},
    observer::Agreed,
    socket::{Notice, OffloadPolicy, Request},
    wire::{self, Frame},
};

const BACKLOG: usize = 128;
const PORT: u16 = 5000;
/// Maximum time for a client to connect.
const SERVED: Duration = Duration::from_secs(3);
const OURS: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn server(v6: bool) -> SocketAddr {
    SocketAddr::new(address(2, v6), PORT)
}

/// Address of an unknown station on host 2's link.
fn unknown_station(number: u32, v6: bool) -> IpAddr {
    let [_, high, middle, low] = number.to_be_bytes();
    match v6 {
        true => [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, high, middle, low].into(),
        false => [10, 0, 0, 20 + (number % 200) as u8].into(),
    }
}

/// Segment of station `number`, which host 2 has not resolved.
fn segment_from_unknown_station(
    number: u32,
    v6: bool,
    flags: &str,
    (seq, ack): (u32, u32),
) -> Vec<u8> {
    let [a, b, c, d] = number.to_be_bytes();
    let ethernet = PacketBuilder::ethernet2([2, 1, a, b, c, d], OURS);
    let ip = match (unknown_station(number, v6), address(2, v6)) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ethernet.ipv4(from.octets(), to.octets(), 64),
        (IpAddr::V6(from), IpAddr::V6(to)) => ethernet.ipv6(from.octets(), to.octets(), 64),
        _ => unreachable!("of one family"),
    };
    let port = 1024 + (number / 200 % 60_000) as u16;
    let tcp = ip.tcp(port, PORT, seq, 4096);
    let options = [
        TcpOptionElement::MaximumSegmentSize(1460),
        TcpOptionElement::Timestamp(number, 0),
        TcpOptionElement::WindowScale(7),
    ];
    let tcp = if flags == "S" { tcp.options(&options).unwrap() } else { tcp };
    wire::forged(tcp, flags, ack, &[])
}

fn flood(bench: &Bench, v6: bool, numbers: core::ops::Range<u32>) {
    for number in numbers {
        bench.nodes[1].frame(segment_from_unknown_station(number, v6, "S", (number, 0)));
    }
}

/// True for frames between the two hosts: unknown stations never answer.
fn strangers_do_not_answer(from: usize, frame: &[u8]) -> bool {
    from == 0 || frame[..6] == [2, 0, 0, 0, 0, 1] || frame[0] & 1 != 0
}

fn listening(configs: [HostConfig; 2], v6: bool, backlog: usize) -> Bench {
    let mut bench = Bench::with(configs);
    bench.passes = strangers_do_not_answer;
    bench.nodes[1].listen(server(v6), backlog, false);
    bench.settle();
    bench
}

fn configs(policy: OffloadPolicy) -> [HostConfig; 2] {
    [config(1, OffloadPolicy::Never), config(2, policy)]
}

/// Connects a client, which must be established at both ends within [`SERVED`].
fn is_served(bench: &mut Bench, v6: bool) -> OffloadHandle {
    let active = bench.nodes[0].connect(server(v6), false);
    let deadline = bench.now + SERVED;
    let is_open = |bench: &Bench| {
        let open = |notice: &Notice| matches!(notice, Notice::Established { handle, .. } if *handle == active);
        let accepted =
            |notice: &Notice| matches!(notice, Notice::Established { listener: Some(_), .. });
        bench.nodes[0].has(open) && bench.nodes[1].has(accepted)
    };
    while !is_open(bench) {
        assert!(bench.now < deadline, "not served: {:?}", bench.nodes[1].host.stats());
        bench.run(Duration::from_millis(1));
    }
    active
}

#[test]
fn clients_are_served_after_a_flood_of_syns() {
    for v6 in [false, true] {
        for policy in [OffloadPolicy::Never, OffloadPolicy::Always, OffloadPolicy::Auto] {
            for (backlog, syns) in [(BACKLOG, 140), (1024, 2_000), (1024, 20_000)] {
                let mut bench = listening(configs(policy), v6, backlog);
                flood(&bench, v6, 0..syns);
                bench.settle();
                let active = is_served(&mut bench, v6);
                let (passive, offloading) = bench.nodes[1].established();
                assert_eq!(offloading, policy == OffloadPolicy::Always);
                if !offloading {
                    bench.nodes[0].send(active, &b"ping"[..]);
                    bench.nodes[1].send(passive, &b"pong"[..]);
                    bench.run(Duration::from_millis(20));
                    assert_eq!(bench.nodes[0].data(), b"pong");
                    assert_eq!(bench.nodes[1].data(), b"ping");
                }
                let stats = bench.nodes[1].host.stats();
                assert!(stats.cookies_sent >= u64::from(syns) - backlog as u64);
                assert_eq!(stats.cookies_accepted, 1);
            }
        }
    }
}

#[test]
fn clients_are_served_during_a_flood_of_syns() {
    for v6 in [false, true] {
        let mut bench = listening(configs(OffloadPolicy::Never), v6, BACKLOG);
        let mut number = 0;
        let mut active = None;
        // 10,000 SYNs per second.
        for millisecond in 0..1_500 {
            flood(&bench, v6, number..number + 10);
            number += 10;
            if millisecond == 500 {
                active = Some(bench.nodes[0].connect(server(v6), false));
            }
            if millisecond == 1_000 {
                bench.nodes[0].send(active.unwrap(), &b"still here"[..]);
            }
            bench.run(Duration::from_millis(1));
        }
        assert_eq!(bench.nodes[0].established().0, active.unwrap());
        assert_eq!(bench.nodes[1].data(), b"still here");
        assert_eq!(bench.nodes[1].host.half_open.len(), BACKLOG);
        assert_eq!(bench.nodes[1].host.sockets.iter().count(), 1);
    }
}

#[test]
fn resolvable_flood_sources_exclude_no_client() {
    let mut bench = listening(configs(OffloadPolicy::Never), false, BACKLOG);
    flood(&bench, false, 0..140);
    for number in 0..140_u8 {
        // Builds an ARP reply.
        let mut frame = vec![0; 42];
        frame[..6].copy_from_slice(&OURS);
        frame[6..12].copy_from_slice(&[2, 1, 0, 0, 0, number]);
        frame[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
        frame[22..28].copy_from_slice(&[2, 1, 0, 0, 0, number]);
        frame[28..32].copy_from_slice(&[10, 0, 0, 20 + number]);
        frame[32..38].copy_from_slice(&OURS);
        frame[38..42].copy_from_slice(&[10, 0, 0, 2]);
        bench.nodes[1].frame(frame);
    }
    bench.settle();
    is_served(&mut bench, false);
}

fn agreed(bench: &Bench, node: usize) -> Agreed {
    let connections = &bench.nodes[node].host.connections;
    assert_eq!(connections.len(), 1);
    connections.values().next().unwrap().flow.agreed().expect("both SYNs")
}

#[test]
fn options_survive_a_cookie() {
    for (timestamps, ecn) in [(true, true), (true, false), (false, true)] {
        let configs =
            configs(OffloadPolicy::Never).map(|config| HostConfig { timestamps, ecn, ..config });
        let mut quiet = listening(configs.clone(), false, BACKLOG);
        is_served(&mut quiet, false);
        let mut bench = listening(configs, false, BACKLOG);
        flood(&bench, false, 0..140);
        let active = is_served(&mut bench, false);
        assert_eq!(bench.nodes[1].host.stats().cookies_accepted, 1);
        for node in [0, 1] {
            let expected = match (timestamps, agreed(&quiet, node)) {
                (true, exact) => exact,
                (false, exact) => Agreed { window_scales: None, sack: false, ecn: false, ..exact },
            };
            assert_eq!(agreed(&bench, node), expected, "timestamps {timestamps}, ECN {ecn}");
        }
        // More data than an unscaled window, in both directions.
        let (passive, _) = bench.nodes[1].established();
        let data = (0..100_000_u32).map(|byte| byte as u8).collect::<Vec<_>>();
        for (node, handle) in [(0, active), (1, passive)] {
            for piece in data.chunks(25_000) {
                bench.nodes[node].send(handle, piece.to_vec());
            }
        }
        bench.run(Duration::from_secs(2));
        for node in [0, 1] {
            let got = bench.nodes[node].data();
            assert!(got == data[..got.len()] && got.len() >= 60_000, "{}", got.len());
        }
    }
}

#[test]
fn forged_acks_open_nothing() {
    let mut bench = listening(configs(OffloadPolicy::Never), false, BACKLOG);
    let mut random = oorandom::Rand32::new(5);
    for is_flooded in [false, true] {
        if is_flooded {
            flood(&bench, false, 0..400);
            bench.settle();
        }
        for _ in 0..50_000 {
            let (number, ack) = (random.rand_range(0..400), random.rand_u32());
            bench.nodes[1].frame(segment_from_unknown_station(
                number,
                false,
                "A",
                (number + 1, ack),
            ));
            if number == 0 {
                bench.settle();
            }
        }
        bench.settle();
        let stats = bench.nodes[1].host.stats();
        assert_eq!(bench.nodes[1].host.connections.len(), 0);
        assert_eq!((stats.cookies_accepted, stats.passive_opens), (0, 0));
    }
    // The half-open connections are unaffected.
    assert_eq!(bench.nodes[1].host.half_open.len(), BACKLOG);
}

// RFC 4987 §3.6: a SYN answered with a cookie leaves no state, so the SYN-ACK is not retransmitted. Data after a lost
// ACK open the connection.
#[test]
fn data_opens_connection_after_lost_ack() {
    let mut bench = listening(configs(OffloadPolicy::Never), false, BACKLOG);
    flood(&bench, false, 0..140);
    bench.settle();
    bench.passes = |from, frame| {
        let is_bare_ack = matches!(wire::parse(frame), Frame::Tcp(segment)
            if segment.flags == Flags::ACK && segment.payload_len == 0);
        strangers_do_not_answer(from, frame) && !(from == 0 && is_bare_ack)
    };
    let active = bench.nodes[0].connect(server(false), false);
    bench.run(Duration::from_millis(50));
    assert_eq!(bench.nodes[0].established().0, active);
    assert!(bench.nodes[1].host.connections.is_empty());
    // The first segment is lost too.
    bench.passes = |from, frame| strangers_do_not_answer(from, frame) && from == 1;
    bench.nodes[0].send(active, vec![1; 1000]);
    bench.run(Duration::from_millis(50));
    bench.passes = strangers_do_not_answer;
    bench.nodes[0].send(active, vec![2; 1000]);
    bench.run(Duration::from_secs(5));
    bench.nodes[1].established();
    assert_eq!(bench.nodes[1].data(), [[1; 1000], [2; 1000]].concat());
    assert_eq!(bench.resets(1), 0);
}

#[test]
fn old_half_open_connections_yield() {
    let mut bench = listening(configs(OffloadPolicy::Never), false, 2);
    flood(&bench, false, 0..3);
    bench.settle();
    assert_eq!(bench.nodes[1].host.stats().cookies_sent, 1);
    bench.run(HALF_OPEN_YIELDS);
    flood(&bench, false, 3..5);
    bench.settle();
    let host = &bench.nodes[1].host;
    assert_eq!((host.half_open.len(), host.stats().cookies_sent), (2, 1));
    assert_eq!(host.stats().attempt_fails, 2);
    flood(&bench, false, 5..6);
    bench.settle();
    assert_eq!(bench.nodes[1].host.stats().cookies_sent, 2, "these are too young");
}

#[test]
fn half_open_connections_are_reset_with_their_listener() {
    for v6 in [false, true] {
        let mut bench = listening(configs(OffloadPolicy::Never), v6, BACKLOG);
        flood(&bench, v6, 0..3);
        bench.settle();
        let half =
            bench.nodes[1].host.half_open.values().map(|half| half.iss()).collect::<Vec<_>>();
        let listener = *bench.nodes[1].host.listeners.keys().next().unwrap();
        let listener = crate::socket::ListenerId(listener);
        bench.nodes[1].port.request(Request::Unlisten { listener });
        bench.settle();
        let host = &bench.nodes[1].host;
        assert_eq!((host.half_open.len(), host.owners.len()), (0, 0));
        let resets = bench.nodes[1].sent.iter().filter_map(|frame| match wire::parse(frame) {
            Frame::Tcp(segment) if segment.is_reset() => Some((segment.seq - 1, segment.ack.0)),
            _ => None,
        });
        let expected = half.into_iter().zip(1..).collect::<Vec<_>>();
        assert_eq!(resets.collect::<Vec<_>>(), expected, "where the peer accepts them");
    }
}

#[test]
fn syn_acks_follow_a_peer_that_has_moved() {
    let mut bench = listening(configs(OffloadPolicy::Never), false, BACKLOG);
    bench.nodes[1].frame(segment_from_unknown_station(1, false, "S", (7, 0)));
    bench.settle();
    let mut moved = segment_from_unknown_station(1, false, "S", (7, 0));
    moved[6..12].copy_from_slice(&[2, 9, 9, 9, 9, 9]);
    bench.nodes[1].frame(moved);
    bench.settle();
    bench.run(Duration::from_secs(2));
    let sent = bench.nodes[1].sent.iter().filter(|it| matches!(wire::parse(it), Frame::Tcp(_)));
    let to = sent.map(|frame| frame[1]).collect::<Vec<_>>();
    assert_eq!(to, [1, 9, 9]);
}

// RFC 9293 §3.10.7.4, SYN-RECEIVED; RFC 5961 §3.2, §4.2.
#[test]
fn half_open_connections_follow_the_rules_of_syn_received() {
    let mut bench = listening(configs(OffloadPolicy::Never), false, BACKLOG);
    let send = |bench: &mut Bench, flags, seq, ack| {
        bench.nodes[1].sent.clear();
        let frame = segment_from_unknown_station(1, false, flags, (seq, ack));
        bench.nodes[1].to_host.send(ToHost::Frame { data: frame, checksum_valid: false }).unwrap();
        bench.settle();
        let answers = bench.nodes[1].sent.iter().filter_map(|frame| match wire::parse(frame) {
            Frame::Tcp(segment) => {
                let is_syn = segment.flags.contains(Flags::SYN);
                let scale = segment.syn_options.window_scale.unwrap_or(7);
                assert_eq!((segment.window, scale), (if is_syn { 65_535 } else { 511 }, 7));
                Some((segment.flags, segment.seq.0, segment.ack.0))
            }
            _ => None,
        });
        answers.collect::<Vec<_>>()
    };
    let [(flags, iss, 8)] = send(&mut bench, "S", 7, 0)[..] else { panic!("a SYN-ACK") };
    assert_eq!(flags, Flags::SYN | Flags::ACK);
    let again = [(Flags::SYN | Flags::ACK, iss, 8)];
    assert_eq!(send(&mut bench, "S", 7, 0), again, "the SYN-ACK may be lost");
    let challenge = [(Flags::ACK, iss + 1, 8)];
    assert_eq!(send(&mut bench, "S", 70_007, 0), challenge, "another SYN");
    assert_eq!(send(&mut bench, "A", 7, iss + 1), challenge, "before the window");
    assert_eq!(send(&mut bench, "A", 80_000, iss + 1), challenge, "after the window");
    assert_eq!(send(&mut bench, "R", 9, 0), [], "an RST elsewhere in the window");
    assert_eq!(bench.nodes[1].host.half_open.len(), 1);
    assert_eq!(bench.nodes[1].host.connections.len(), 0);
    assert_eq!(send(&mut bench, "A", 8, iss + 1), []);
    bench.nodes[1].established();
}
