//! Segments that smoltcp alone would not process completely.

use alloc::{vec, vec::Vec};
use core::net::SocketAddr;

use etherparse::{PacketBuilder, TcpOptionElement};
use offload_engine::{
    chimney::client::OffloadHandle,
    state::TcpCached,
    status::NdisStatus,
    tcp::{Flags, SeqNum},
    time::Duration,
};

use smoltcp::socket::tcp::{Socket, State};

use super::bench::{Bench, address};
use crate::{
    retrieve::retrieve,
    socket::{HostError, Notice, OffloadPolicy},
    wire::{self, Frame, Segment},
};

const NEVER: [OffloadPolicy; 2] = [OffloadPolicy::Never; 2];
/// Sequence number of the peer's first byte.
const FIRST: u32 = 7_001;
const WINDOW: u16 = 20_000;

/// Host with one connection to a simulated peer, without options except a window scale.
struct Connected {
    bench: Bench,
    handle: OffloadHandle,
    /// Sequence number of the host's first byte.
    first: u32,
    /// Window advertised by the peer in bytes, its scale if not 0, and its port.
    window: u16,
    scale: u8,
    port: u16,
}

/// TCP segments sent by a node.
fn segments(bench: &Bench, node: usize) -> Vec<Segment<'_>> {
    let tcp = |frame| match wire::parse(frame) {
        Frame::Tcp(segment) => Some(segment),
        _ => None,
    };
    bench.nodes[node].sent.iter().filter_map(|frame| tcp(frame)).collect()
}

impl Connected {
    fn new() -> Self {
        Self::with_window(WINDOW, 0)
    }

    /// The peer advertises `window` in its SYN, and later in units of `scale`.
    fn with_window(window: u16, scale: u8) -> Self {
        let mut bench = Bench::new(NEVER);
        bench.nodes[1].listen(SocketAddr::new(address(2, false), 5000), 8, false);
        // Resolves the neighbor, so that ARP delays nothing.
        bench.nodes[0].connect(SocketAddr::new(address(2, false), 4999), false);
        bench.run(Duration::from_millis(100));
        // The test's connection is unknown to host 1, which would answer with RST.
        bench.passes = |_, _| false;
        let mut connected =
            Self { bench, handle: OffloadHandle(0), first: 0, window, scale, port: 1000 };
        connected.bench.nodes[1].sent.clear();
        connected.deliver_and_run("S", FIRST - 1, 0, b"");
        let syn_ack = segments(&connected.bench, 1)[0].seq;
        connected.first = syn_ack.0.wrapping_add(1);
        connected.deliver_and_run("A", FIRST, 0, b"");
        connected.handle = connected.bench.nodes[1].established().0;
        connected.bench.nodes[1].sent.clear();
        connected
    }

    /// Sends a segment of the peer that acknowledges `acknowledged` bytes of the host.
    fn deliver_and_run(&mut self, flags: &str, seq: u32, acknowledged: u32, payload: &[u8]) {
        self.deliver(flags, seq, acknowledged, payload);
        self.bench.run(Duration::from_millis(20));
    }

    fn deliver(&mut self, flags: &str, seq: u32, acknowledged: u32, payload: &[u8]) {
        let frame = self.forge(flags, seq, acknowledged, payload);
        self.bench.nodes[1].frame(frame);
    }

    fn forge(&self, flags: &str, seq: u32, acknowledged: u32, payload: &[u8]) -> Vec<u8> {
        let has_syn = flags.contains('S');
        let window = if has_syn { self.window } else { self.window >> self.scale };
        let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .tcp(self.port, 5000, seq, window);
        let scale = TcpOptionElement::WindowScale(self.scale);
        let builder = if has_syn && self.scale > 0 {
            builder.options(&[TcpOptionElement::Noop, scale]).unwrap()
        } else {
            builder
        };
        let ack = self.first.wrapping_add(acknowledged);
        wire::forged(builder, flags, ack, payload)
    }

