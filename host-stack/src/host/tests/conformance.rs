//! Host clauses of `docs/conformance/tcp.md`: handshakes, addresses, and smoltcp's behavior before an offload.

use alloc::{vec, vec::Vec};
use core::net::SocketAddr;

use etherparse::PacketBuilder;
use offload_engine::{
    chimney::client::OffloadHandle,
    nbl::NetBufferList,
    state::TcpCached,
    tcp::{Flags, TcpPhase},
    time::Duration,
};

use super::bench::{Bench, address, config};
use crate::{
    host::{ConfigError, HostConfig},
    socket::{HostError, Notice, OffloadPolicy, Request},
    wire::{self, Frame, Segment},
};

const NEVER: [OffloadPolicy; 2] = [OffloadPolicy::Never; 2];
const HERE: [u8; 4] = [10, 0, 0, 2];
const PEER: [u8; 4] = [10, 0, 0, 1];

fn server(v6: bool) -> SocketAddr {
    SocketAddr::new(address(2, v6), 5000)
}

/// Segment of the peer to port 5000 of host 2.
struct SegmentSpec {
    source: [u8; 4],
    destination: [u8; 4],
    mac: [u8; 6],
    flags: &'static str,
    seq: u32,
    ack: u32,
    window: u16,
    options: &'static [u8],
    payload: &'static [u8],
}

const SYN: SegmentSpec = SegmentSpec {
    source: PEER,
    destination: HERE,
    mac: [2, 0, 0, 0, 0, 2],
    flags: "S",
    seq: 7_000,
    ack: 0,
    window: 4096,
    options: &[],
    payload: &[],
};

impl SegmentSpec {
    fn frame(&self) -> Vec<u8> {
        let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], self.mac)
            .ipv4(self.source, self.destination, 64)
            .tcp(1000, 5000, self.seq, self.window)
            .options_raw(self.options)
            .unwrap();
        wire::forged(builder, self.flags, self.ack, self.payload)
    }
}

/// TCP segments sent by a node.
fn segments(bench: &Bench, node: usize) -> Vec<Segment<'_>> {
    let tcp = |frame| match wire::parse(frame) {
        Frame::Tcp(segment) => Some(segment),
        _ => None,
    };
    bench.nodes[node].sent.iter().filter_map(|frame| tcp(frame)).collect()
}

/// Two hosts, the second of which listens on port 5000.
fn listening(policies: [OffloadPolicy; 2]) -> Bench {
    let mut bench = Bench::new(policies);
    bench.nodes[1].listen(SocketAddr::new(address(2, false), 5000), 8, false);
    bench.settle();
    // Resolves the neighbors, so that ARP delays nothing.
    bench.nodes[0].connect(SocketAddr::new(address(2, false), 4999), false);
    bench.run(Duration::from_millis(100));
    bench.nodes[1].sent.clear();
    bench
}

/// Connects from the given port.
fn connect_from(
    bench: &Bench,
    node: usize,
    local: SocketAddr,
    remote: SocketAddr,
) -> OffloadHandle {
    let handle = OffloadHandle(bench.nodes[node].port.allocate());
    bench.nodes[node].port.request(Request::Connect {
        handle,
        endpoint: None,
        local: Some(local),
        remote,
        timeout: Duration::from_secs(60),
        at_once: false,
    });
    handle
}

// RFC 9293 §3.7.1 MUST-14, SHLD-5, MAY-3, MUST-67, §3.2 MUST-65: an MSS option in every SYN and nowhere else. It is the
// MTU less 40, or 60 for IPv6. RFC 9293 §3.7.3 SHLD-6: independent of the path.
#[test]
fn mss_option_is_in_syns_only() {
    for (v6, mtu, mss) in [(false, 1500, 1460), (true, 1500, 1440), (false, 9000, 8960)] {
        let config = |number| HostConfig { mtu, ..config(number, OffloadPolicy::Never) };
        let mut bench = Bench::with([config(1), config(2)]);
        bench.nodes[1].listen(server(v6), 4, false);
        let handle = bench.nodes[0].connect(server(v6), false);
        bench.run(Duration::from_millis(50));
        bench.nodes[0].send(handle, vec![7; 10_000]);
        bench.run(Duration::from_millis(500));
        assert_eq!(bench.nodes[1].data().len(), 10_000);
        for node in [0, 1] {
            for segment in segments(&bench, node) {
                let syn = segment.flags.contains(Flags::SYN);
                assert_eq!(segment.syn_options.mss, syn.then_some(mss), "{segment:?}");
            }
        }
    }
}

