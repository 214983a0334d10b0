//! Peer, simulated frame by frame, that closes its window for a long time.

use alloc::{vec, vec::Vec};
use core::net::{IpAddr, SocketAddr};

use etherparse::{PacketBuilder, TcpOptionElement};
use offload_engine::{
    chimney::client::OffloadHandle,
    tcp::{Flags, SeqNum},
    time::Duration,
};

use super::bench::{Bench, address, config};
use crate::{
    socket::{Notice, OffloadPolicy},
    wire::{self, Frame},
};

const PORT: u16 = 5000;
const IRS: u32 = 7_000;
/// Initial window of the peer: equal to smoltcp's initial congestion window.
const WINDOW: u32 = 2_048;
const DATA: usize = 60_000;

/// Connection of host 2 with a simulated peer.
struct SimulatedPeer {
    bench: Bench,
    v6: bool,
    scale: u8,
    handle: OffloadHandle,
    iss: SeqNum,
    /// Number of frames of host 2 that the test has read.
    seen: usize,
}

/// Offset of the first byte, number of bytes, and FIN flag.
type Piece = (u32, u32, bool);

impl SimulatedPeer {
    /// Sends an ACK of `ack` bytes with this window in bytes.
    fn acknowledge(&mut self, ack: u32, window: u32) {
        let ack = self.iss.0.wrapping_add(1).wrapping_add(ack);
        self.frame("A", IRS + 1, ack, (window >> self.scale) as u16);
        self.bench.settle();
    }

    fn frame(&self, flags: &str, seq: u32, ack: u32, window: u16) {
        let ethernet = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
        let ip = match (address(1, self.v6), address(2, self.v6)) {
            (IpAddr::V4(from), IpAddr::V4(to)) => ethernet.ipv4(from.octets(), to.octets(), 64),
            (IpAddr::V6(from), IpAddr::V6(to)) => ethernet.ipv6(from.octets(), to.octets(), 64),
            _ => unreachable!("of one family"),
        };
        let tcp = ip.tcp(1000, PORT, seq, window);
        let options =
            [TcpOptionElement::MaximumSegmentSize(1460), TcpOptionElement::WindowScale(self.scale)];
        let tcp = match flags {
            "S" if self.scale > 0 => tcp.options(&options).unwrap(),
            "S" => tcp.options(&options[..1]).unwrap(),
            _ => tcp,
        };
        self.bench.nodes[1].frame(wire::forged(tcp, flags, ack, &[]));
    }

    /// Data sent since the last call.
    fn sent(&mut self) -> Vec<Piece> {
        let all = &self.bench.nodes[1].sent;
        let new = all[self.seen..].iter().filter_map(|frame| match wire::parse(frame) {
            Frame::Tcp(segment) if segment.sequence_len() > 0 => {
                let start = segment.seq.distance(self.iss + 1).cast_unsigned();
                Some((start, segment.payload_len, segment.flags.contains(Flags::FIN)))
            }
            _ => None,
        });
        let new = new.collect();
        self.seen = all.len();
        new
    }

    /// Opens the connection, posts data and fills the window.
    fn new(v6: bool, scale: u8) -> Self {
        let configs = [1, 2].map(|number| config(number, OffloadPolicy::Never));
        let mut bench = Bench::with(configs);
        bench.passes = |_, frame| !matches!(wire::parse(frame), Frame::Tcp(_));
        bench.nodes[1].listen(SocketAddr::new(address(2, v6), PORT), 8, false);
        let (handle, iss) = (OffloadHandle(0), SeqNum(0));
        let mut peer = Self { bench, v6, scale, handle, iss, seen: 0 };
        peer.frame("S", IRS, 0, WINDOW as u16);
        peer.bench.settle();
        let syn_ack = peer.bench.nodes[1].sent.iter().find_map(|frame| match wire::parse(frame) {
            Frame::Tcp(segment) => Some(segment.seq),
            _ => None,
        });
        peer.iss = syn_ack.expect("a SYN-ACK");
        peer.acknowledge(0, WINDOW);
        peer.handle = peer.bench.nodes[1].established().0;
        peer.bench.nodes[1].send(peer.handle, vec![5; DATA]);
        peer.bench.settle();
        assert_eq!(total(&peer.sent()[1..]), WINDOW);
        peer
    }

    /// Answers probes for `closed`, and returns them.
    fn keep_closed(&mut self, ack: u32, closed: Duration) -> Vec<Piece> {
        let end = self.bench.now + closed;
        let mut probes = Vec::new();
        while self.bench.now < end {
            self.bench.run(Duration::from_millis(10));
            let new = self.sent();
            if !new.is_empty() {
                self.acknowledge(ack, 0);
            }
            probes.extend(new);
        }
        probes
    }

    /// Opens the window for all data, which must follow without a pause.
    fn open(&mut self, ack: u32) {
        let opened_at = self.bench.now;
        let mut received = ack;
        self.acknowledge(received, 32_768);
        while received < DATA as u32 {
            let new = self.sent();
            assert!(!new.is_empty(), "nothing is sent at {received}");
            for (start, length, _) in new {
                if start <= received {
                    received = received.max(start + length);
                }
            }
            self.acknowledge(received, 32_768);
        }
        assert_eq!(self.bench.now, opened_at);
        assert!(self.bench.nodes[1].has(|notice| matches!(notice, Notice::Sent { .. })));
    }
}

fn total(pieces: &[Piece]) -> u32 {
    pieces.iter().map(|(_, length, _)| length).sum()
}

/// RFC 9293 §3.8.6.1: a closed window is probed with one octet; data flows immediately when it opens.
#[test]
fn data_flow_when_a_closed_window_opens() {
    for (v6, scale) in [(false, 0), (false, 7), (true, 0), (true, 7)] {
        for seconds in [0, 5, 20, 75] {
            // The window closes after all data, in the middle of them, or before them.
            for ack in [WINDOW, 1_460, 0] {
                let mut peer = SimulatedPeer::new(v6, scale);
                peer.acknowledge(ack, 0);
                let probes = peer.keep_closed(ack, Duration::from_secs(seconds));
                let context = std::format!("v6 {v6}, scale {scale}, {seconds} s, ack {ack}");
                assert!(
                    probes.iter().all(|probe| *probe == (ack, 1, false)),
                    "{context}: {probes:?}"
                );
                let least = match seconds {
                    0 => 0,
                    5 => 1,
                    20 => 3,
                    _ => 5,
                };
                assert!(probes.len() >= least, "{context}: {probes:?}");
                peer.open(ack);
            }
        }
    }
}

// RFC 9293 §3.8.6, SHLD-16: with a window that has shrunk, but not to 0, old data is retransmitted.
#[test]
fn data_flow_when_a_narrow_window_opens() {
    for seconds in [5, 20, 75] {
        let mut peer = SimulatedPeer::new(false, 0);
        peer.acknowledge(0, 1);
        peer.bench.run(Duration::from_secs(seconds));
        assert!(!peer.sent().is_empty());
        peer.open(0);
    }
}

#[test]
fn repeatedly_closing_window_loses_no_data() {
    let mut peer = SimulatedPeer::new(false, 3);
    let mut received = 0;
    while received < DATA as u32 - 2_000 {
        peer.acknowledge(received, 0);
        peer.keep_closed(received, Duration::from_secs(3));
        peer.acknowledge(received, 4_000);
        let new = peer.sent();
        let (start, length, _) = new[0];
        assert_eq!(start, received);
        // All but the last byte are acknowledged when the window closes.
        received += length - 1;
    }
    peer.acknowledge(received, 0);
    peer.open(received);
}