    /// State of smoltcp for an empty segment, and whether it is given a frame ahead, and the segment itself.
    fn is_given(&mut self, seq: u32, acknowledged: u32) -> (State, (bool, bool)) {
        let frame = self.forge("A", seq, acknowledged, b"");
        let Frame::Tcp(segment) = wire::parse(&frame) else { panic!("a segment") };
        let host = &self.bench.nodes[1].host;
        let connection = &host.connections[&self.handle];
        let socket = host.sockets.get::<Socket<'_>>(connection.socket);
        let given = retrieve(&segment, &connection.flow, socket, connection.seq_state(socket));
        (socket.state(), (given.ahead.is_some(), given.whole))
    }

    /// Socket of smoltcp.
    fn socket(&mut self) -> &mut Socket<'static> {
        let host = &mut self.bench.nodes[1].host;
        host.sockets.get_mut(host.connections[&self.handle].socket)
    }

    fn sends(&mut self, length: usize) {
        self.bench.nodes[1].send(self.handle, vec![1; length]);
        self.bench.run(Duration::from_millis(1));
    }

    /// True if the host's only list was completed with all its `length` bytes.
    fn acknowledged(&self, length: usize) -> bool {
        self.bench.nodes[1].completed() == [(1, length, NdisStatus::SUCCESS)]
    }

    fn last_ack(&self) -> Option<SeqNum> {
        segments(&self.bench, 1).last().map(|segment| segment.ack)
    }

    /// End of the most recent data segment of the host, in bytes from the start of its stream.
    fn sent_up_to(&self) -> Option<i32> {
        let sent = segments(&self.bench, 1).into_iter();
        sent.map(|sent| (sent.seq + sent.payload_len).distance(SeqNum(self.first))).max()
    }

    fn fins(&self) -> usize {
        let segments = segments(&self.bench, 1);
        segments.iter().filter(|segment| segment.flags.contains(Flags::FIN)).count()
    }
}

// RFC 9293 §3.8.6, §3.8.6.1: a window that closes over data in flight, or a late older acknowledgment with such a
// window, is probed with the first octet; no new data is sent.
#[test]
fn closed_window_over_data_in_flight_is_probed() {
    for acknowledged in [0, 536] {
        let mut connected = Connected::new();
        connected.sends(3_000);
        let most = connected.sent_up_to().unwrap();
        assert!(most > 536);
        connected.window = 0;
        connected.deliver_and_run("A", FIRST, acknowledged, b"");
        connected.bench.nodes[1].sent.clear();
        connected.bench.run(Duration::from_secs(7));
        let next = SeqNum(connected.first) + acknowledged;
        let sent = segments(&connected.bench, 1);
        let again = sent.iter().map(|sent| (sent.seq, sent.payload_len)).collect::<Vec<_>>();
        assert_eq!(again, [(next, 1); 2], "after two seconds, and four more");
        assert!(connected.sent_up_to() <= Some(most), "nothing new");
        connected.window = WINDOW;
        connected.deliver_and_run("A", FIRST, most as u32, b"");
        connected.bench.run(Duration::from_secs(4));
        assert_eq!(connected.sent_up_to(), Some(3_000), "the window is open again");
    }
}

