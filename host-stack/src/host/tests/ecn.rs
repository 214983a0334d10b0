//! ECN on behalf of a stack that does not support it (RFC 3168 §6.1.1, §6.1.3).

use alloc::vec::Vec;
use core::net::SocketAddr;

use offload_engine::{
    state::ConnectionState,
    tcp::{Ecn, Flags},
    time::Duration,
};

use super::bench::{Bench, address, config};
use crate::{
    host::HostConfig,
    socket::OffloadPolicy,
    wire::{self, Frame},
};

const ECN: Flags = Flags(Flags::ECE.0 | Flags::CWR.0);

/// Two hosts, each with or without ECN.
fn bench(ecn: [bool; 2], policy: OffloadPolicy) -> Bench {
    let configs =
        [0, 1].map(|index| HostConfig { ecn: ecn[index], ..config(index as u8 + 1, policy) });
    Bench::with(configs)
}

/// Opens a connection, with time for a lost SYN.
fn open(bench: &mut Bench, v6: bool) {
    let to = SocketAddr::new(address(2, v6), 5000);
    bench.nodes[1].listen(to, 4, false);
    bench.run(Duration::from_millis(1));
    bench.nodes[0].connect(to, false);
    bench.run(Duration::from_secs(3));
}

/// Flags and ECN bits of the TCP segments sent by `node`; verifies the checksums.
fn sent(bench: &Bench, node: usize) -> Vec<(Flags, Ecn)> {
    let segments = bench.nodes[node].sent.iter().filter_map(|frame| match wire::parse(frame) {
        Frame::Tcp(segment) => {
            assert!(segment.frame.checksum_is_valid());
            Some((segment.flags, segment.frame.ecn))
        }
        _ => None,
    });
    segments.collect()
}

/// Marks the IP header of a frame.
fn mark(frame: &mut [u8], ecn: Ecn) {
    if frame[12..14] == [0x08, 0x00] {
        let before = u16::from_be_bytes([frame[14], frame[15]]);
        frame[15] |= ecn.bits();
        let after = u16::from_be_bytes([frame[14], frame[15]]);
        let sum = u16::from_be_bytes([frame[24], frame[25]]) - (after - before);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    } else {
        frame[15] |= ecn.bits() << 4;
    }
}

fn states(bench: &mut Bench) -> Vec<ConnectionState> {
    let nodes = bench.nodes.iter_mut();
    nodes.filter_map(|node| node.initiates.pop_front()).map(|initiate| *initiate.state).collect()
}

// RFC 3168 §6.1.1: SYN with ECE and CWR, SYN-ACK with ECE alone, nothing in the IP header.
#[test]
fn ecn_is_negotiated_if_both_enable_it() {
    for v6 in [false, true] {
        for (enabled, offer, accept) in [
            ([true, true], ECN, Flags::ECE),
            ([true, false], ECN, Flags::default()),
            ([false, true], Flags::default(), Flags::default()),
            ([false, false], Flags::default(), Flags::default()),
        ] {
            let mut bench = bench(enabled, OffloadPolicy::Always);
            open(&mut bench, v6);
            let (ours, theirs) = (sent(&bench, 0), sent(&bench, 1));
            assert_eq!(ours[0], (Flags::SYN | offer, Ecn::NotCapable), "{enabled:?}");
            assert_eq!(
                theirs[0],
                (Flags::SYN | Flags::ACK | accept, Ecn::NotCapable),
                "{enabled:?}"
            );
            let later = ours[1..].iter().chain(&theirs[1..]);
            assert!(later.into_iter().all(|(flags, _)| flags.0 & ECN.0 == 0));
            let states = states(&mut bench);
            assert_eq!(states.len(), 2);
            for state in states {
                assert_eq!(state.tcp.constant.ecn_enabled, enabled == [true, true]);
                assert!(!state.tcp.delegated.ecn_echo);
            }
        }
    }
}