// A list with `begins_segment` begins a segment in the same poll as those before it; other lists share segments.
#[test]
fn separate_lists_begin_segments() {
    for (begins_segment, expected) in [(false, [300].to_vec()), (true, [100; 3].to_vec())] {
        let mut bench = Bench::new([OffloadPolicy::Never; 2]);
        bench.nodes[1].listen(server(false), 4, false);
        let handle = bench.nodes[0].connect(server(false), false);
        bench.run(Duration::from_millis(50));
        bench.nodes[0].sent.clear();
        for context in 1..=3 {
            let list = NetBufferList::from_mdl(context, vec![context as u8; 100]);
            bench.nodes[0].port.request(Request::Send { handle, list, begins_segment });
        }
        bench.run(Duration::from_millis(1));
        let segments = segments(&bench, 0);
        let lengths = segments.iter().map(|segment| segment.frame.payload().len());
        assert_eq!(lengths.filter(|length| *length > 0).collect::<Vec<_>>(), expected);
        bench.run(Duration::from_millis(500));
        assert_eq!(bench.nodes[1].data().len(), 300);
    }
}

// RFC 9293 §3.7.1 MUST-15, MUST-16: a SYN without the option implies 536, or 1220 for IPv6.
#[test]
fn without_an_mss_option_536_is_assumed() {
    let mut bench = listening([OffloadPolicy::Never, OffloadPolicy::Always]);
    bench.nodes[1].frame(SYN.frame());
    bench.settle();
    let iss = segments(&bench, 1)[0].seq;
    bench.nodes[1].frame(SegmentSpec { flags: "A", seq: 7_001, ack: iss.0 + 1, ..SYN }.frame());
    bench.settle();
    let initiate = bench.nodes[1].initiates.pop_front().unwrap();
    assert_eq!(initiate.state.tcp.constant.remote_mss, 536);
    assert_eq!(initiate.state.tcp.delegated.state, TcpPhase::Established);

    let octets = |number| match address(number, true) {
        core::net::IpAddr::V6(address) => address.octets(),
        core::net::IpAddr::V4(address) => unreachable!("{address}"),
    };
    let mut bench = Bench::new([OffloadPolicy::Never, OffloadPolicy::Always]);
    bench.nodes[1].listen(server(true), 8, false);
    bench.nodes[0].connect(SocketAddr::new(address(2, true), 4999), false);
    bench.run(Duration::from_millis(100));
    bench.nodes[1].sent.clear();
    let send = |bench: &mut Bench, seq, ack: Option<u32>| {
        let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], SYN.mac)
            .ipv6(octets(1), octets(2), 64)
            .tcp(1000, 5000, seq, 4096);
        let flags = if ack.is_some() { "A" } else { "S" };
        bench.nodes[1].frame(wire::forged(builder, flags, ack.unwrap_or(0), &[]));
        bench.settle();
    };
    send(&mut bench, 7_000, None);
    let iss = segments(&bench, 1)[0].seq;
    send(&mut bench, 7_001, Some(iss.0 + 1));
    let initiate = bench.nodes[1].initiates.pop_front().unwrap();
    assert_eq!(initiate.state.tcp.constant.remote_mss, 1220);
}

// RFC 9293 §3.5 MUST-10: two SYNs that cross open one connection, usable in both directions.
#[test]
fn crossing_syns_open_one_connection() {
    let mut bench = Bench::new(NEVER);
    let ends = [1, 2].map(|number| SocketAddr::new(address(number, false), 6000));
    // Both neighbors must be resolved, or one SYN is delayed.
    for node in [0, 1] {
        bench.nodes[node].connect(SocketAddr::new(ends[1 - node].ip(), 1), false);
    }
    bench.run(Duration::from_millis(200));
    for node in [0, 1] {
        bench.nodes[node].notices.clear();
        bench.nodes[node].sent.clear();
    }
    let handles = [0, 1].map(|node| connect_from(&bench, node, ends[node], ends[1 - node]));
    bench.run(Duration::from_secs(5));
    for node in [0, 1] {
        assert_eq!(bench.nodes[node].established(), (handles[node], false));
        let first = &segments(&bench, node)[0];
        assert!(first.is_open_request(), "{first:?}");
        assert_eq!(bench.resets(node), 0);
        bench.nodes[node].send(handles[node], vec![node as u8; 3_000]);
    }
    bench.run(Duration::from_secs(5));
    for node in [0, 1] {
        assert_eq!(bench.nodes[node].data(), vec![1 - node as u8; 3_000]);
    }
}