// RFC 9293 §3.8.1, §3.8.6: smoltcp's fast retransmission fills a segment, beyond the window. The excess is not sent,
// nor are acknowledgments with a sequence number after it, which the peer would not accept. smoltcp considers all
// queued data sent, and the window closes and opens again after the accepted data; yet the rest follows.
#[test]
fn data_beyond_the_window_are_deferred() {
    let lengths = [(0, 200, 500), (0, 200, 202), (0, 200, 201), (7, 256, 500), (7, 256, 257)];
    for (scale, window, length) in lengths {
        let mut connected = Connected::with_window(window, scale);
        connected.sends(length);
        assert_eq!(connected.sent_up_to(), Some(window.into()));
        for _ in 0..3 {
            connected.deliver_and_run("A", FIRST, 0, b"");
        }
        let first = SeqNum(connected.first);
        let again = segments(&connected.bench, 1).iter().filter(|sent| sent.seq == first).count();
        assert!(again >= 2 && connected.sent_up_to() == Some(window.into()), "fast retransmission");
        connected.bench.nodes[1].sent.clear();
        connected.deliver_and_run("A", FIRST, 0, b"a");
        connected.deliver_and_run("A", FIRST + 1, 0, b"a");
        let edge = first + u32::from(window);
        let answers = segments(&connected.bench, 1);
        assert!(!answers.is_empty() && answers.iter().all(|sent| !sent.seq.is_after(edge)));
        connected.window = 0;
        connected.deliver_and_run("A", FIRST + 2, window.into(), b"");
        connected.window = WINDOW;
        connected.deliver_and_run("A", FIRST + 2, window.into(), b"");
        connected.bench.nodes[1].sent.clear();
        connected.bench.run(Duration::from_secs(4));
        assert_eq!(connected.sent_up_to(), Some(length as i32), "scale {scale}: the rest, again");
        connected.deliver_and_run("A", FIRST + 2, length as u32, b"");
        assert!(connected.acknowledged(length));
    }
}

// RFC 9293 §3.10.7.4: an opening window is processed in every state, and the FIN is sent last.
#[test]
fn window_opens_after_the_peers_fin() {
    let mut connected = Connected::new();
    connected.deliver_and_run("AF", FIRST, 0, b"");
    connected.window = 600;
    connected.deliver_and_run("A", FIRST + 1, 0, b"");
    connected.sends(3_000);
    connected.bench.nodes[1].shutdown(connected.handle);
    connected.bench.run(Duration::from_millis(1));
    let sent = |connected: &Connected| {
        segments(&connected.bench, 1).iter().map(|sent| sent.payload_len).sum::<u32>()
    };
    let in_flight = sent(&connected);
    assert!(in_flight <= 600 && connected.fins() == 0);
    connected.window = 0;
    connected.deliver_and_run("A", FIRST + 1, in_flight, b"");
    connected.window = WINDOW;
    connected.deliver_and_run("A", FIRST + 1, in_flight, b"");
    assert_eq!((sent(&connected), connected.fins()), (3_000, 1));
    connected.deliver_and_run("A", FIRST + 1, 3_001, b"");
    assert!(connected.bench.nodes[1].has(is_closed) && connected.acknowledged(3_000));
}

// RFC 9293 §3.10.7.4: an RST in SYN-RECEIVED aborts the open, and the SYN that follows it opens another connection.
#[test]
fn reset_attempt_does_not_affect_the_next() {
    let mut connected = Connected::new();
    connected.port = 2001;
    connected.deliver_and_run("S", FIRST - 1, 0, b"");
    connected.deliver("R", FIRST, 0, b"");
    connected.port = 2002;
    connected.deliver_and_run("S", FIRST - 1, 0, b"");
    let syn_ack = segments(&connected.bench, 1).last().unwrap().seq;
    connected.first = syn_ack.0.wrapping_add(1);
    connected.deliver_and_run("A", FIRST, 0, b"");
    let is_of = |port| move |n: &Notice| matches!(n, Notice::Established { remote, .. } if remote.port() == port);
    assert!(
        connected.bench.nodes[1].has(is_of(2002)) && !connected.bench.nodes[1].has(is_of(2001))
    );
    assert_eq!(connected.bench.nodes[1].host.stats().attempt_fails, 1);
}

// RFC 9293 §3.8.4: a peer that probes is alive, and so is one that answers a probe from the right edge of the window.
// With keep-alive on both sides each only answers the other, and sends no probe itself.
#[test]
fn probing_peer_stays_connected() {
    let right_edge = u32::from(u16::MAX);
    for (seq, length) in [(FIRST - 1, 0), (FIRST - 1, 1), (FIRST + right_edge, 0)] {
        let mut connected = Connected::new();
        let mut tcp = TcpCached { keep_alive_enabled: true, ..TcpCached::default() };
        (tcp.ka_timeout, tcp.ka_probe_count) = (1_000, 2);
        connected.bench.nodes[1].host.set_tcp(tcp).unwrap();
        for _ in 0..20 {
            connected.deliver_and_run("A", seq, 0, &b"?"[..length]);
            connected.bench.run(Duration::from_millis(800));
        }
        assert!(!connected.bench.nodes[1].has(|n| matches!(n, Notice::Closed { .. })), "{seq}");
        connected.bench.run(Duration::from_secs(10));
        let limit = Some(HostError::RetransmissionLimit);
        let ended = |n: &Notice| matches!(n, Notice::Closed { error, .. } if *error == limit);
        assert!(connected.bench.nodes[1].has(ended), "it has timed out");
    }
}

