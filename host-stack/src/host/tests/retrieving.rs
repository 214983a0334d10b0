//! What smoltcp leaves unread of segments is read all the same.

use alloc::{vec, vec::Vec};
use core::net::SocketAddr;

use etherparse::PacketBuilder;
use offload_engine::{
    chimney::client::OffloadHandle,
    status::NdisStatus,
    tcp::{Flags, SeqNum},
    time::Duration,
};

use super::bench::{Bench, address};
use crate::{
    socket::{Notice, OffloadPolicy},
    wire::{self, Frame, TcpFrame},
};

const NEVER: [OffloadPolicy; 2] = [OffloadPolicy::Never; 2];
/// The peer's first byte.
const FIRST: u32 = 7_001;
const WINDOW: u16 = 20_000;

/// A host with one connection, whose peer the test plays, without options.
struct Connected {
    bench: Bench,
    handle: OffloadHandle,
    /// The host's first byte.
    first: u32,
}

/// The TCP segments that a node has sent.
fn segments(bench: &Bench, node: usize) -> Vec<TcpFrame<'_>> {
    let tcp = |frame| match wire::parse(frame) {
        Frame::Tcp(segment) => Some(segment),
        Frame::Fragment | Frame::Other => None,
    };
    bench.nodes[node].sent.iter().filter_map(|frame| tcp(frame)).collect()
}

impl Connected {
    fn new() -> Self {
        let mut bench = Bench::new(NEVER);
        bench.nodes[1].listen(SocketAddr::new(address(2, false), 5000), 8, false);
        // The neighbor is known: nothing that the host sends waits for ARP.
        bench.nodes[0].connect(SocketAddr::new(address(2, false), 4999), false);
        bench.run(Duration::from_millis(100));
        // The test's connection is none of host 1's, which would answer with RST.
        bench.passes = |_, _| false;
        let mut connected = Self { bench, handle: OffloadHandle(0), first: 0 };
        connected.bench.nodes[1].sent.clear();
        connected.says("S", FIRST - 1, 0, b"");
        let syn_ack = segments(&connected.bench, 1)[0].seq;
        connected.first = syn_ack.0.wrapping_add(1);
        connected.says("A", FIRST, 0, b"");
        connected.handle = connected.bench.nodes[1].established().0;
        connected.bench.nodes[1].sent.clear();
        connected
    }

    /// The peer sends a segment that acknowledges `acknowledged` bytes of the host's.
    fn says(&mut self, flags: &str, seq: u32, acknowledged: u32, payload: &[u8]) {
        self.says_with(WINDOW, flags, seq, acknowledged, payload);
    }

    fn says_with(&mut self, window: u16, flags: &str, seq: u32, acknowledged: u32, payload: &[u8]) {
        self.hears(window, flags, seq, acknowledged, payload);
        self.bench.run(Duration::from_millis(20));
    }

    fn hears(&mut self, window: u16, flags: &str, seq: u32, acknowledged: u32, payload: &[u8]) {
        let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .tcp(1000, 5000, seq, window);
        let ack = self.first.wrapping_add(acknowledged);
        let builder = flags.chars().fold(builder, |builder, flag| match flag {
            'S' => builder.syn(),
            'F' => builder.fin(),
            _ => builder.ack(ack),
        });
        let mut frame = Vec::new();
        builder.write(&mut frame, payload).unwrap();
        self.bench.nodes[1].frame(frame);
    }

    fn sends(&mut self, length: usize) {
        self.bench.nodes[1].send(self.handle, vec![1; length]);
        self.bench.run(Duration::from_millis(1));
    }

    /// How often a list of the host's has come back with all its `length` bytes.
    fn acknowledged(&self, length: usize) -> bool {
        self.bench.nodes[1].completed() == [(1, length, NdisStatus::SUCCESS)]
    }

    fn last_ack(&self) -> Option<SeqNum> {
        segments(&self.bench, 1).last().map(|segment| segment.ack)
    }

    fn fins(&self) -> usize {
        let segments = segments(&self.bench, 1);
        segments.iter().filter(|segment| segment.flags.contains(Flags::FIN)).count()
    }
}