// RFC 9293 §3.10.7.4, MUST-11: an RST aborts an active open in SYN-RECEIVED, and its client is notified. A listener's
// connection returns to LISTEN (`opening::reset_of_a_half_open_connection_frees_its_place`).
#[test]
fn reset_of_a_crossing_attempt_is_reported() {
    let mut bench = listening(NEVER);
    let handle = connect_from(
        &bench,
        1,
        SocketAddr::new(address(2, false), 5001),
        SocketAddr::new(address(1, false), 1000),
    );
    bench.passes = |_, _| false;
    bench.settle();
    let to_5001 = |sketch: SegmentSpec| {
        let mut frame = sketch.frame();
        frame[36..38].copy_from_slice(&5001_u16.to_be_bytes());
        frame
    };
    let frame = |data| offload_engine::engine::port::ToHost::Frame { data, checksum_valid: true };
    bench.nodes[1].to_host.send(frame(to_5001(SYN))).unwrap();
    bench.settle();
    bench.nodes[1]
        .to_host
        .send(frame(to_5001(SegmentSpec { flags: "R", seq: 7_001, ..SYN })))
        .unwrap();
    bench.settle();
    assert!(bench.nodes[1].has(|notice| matches!(
        notice,
        Notice::ConnectFailed { handle: of, error: HostError::Reset } if *of == handle
    )));
}

// RFC 9293 §3.9.1.1 MUST-41, MUST-42: a port can be listened on while a connection from it is being opened, without
// effect on either.
#[test]
fn listening_during_an_active_open_succeeds() {
    let mut bench = Bench::new(NEVER);
    let local = SocketAddr::new(address(1, false), 5000);
    bench.nodes[1].listen(server(false), 4, false);
    bench.passes = |_, frame| !matches!(wire::parse(frame), Frame::Tcp(_));
    let handle = connect_from(&bench, 0, local, server(false));
    bench.run(Duration::from_millis(100));
    bench.nodes[0].listen(local, 4, false);
    bench.run(Duration::from_millis(100));
    assert!(bench.nodes[0].has(|notice| matches!(notice, Notice::Listening { .. })));
    bench.passes = |_, _| true;
    bench.run(Duration::from_secs(5));
    assert_eq!(bench.nodes[0].established(), (handle, false));
    let other = bench.nodes[1].connect(local, false);
    bench.run(Duration::from_secs(1));
    assert!(bench.nodes[1].has(|notice| matches!(
        notice,
        Notice::Established { handle: of, .. } if *of == other
    )));
}

// RFC 9293 §3.9.1.1 MUST-46: no connect to a multicast, broadcast or unspecified address.
#[test]
fn connecting_needs_a_unicast_address() {
    let mut bench = Bench::new(NEVER);
    let remotes = [
        "224.0.0.1:5",
        "239.1.2.3:5",
        "255.255.255.255:5",
        "10.0.0.255:5",
        "0.0.0.0:5",
        "[ff02::1]:5",
        "[::ffff:10.0.0.2]:5",
    ];
    for remote in remotes {
        let handle = bench.nodes[0].connect(remote.parse().unwrap(), false);
        bench.settle();
        assert!(
            bench.nodes[0].has(|notice| matches!(
                notice,
                Notice::ConnectFailed { handle: of, error: HostError::NetworkUnreachable } if *of == handle
            )),
            "{remote}"
        );
    }
    assert!(segments(&bench, 0).is_empty());
}