// A keep-alive probe with nothing in flight is processed before smoltcp's answer. Not once a FIN is due: in LAST-ACK
// smoltcp would take the extra frame for an old acknowledgment, and answer it in addition to the probe.
#[test]
fn probe_is_not_processed_ahead_once_a_fin_is_due() {
    for peer_has_closed in [false, true] {
        let mut connected = Connected::new();
        if peer_has_closed {
            connected.deliver_and_run("AF", FIRST, 0, b"");
        }
        let rcv_nxt = FIRST + u32::from(peer_has_closed);
        connected.sends(100);
        connected.deliver_and_run("A", rcv_nxt, 100, b"");
        let probe = rcv_nxt - 1;
        let idle = if peer_has_closed { State::CloseWait } else { State::Established };
        assert_eq!(connected.is_given(probe, 100), (idle, (true, true)));
        // The FIN is due and unsent: nothing is in flight yet.
        connected.socket().close();
        let closing = if peer_has_closed { State::LastAck } else { State::FinWait1 };
        assert_eq!(connected.is_given(probe, 100), (closing, (false, true)));
        connected.bench.nodes[1].sent.clear();
        connected.deliver_and_run("A", probe, 100, b"?");
        let answers = segments(&connected.bench, 1).len() - connected.fins();
        assert_eq!((answers, connected.fins()), (1, 1), "{closing}");
    }
    // FIN-WAIT-2: the FIN is acknowledged.
    let mut connected = Connected::new();
    connected.bench.nodes[1].shutdown(connected.handle);
    connected.bench.run(Duration::from_millis(1));
    connected.deliver_and_run("A", FIRST, 1, b"");
    assert_eq!(connected.is_given(FIRST - 1, 1), (State::FinWait2, (true, true)));
}

// RFC 9293 §3.10.7.4: a segment trimmed to RCV.NXT still carries an acknowledgment, and an old segment is answered.
#[test]
fn old_segment_acknowledges() {
    let mut connected = Connected::new();
    connected.deliver_and_run("A", FIRST, 0, b"abc");
    connected.sends(1_000);
    connected.bench.nodes[1].sent.clear();
    connected.deliver_and_run("A", FIRST, 1_000, b"abc");
    assert!(connected.acknowledged(1_000));
    assert_eq!(connected.last_ack(), Some(SeqNum(FIRST + 3)), "the answer");
    assert_eq!(connected.bench.nodes[1].data(), b"abc");
}

// RFC 9293 §3.10.7.4: the same for an empty segment from before RCV.NXT, as smoltcp sends after a timeout, and for one
// from the right edge of the window, as sent by a peer that has filled the window.
#[test]
fn empty_segments_in_range_acknowledge() {
    let window = u32::from(u16::MAX);
    for seq in [FIRST, FIRST + 1, FIRST + 3, FIRST + 4, FIRST + window] {
        let mut connected = Connected::new();
        connected.deliver_and_run("A", FIRST, 0, b"abc");
        connected.sends(1_000);
        let edge = segments(&connected.bench, 1).last().map(|sent| sent.ack + sent.window.into());
        let seq = seq.min(edge.unwrap().0);
        connected.deliver_and_run("A", seq, 1_000, b"");
        assert!(connected.acknowledged(1_000), "{}", seq - FIRST);
    }
}