// RFC 9293 s3.10.7.4: what is trimmed to RCV.NXT has an acknowledgement still, and an old segment is answered.
#[test]
fn an_old_segment_acknowledges() {
    let mut connected = Connected::new();
    connected.says("A", FIRST, 0, b"abc");
    connected.sends(1_000);
    connected.bench.nodes[1].sent.clear();
    connected.says("A", FIRST, 1_000, b"abc");
    assert!(connected.acknowledged(1_000));
    assert_eq!(connected.last_ack(), Some(SeqNum(FIRST + 3)), "the answer");
    assert_eq!(connected.bench.nodes[1].data(), b"abc");
}

// RFC 9293 s3.10.7.4: so has an empty one from before RCV.NXT, as smoltcp sends them after a time-out, and one from the
// right edge of the window, as a peer sends it that has filled the window.
#[test]
fn empty_segments_acknowledge_from_anywhere_in_reach() {
    let window = u32::from(u16::MAX);
    for seq in [FIRST, FIRST + 1, FIRST + 3, FIRST + 4, FIRST + window] {
        let mut connected = Connected::new();
        connected.says("A", FIRST, 0, b"abc");
        connected.sends(1_000);
        let edge = segments(&connected.bench, 1).last().map(|sent| sent.ack + sent.window.into());
        let seq = seq.min(edge.unwrap().0);
        connected.says("A", seq, 1_000, b"");
        assert!(connected.acknowledged(1_000), "{}", seq - FIRST);
    }
}

// RFC 5961 s5.2: what is out of reach acknowledges nothing, and nothing acknowledges what was not sent.
#[test]
fn nothing_acknowledges_from_out_of_reach() {
    for (seq, acknowledged) in
        [(FIRST.wrapping_sub(65_600), 1_000), (FIRST + 65_600, 1_000), (FIRST, 1_001), (FIRST, 0)]
    {
        let mut connected = Connected::new();
        connected.says("A", FIRST, 0, b"abc");
        connected.sends(1_000);
        connected.says("A", seq, acknowledged, b"abc");
        assert_eq!(connected.bench.nodes[1].completed(), [], "{seq}, {acknowledged}");
    }
}

// RFC 9293 s3.10.7.4, eighth: a FIN counts, whatever is old of the data before it.
#[test]
fn a_fin_behind_old_data_is_heard() {
    let mut connected = Connected::new();
    connected.says("A", FIRST, 0, b"abc");
    connected.says("AF", FIRST, 0, b"abc");
    assert_eq!(connected.last_ack(), Some(SeqNum(FIRST + 4)));
    assert!(connected.bench.nodes[1].has(|notice| matches!(notice, Notice::PeerClosed { .. })));
    // Once.
    connected.says("AF", FIRST, 0, b"abc");
    assert_eq!(connected.last_ack(), Some(SeqNum(FIRST + 4)));
}

// RFC 6298 5.1: duplicate acknowledgements do not keep a FIN from being sent again.
#[test]
fn a_fin_is_sent_again_after_duplicate_acknowledgements() {
    let mut connected = Connected::new();
    connected.sends(100);
    connected.bench.nodes[1].shutdown(connected.handle);
    connected.bench.run(Duration::from_millis(1));
    assert_eq!(connected.fins(), 1);
    for _ in 0..5 {
        connected.says("A", FIRST, 100, b"");
    }
    connected.bench.run(Duration::from_secs(10));
    assert!(connected.fins() > 1);
    // A probe is answered as before.
    connected.bench.nodes[1].sent.clear();
    connected.says("A", FIRST - 1, 100, b"");
    assert_eq!(connected.last_ack(), Some(SeqNum(FIRST)));
}

// RFC 9293 s3.10.7.4, eighth: the end is told when the FIN is acknowledged, though smoltcp delays that.
#[test]
fn the_end_is_told_behind_the_last_acknowledgement() {
    let mut connected = Connected::new();
    connected.bench.nodes[1].shutdown(connected.handle);
    connected.bench.run(Duration::from_millis(1));
    connected.hears(WINDOW, "AF", FIRST, 1, b"abc");
    for _ in 0..20 {
        connected.bench.run(Duration::from_millis(1));
        let is_answered = connected.last_ack() == Some(SeqNum(FIRST + 4));
        assert!(is_answered || !connected.bench.nodes[1].has(is_closed));
    }
    assert!(connected.bench.nodes[1].has(is_closed));
}

// LAST-ACK: what ends the connection is not answered with RST for the data that came with it.
#[test]
fn an_old_segment_ends_a_connection() {
    let mut connected = Connected::new();
    connected.says("AF", FIRST, 0, b"abc");
    connected.bench.nodes[1].shutdown(connected.handle);
    connected.bench.run(Duration::from_millis(1));
    connected.bench.nodes[1].sent.clear();
    connected.says("AF", FIRST, 1, b"abc");
    assert!(connected.bench.nodes[1].has(is_closed));
    assert_eq!(connected.bench.nodes[1].sent.len(), 0);
}