// RFC 9293 §3.9.2.3 MUST-57, MUST-63: a SYN to or from a multicast or broadcast address is neither answered nor
// recorded.
#[test]
fn syns_with_impossible_addresses_are_ignored() {
    let mut bench = Bench::new(NEVER);
    bench.nodes[1].listen("0.0.0.0:5000".parse().unwrap(), 8, false);
    bench.settle();
    let broadcast = [0xff; 6];
    for destination in [[224, 0, 0, 1], [255; 4], [10, 0, 0, 255]] {
        // A frame to the group's Ethernet address, and one to ours.
        bench.nodes[1].frame(SegmentSpec { destination, mac: broadcast, ..SYN }.frame());
        bench.nodes[1].frame(SegmentSpec { destination, ..SYN }.frame());
    }
    for source in [[224, 0, 0, 1], [255; 4], [10, 0, 0, 255], [0; 4]] {
        bench.nodes[1].frame(SegmentSpec { source, ..SYN }.frame());
    }
    bench.run(Duration::from_secs(2));
    assert!(segments(&bench, 1).is_empty());
    assert_eq!(bench.nodes[1].host.half_open.len(), 0);
    assert_eq!(bench.nodes[1].host.stats().attempt_fails, 0, "no handshake was begun");
    bench.nodes[1].frame(SYN.frame());
    bench.settle();
    assert_eq!(bench.nodes[1].host.half_open.len(), 1, "a valid SYN is accepted");
}

// RFC 7323 §2.2, §2.3: a scale is answered with a scale, its absence with none; a SYN's own window is never scaled. RFC
// 7323 §3.2, RFC 2018 §2: the same for timestamps and SACK-permitted.
#[test]
fn options_are_negotiated() {
    // MSS, NOP, window scale 15, SACK permitted, timestamps.
    const ALL: &[u8] = &[2, 4, 5, 180, 1, 3, 3, 15, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0];
    for options in [ALL, &[2, 4, 5, 180]] {
        let offered = options == ALL;
        let mut bench = listening([OffloadPolicy::Never, OffloadPolicy::Always]);
        bench.nodes[1].frame(SegmentSpec { options, ..SYN }.frame());
        bench.settle();
        let answer = segments(&bench, 1).remove(0);
        assert!(answer.flags.contains(Flags::SYN | Flags::ACK));
        let scale = answer.syn_options.window_scale;
        assert_eq!(scale.is_some(), offered);
        assert_eq!(answer.syn_options.sack, offered);
        assert_eq!(answer.timestamps.map(|stamps| stamps.echo), offered.then_some(1));
        assert_eq!(answer.window, u16::MAX, "256 KiB are less with any scale above 2");
        assert!(scale.is_none_or(|scale| scale > 2));
        let ack = answer.seq.0 + 1;
        let stamps: &[u8] = if offered { &[1, 1, 8, 10, 0, 0, 0, 2, 0, 0, 0, 1] } else { &[] };
        let third = SegmentSpec { flags: "A", seq: 7_001, ack, options: stamps, ..SYN };
        bench.nodes[1].frame(third.frame());
        bench.settle();
        let state = bench.nodes[1].initiates.pop_front().unwrap().state;
        let constant = state.tcp.constant;
        assert_eq!(constant.window_scaling_enabled, offered);
        // A scale above 14 counts as 14.
        assert_eq!(constant.snd_wind_scale, if offered { 14 } else { 0 });
        assert_eq!(constant.rcv_wind_scale, scale.unwrap_or(0));
        assert_eq!((constant.sack_enabled, constant.timestamp_enabled), (offered, offered));
        assert_eq!(state.tcp.delegated.snd_wnd, 4096 << constant.snd_wind_scale);
    }
}

// RFC 9293 §3.10.7.1: without a connection an RST is sent, in one of two forms; an RST is never answered.
#[test]
fn segments_without_a_connection_are_reset() {
    let mut bench = listening(NEVER);
    let nowhere = |sketch: SegmentSpec| {
        let mut frame = sketch.frame();
        frame[36..38].copy_from_slice(&7_u16.to_be_bytes());
        offload_engine::engine::port::ToHost::Frame { data: frame, checksum_valid: true }
    };
    bench.nodes[1].to_host.send(nowhere(SegmentSpec { flags: "A", ack: 77, ..SYN })).unwrap();
    bench.nodes[1].to_host.send(nowhere(SegmentSpec { payload: b"abc", ..SYN })).unwrap();
    bench.nodes[1].to_host.send(nowhere(SegmentSpec { flags: "R", ..SYN })).unwrap();
    bench.settle();
    let answers = segments(&bench, 1);
    assert_eq!(answers.len(), 2);
    assert_eq!((answers[0].flags, answers[0].seq.0), (Flags::RST, 77));
    assert_eq!((answers[1].flags, answers[1].seq.0), (Flags::RST | Flags::ACK, 0));
    assert_eq!(answers[1].ack.0, 7_000 + 4, "SYN and payload");
}