// RFC 5961 §5.2: segments out of range acknowledge nothing, and unsent data cannot be acknowledged.
#[test]
fn segments_out_of_range_do_not_acknowledge() {
    for (seq, acknowledged) in
        [(FIRST.wrapping_sub(65_600), 1_000), (FIRST + 65_600, 1_000), (FIRST, 1_001), (FIRST, 0)]
    {
        let mut connected = Connected::new();
        connected.deliver_and_run("A", FIRST, 0, b"abc");
        connected.sends(1_000);
        connected.deliver_and_run("A", seq, acknowledged, b"abc");
        assert_eq!(connected.bench.nodes[1].completed(), [], "{seq}, {acknowledged}");
    }
}

// RFC 9293 §3.10.7.4, eighth: a FIN is processed even if all data before it are old.
#[test]
fn fin_after_old_data_is_processed() {
    let mut connected = Connected::new();
    connected.deliver_and_run("A", FIRST, 0, b"abc");
    connected.deliver_and_run("AF", FIRST, 0, b"abc");
    assert_eq!(connected.last_ack(), Some(SeqNum(FIRST + 4)));
    assert!(connected.bench.nodes[1].has(|notice| matches!(notice, Notice::PeerClosed { .. })));
    // Delivered once.
    connected.deliver_and_run("AF", FIRST, 0, b"abc");
    assert_eq!(connected.last_ack(), Some(SeqNum(FIRST + 4)));
}

// RFC 6298 §5.1: duplicate acknowledgments do not prevent the retransmission of a FIN.
#[test]
fn fin_is_retransmitted_after_duplicate_acks() {
    let mut connected = Connected::new();
    connected.sends(100);
    connected.bench.nodes[1].shutdown(connected.handle);
    connected.bench.run(Duration::from_millis(1));
    assert_eq!(connected.fins(), 1);
    for _ in 0..5 {
        connected.deliver_and_run("A", FIRST, 100, b"");
    }
    connected.bench.run(Duration::from_secs(10));
    assert!(connected.fins() > 1);
    // A probe is still answered.
    connected.bench.nodes[1].sent.clear();
    connected.deliver_and_run("A", FIRST - 1, 100, b"");
    assert_eq!(connected.last_ack(), Some(SeqNum(FIRST)));
}

// RFC 9293 §3.10.7.4, eighth: the end is reported after the FIN is acknowledged, though smoltcp delays that ACK.
#[test]
fn end_is_reported_after_the_last_acknowledgment() {
    let mut connected = Connected::new();
    connected.bench.nodes[1].shutdown(connected.handle);
    connected.bench.run(Duration::from_millis(1));
    connected.deliver("AF", FIRST, 1, b"abc");
    for _ in 0..20 {
        connected.bench.run(Duration::from_millis(1));
        let is_answered = connected.last_ack() == Some(SeqNum(FIRST + 4));
        assert!(is_answered || !connected.bench.nodes[1].has(is_closed));
    }
    assert!(connected.bench.nodes[1].has(is_closed));
}

// LAST-ACK: the segment that ends the connection is not answered with RST for its data.
#[test]
fn old_segment_ends_connection() {
    let mut connected = Connected::new();
    connected.deliver_and_run("AF", FIRST, 0, b"abc");
    connected.bench.nodes[1].shutdown(connected.handle);
    connected.bench.run(Duration::from_millis(1));
    connected.bench.nodes[1].sent.clear();
    connected.deliver_and_run("AF", FIRST, 1, b"abc");
    assert!(connected.bench.nodes[1].has(is_closed));
    assert_eq!(connected.bench.nodes[1].sent.len(), 0);
}