fn is_closed(notice: &Notice) -> bool {
    matches!(notice, Notice::Closed { error: None, .. })
}

// RFC 7323 s2.4, RFC 9293 s3.8.6.1: a window that closes on what is in flight, as one does that was overtaken, lets
// it be sent again, and nothing else.
#[test]
fn what_is_in_flight_goes_again_into_a_shut_window() {
    let mut connected = Connected::new();
    connected.sends(3_000);
    let in_flight = |connected: &Connected| {
        let ends =
            segments(&connected.bench, 1).into_iter().map(|sent| sent.seq + sent.payload_len);
        ends.map(|end| end.distance(SeqNum(connected.first))).max()
    };
    let most = in_flight(&connected);
    assert!(most > Some(536));
    connected.says_with(0, "A", FIRST, 536, b"");
    connected.bench.nodes[1].sent.clear();
    connected.bench.run(Duration::from_secs(10));
    let next = SeqNum(connected.first) + 536;
    assert!(
        segments(&connected.bench, 1).iter().any(|sent| sent.seq == next && sent.payload_len > 0)
    );
    assert!(in_flight(&connected) <= most, "nothing new");
    connected.says("A", FIRST, most.unwrap() as u32, b"");
    connected.bench.run(Duration::from_secs(10));
    assert!(in_flight(&connected) == Some(3_000), "the window is open again");
}

// RFC 9293 s3.10.7.4: a window that opens counts in every state, and the FIN comes last.
#[test]
fn a_window_opens_behind_the_peers_fin() {
    let mut connected = Connected::new();
    connected.says("AF", FIRST, 0, b"");
    connected.sends(3_000);
    connected.bench.nodes[1].shutdown(connected.handle);
    connected.bench.run(Duration::from_millis(1));
    let sent = |connected: &Connected| {
        segments(&connected.bench, 1).iter().map(|sent| sent.payload_len).sum::<u32>()
    };
    let in_flight = sent(&connected);
    assert!(in_flight < 3_000);
    connected.says_with(0, "A", FIRST + 1, in_flight, b"");
    connected.says("A", FIRST + 1, in_flight, b"");
    assert_eq!(sent(&connected), 3_000);
    connected.says("A", FIRST + 1, 3_000, b"");
    assert_eq!(connected.fins(), 1);
    connected.says("A", FIRST + 1, 3_001, b"");
    assert!(connected.bench.nodes[1].has(is_closed) && connected.acknowledged(3_000));
}

/// Whether a frame is anything but an acknowledgement alone.
fn is_no_bare_ack(_: usize, frame: &[u8]) -> bool {
    !matches!(wire::parse(frame), Frame::Tcp(segment)
        if segment.sequence_len() == 0 && segment.flags == Flags::ACK)
}

// Both ends have sent data, and every acknowledgement was lost: each then sends old segments alone, from before the
// other's RCV.NXT, and what they acknowledge is all that the other can learn.
#[test]
fn two_ends_do_not_talk_past_each_other() {
    for v6 in [false, true] {
        let mut bench = Bench::new(NEVER);
        let server = SocketAddr::new(address(2, v6), 5000);
        bench.nodes[1].listen(server, 8, false);
        bench.nodes[0].connect(server, false);
        bench.run(Duration::from_millis(100));
        let handles = [0, 1].map(|index| bench.nodes[index].established().0);
        bench.passes = is_no_bare_ack;
        for (node, handle) in bench.nodes.iter_mut().zip(handles) {
            node.send(handle, vec![5; 6_000]);
        }
        bench.run(Duration::from_millis(50));
        for node in &bench.nodes {
            // More than one segment.
            assert!(node.data().len() > 1_460 && node.completed().is_empty());
        }
        bench.passes = |_, _| true;
        bench.run(Duration::from_secs(5));
        for (node, handle) in bench.nodes.iter().zip(handles) {
            assert_eq!(node.completed(), [(1, 6_000, NdisStatus::SUCCESS)]);
            node.shutdown(handle);
        }
        bench.run(Duration::from_secs(5));
        assert!(bench.nodes.iter().all(|node| node.has(is_closed)));
    }
}