// RFC 3168 §6.1.1.1: an unanswered SYN that offers ECN is retransmitted without the offer.
#[test]
fn repeated_syn_does_not_offer_ecn() {
    let mut bench = bench([true, true], OffloadPolicy::Always);
    bench.passes = |from, frame| {
        from != 0 || !matches!(wire::parse(frame), Frame::Tcp(segment) if segment.offers_ecn())
    };
    open(&mut bench, false);
    let ours = sent(&bench, 0);
    assert_eq!((ours[0].0, ours[1].0), (Flags::SYN | ECN, Flags::SYN));
    assert!(states(&mut bench).iter().all(|state| !state.tcp.constant.ecn_enabled));
}

// RFC 3168 §6.1.1: a SYN-ACK with both flags is sent by a peer that mirrors reserved bits.
#[test]
fn mirrored_ecn_flags_are_no_agreement() {
    let mut bench = bench([true, false], OffloadPolicy::Always);
    let to = SocketAddr::new(address(2, false), 5000);
    bench.nodes[1].listen(to, 4, false);
    bench.run(Duration::from_millis(1));
    bench.passes = |from, frame| {
        from != 1
            || !matches!(wire::parse(frame), Frame::Tcp(segment) if segment.flags.contains(Flags::SYN))
    };
    bench.nodes[0].connect(to, false);
    bench.run(Duration::from_millis(500));
    let answer =
        bench.nodes[1].sent.iter().find(|frame| matches!(wire::parse(frame), Frame::Tcp(_)));
    let mut answer = answer.expect("a SYN-ACK").clone();
    let Frame::Tcp(segment) = wire::parse(&answer) else { panic!() };
    let tcp_at = segment.tcp_at;
    wire::add_flags(&mut answer, tcp_at, ECN);
    bench.nodes[0].frame(answer);
    bench.run(Duration::from_millis(1));
    let state = bench.nodes[0].initiates.pop_front().expect("established").state;
    assert!(!state.tcp.constant.ecn_enabled);
}

// RFC 3168 §6.1.3: a connection in the host echoes marks until CWR; the echo state is offloaded with it.
#[test]
fn marks_are_echoed_in_the_host() {
    for v6 in [false, true] {
        let mut bench = bench([true, true], OffloadPolicy::Never);
        open(&mut bench, v6);
        let (handle, _) = bench.nodes[0].established();
        bench.passes = |from, _| from != 0;
        let send = |bench: &mut Bench, flags: Flags, ecn| {
            bench.nodes[0].sent.clear();
            bench.nodes[0].send(handle, &b"data"[..]);
            bench.run(Duration::from_millis(1));
            let mut frame = bench.nodes[0].sent[0].clone();
            let Frame::Tcp(segment) = wire::parse(&frame) else { panic!() };
            let tcp_at = segment.tcp_at;
            wire::add_flags(&mut frame, tcp_at, flags);
            mark(&mut frame, ecn);
            bench.nodes[1].sent.clear();
            bench.nodes[1].frame(frame);
            bench.run(Duration::from_millis(100));
            let answers = sent(bench, 1);
            assert!(!answers.is_empty());
            answers.iter().all(|(flags, ecn)| {
                assert_eq!(*ecn, Ecn::NotCapable);
                flags.contains(Flags::ECE)
            })
        };
        let none = Flags::default();
        assert!(!send(&mut bench, none, Ecn::Capable0));
        assert!(send(&mut bench, none, Ecn::Congestion));
        assert!(send(&mut bench, none, Ecn::Capable0));
        assert!(!send(&mut bench, Flags::CWR, Ecn::Capable0));
        assert!(send(&mut bench, Flags::CWR, Ecn::Congestion));
        assert_eq!(bench.nodes[1].data(), b"data".repeat(5));
    }
}

// The incremental checksum equals the full one, whatever the header contains (RFC 1624).
#[test]
fn flags_keep_the_checksum_right() {
    for v6 in [false, true] {
        for seed in 1..20 {
            let configs = [1, 2].map(|index| HostConfig {
                ecn: true,
                seed,
                ..config(index, OffloadPolicy::Always)
            });
            let mut bench = Bench::with(configs);
            let to = SocketAddr::new(address(2, v6), 5000);
            bench.nodes[1].listen(to, 4, false);
            bench.nodes[0].connect(to, false);
            bench.run(Duration::from_millis(10));
            assert!(sent(&bench, 0).len() + sent(&bench, 1).len() >= 2);
        }
    }
}