// RFC 1337, RFC 9293 §3.10.7.4: a peer without state answers a late segment with RST, which may arrive together with
// its FIN. The client has all data, and receives no error.
#[test]
fn reset_after_both_fins_is_ignored() {
    for closes_first in [true, false] {
        let mut connected = Connected::new();
        let handle = connected.handle;
        if closes_first {
            connected.bench.nodes[1].shutdown(handle);
            connected.bench.run(Duration::from_millis(1));
            connected.deliver_and_run("A", FIRST, 1, b"");
            connected.deliver("FA", FIRST, 1, b"final data");
        } else {
            connected.deliver_and_run("FA", FIRST, 0, b"final data");
            connected.bench.nodes[1].shutdown(handle);
            connected.bench.run(Duration::from_millis(1));
            connected.deliver("A", FIRST + 11, 1, b"");
        }
        connected.deliver("R", FIRST + 11, 1, b"");
        connected.bench.run(Duration::from_secs(1));
        let node = &connected.bench.nodes[1];
        assert_eq!(node.data(), b"final data");
        assert!(node.has(|notice| matches!(notice, Notice::PeerClosed { .. })));
        assert!(node.has(|notice| matches!(notice, Notice::Closed { error: None, .. })));
        connected.bench.nodes[1].sent.clear();
        connected.deliver_and_run("FA", FIRST, 1, b"final data");
        assert_eq!(connected.last_ack(), Some(SeqNum(FIRST + 11)), "its record answers");
        assert_eq!(connected.bench.resets(1), 0);
    }
}

fn is_closed(notice: &Notice) -> bool {
    matches!(notice, Notice::Closed { error: None, .. })
}

/// True if a frame is anything but a bare acknowledgment.
fn is_no_bare_ack(_: usize, frame: &[u8]) -> bool {
    !matches!(wire::parse(frame), Frame::Tcp(segment)
        if segment.sequence_len() == 0 && segment.flags == Flags::ACK)
}

// Both sides have sent data, and every acknowledgment was lost. Each then sends only old segments from before the
// other's RCV.NXT, and their acknowledgment is the only progress for the other.
#[test]
fn old_segments_of_both_ends_acknowledge() {
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

// RFC 9293 §3.6.1: for 2 MSL after the last FIN was acknowledged it is acknowledged again, not reset, whichever side
// closed first. After that no state is left.
#[test]
fn late_segments_are_answered_in_time_wait() {
    for (closes_first, opens_again) in [(true, false), (true, true), (false, false)] {
        let mut connected = Connected::new();
        let (fin, last) = if closes_first { (FIRST, 1) } else { (FIRST, 0) };
        let close = |connected: &mut Connected| {
            connected.bench.nodes[1].shutdown(connected.handle);
            connected.bench.run(Duration::from_millis(20));
        };
        if closes_first {
            close(&mut connected);
        }
        connected.deliver_and_run("AF", fin, last, b"");
        if !closes_first {
            close(&mut connected);
            connected.deliver_and_run("A", FIRST + 1, 1, b"");
        }
        // smoltcp's own TIME-WAIT has ended.
        connected.bench.run(Duration::from_secs(15));
        assert!(connected.bench.nodes[1].host.is_idle());
        connected.bench.nodes[1].sent.clear();
        connected.deliver_and_run("A", FIRST + 1, 1, b"");
        connected.deliver_and_run("AR", FIRST + 1, 1, b"");
        assert!(segments(&connected.bench, 1).is_empty(), "a bare ACK, or an RST");
        connected.bench.run(Duration::from_secs(40));
        connected.deliver_and_run("AF", FIRST, last, b"");
        assert_eq!(connected.last_ack(), Some(SeqNum(FIRST + 1)));
        // That has restarted the timer.
        connected.bench.run(Duration::from_secs(55));
        connected.bench.nodes[1].sent.clear();
        if opens_again {
            connected.deliver_and_run("S", FIRST, 0, b"");
            assert!(segments(&connected.bench, 1).is_empty(), "an old SYN");
            connected.deliver_and_run("S", FIRST + 100_000, 0, b"");
            assert_eq!(connected.last_ack(), Some(SeqNum(FIRST + 100_001)));
            continue;
        }
        connected.deliver_and_run("AF", FIRST, last, b"");
        assert_eq!((connected.last_ack(), connected.bench.resets(1)), (Some(SeqNum(FIRST + 1)), 0));
        connected.bench.run(Duration::from_secs(61));
        connected.deliver_and_run("AF", FIRST, last, b"");
        assert_eq!(connected.bench.resets(1), 1);
    }
}