// RFC 9293 §3.8.3 MUST-20, MUST-22, RFC 6298 §5.5: a SYN is retransmitted at growing intervals until its time limit.
#[test]
fn syns_back_off() {
    let mut bench = listening(NEVER);
    bench.passes = |_, frame| !matches!(wire::parse(frame), Frame::Tcp(_));
    let start = bench.now;
    let local = SocketAddr::new(address(1, false), 5005);
    let handle = connect_from(&bench, 0, local, server(false));
    let mut times = vec![];
    let mut known = bench.nodes[0].sent.len();
    while times.len() < 5 {
        bench.run(Duration::from_millis(10));
        if bench.nodes[0].sent.len() > known {
            known = bench.nodes[0].sent.len();
            times.push((bench.now - start).as_secs());
        }
    }
    assert_eq!(times, [0, 1, 3, 7, 15]);
    bench.run(Duration::from_secs(50));
    assert!(bench.nodes[0].has(|notice| matches!(
        notice,
        Notice::ConnectFailed { handle: of, error: HostError::TimedOut } if *of == handle
    )));
}

// RFC 9293 §3.4.1: initial sequence numbers differ between connections and between seeds. That they are not
// clock-driven is listed in the table (MUST-8).
#[test]
fn initial_sequence_numbers_are_drawn() {
    let isns = |seed| {
        let mut bench =
            Bench::with([1, 2].map(|n| HostConfig { seed, ..config(n, OffloadPolicy::Never) }));
        for port in 0..50 {
            bench.nodes[0].connect(SocketAddr::new(address(2, false), 9000 + port), false);
        }
        bench.run(Duration::from_millis(100));
        let syns = segments(&bench, 0);
        syns.iter().filter(|s| s.is_open_request()).map(|s| s.seq.0).collect::<Vec<_>>()
    };
    let (first, second) = (isns(1), isns(2));
    let mut all = [first.as_slice(), &second].concat();
    assert_eq!(all.len(), 100);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 100);
    assert!(all[99] - all[0] > 1 << 31, "spread over the whole space");
}

/// Two hosts and a connection, on which the first one probes after `idle` milliseconds.
fn kept_alive(idle: u32, probes: u8) -> Bench {
    let tcp = TcpCached {
        keep_alive_enabled: true,
        ka_timeout: idle,
        ka_probe_count: probes,
        ..Default::default()
    };
    let probing = HostConfig { tcp, ..config(1, OffloadPolicy::Never) };
    let mut bench = Bench::with([probing, config(2, OffloadPolicy::Never)]);
    bench.nodes[1].listen(server(false), 4, false);
    bench.nodes[0].connect(server(false), false);
    bench.run(Duration::from_secs(1));
    bench
}

// RFC 9293 §3.8.4 MUST-26, RFC 1122 §4.2.3.6: an idle connection in the host is probed if keep-alive is enabled, and
// survives as long as it is answered.
#[test]
fn keep_alive_in_the_host() {
    let mut bench = kept_alive(10_000, 3);
    bench.nodes[0].established();
    bench.nodes[0].sent.clear();
    bench.run(Duration::from_secs(300));
    let probes = segments(&bench, 0).len();
    assert!((25..=35).contains(&probes), "{probes} in 300 s");
    assert!(!bench.nodes[0].has(|notice| matches!(notice, Notice::Closed { .. })));
    bench.passes = |from, _| from == 0;
    bench.run(Duration::from_secs(60));
    assert!(bench.nodes[0].has(|notice| matches!(
        notice,
        Notice::Closed { error: Some(HostError::RetransmissionLimit), .. }
    )));
}

// In TIME-WAIT no probe is sent, and silence causes no reset.
#[test]
fn time_wait_outlasts_keep_alive() {
    let mut bench = kept_alive(1_000, 1);
    for node in 0..2 {
        let (handle, _) = bench.nodes[node].established();
        bench.nodes[node].shutdown(handle);
        bench.run(Duration::from_millis(500));
    }
    assert!(bench.nodes[0].has(|notice| matches!(notice, Notice::Closed { error: None, .. })));
    bench.run(Duration::from_secs(100));
    assert_eq!(bench.resets(0), 0);
}

// The same with an idle time of 0, which a consumer may set: smoltcp would send endless probes. Changed settings apply
// to existing connections; invalid ones are rejected.
#[test]
fn changed_settings_apply_to_existing_connections() {
    let mut bench = Bench::new(NEVER);
    bench.nodes[1].listen(server(false), 4, false);
    bench.nodes[0].connect(server(false), false);
    bench.run(Duration::from_secs(1));
    bench.nodes[0].established();
    bench.nodes[0].sent.clear();
    bench.run(Duration::from_secs(30));
    assert!(segments(&bench, 0).is_empty(), "keep-alive is off");
    let tcp = TcpCached { keep_alive_enabled: true, ka_timeout: 0, ..TcpCached::default() };
    bench.nodes[0].host.set_tcp(tcp).unwrap();
    bench.run(Duration::from_secs(30));
    let probes = segments(&bench, 0).len();
    assert!((25..=35).contains(&probes), "{probes} in 30 s");
    let error = bench.nodes[0].host.set_tcp(TcpCached { ttl_or_hop_limit: 0, ..tcp });
    assert_eq!(error, Err(ConfigError::Ttl));
}

// RFC 9293 §3.8.3 MUST-23: a SYN-ACK is retransmitted, and its answer accepted, for three minutes.
#[test]
fn accepted_handshake_times_out_after_three_minutes() {
    let mut bench = listening(NEVER);
    bench.passes = |_, frame| !matches!(wire::parse(frame), Frame::Tcp(_));
    bench.nodes[1].frame(SYN.frame());
    bench.run(Duration::from_secs(179));
    let sent = segments(&bench, 1);
    assert!(sent.len() >= 7, "{} SYN-ACKs", sent.len());
    let iss = sent[0].seq;
    bench.nodes[1].frame(SegmentSpec { flags: "A", seq: 7_001, ack: iss.0 + 1, ..SYN }.frame());
    bench.settle();
    bench.nodes[1].established();
}

// RFC 9293 §3.6.1 MAY-2, §3.10.7.4: a SYN beyond the old connection reopens it from TIME-WAIT; an old one does not.
#[test]
fn new_syn_starts_connection_in_time_wait() {
    let mut bench = listening(NEVER);
    bench.passes = |_, _| false;
    bench.nodes[1].frame(SYN.frame());
    bench.settle();
    let iss = segments(&bench, 1)[0].seq;
    let third = SegmentSpec { flags: "A", seq: 7_001, ack: iss.0 + 1, ..SYN };
    bench.nodes[1].frame(third.frame());
    bench.settle();
    let (handle, _) = bench.nodes[1].established();
    bench.nodes[1].shutdown(handle);
    bench.settle();
    let mut fin = SegmentSpec { flags: "A", seq: 7_001, ack: iss.0 + 2, ..SYN }.frame();
    fin[47] |= 1;
    let fin = offload_engine::engine::port::ToHost::Frame { data: fin, checksum_valid: true };
    bench.nodes[1].to_host.send(fin).unwrap();
    bench.settle();
    assert!(bench.nodes[1].has(|notice| matches!(notice, Notice::Closed { error: None, .. })));
    bench.nodes[1].sent.clear();
    bench.nodes[1].frame(SegmentSpec { seq: 7_000, ..SYN }.frame());
    bench.settle();
    assert!(segments(&bench, 1).is_empty());
    assert_eq!(bench.nodes[1].host.stats().duplicate_syns, 1);
    bench.nodes[1].frame(SegmentSpec { seq: 7_003, ..SYN }.frame());
    bench.settle();
    let answers = segments(&bench, 1);
    assert_eq!((answers.len(), answers[0].flags), (1, Flags::SYN | Flags::ACK));
    assert_eq!(answers[0].ack.0, 7_004);
}

// RFC 7323 §7.1: a peer cannot read the host's uptime from its timestamps.
#[test]
fn timestamp_clock_starts_at_random() {
    let first = |seed| {
        let mut bench =
            Bench::with([1, 2].map(|n| HostConfig { seed, ..config(n, OffloadPolicy::Never) }));
        bench.nodes[0].connect(server(false), false);
        bench.run(Duration::from_millis(50));
        segments(&bench, 0)[0].timestamps.expect("offered").value
    };
    let (one, two) = (first(1), first(2));
    assert!(one.abs_diff(two) > 1 << 16, "{one}, {two}");
}
