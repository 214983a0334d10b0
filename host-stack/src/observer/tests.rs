use etherparse::{PacketBuilder, TcpOptionElement};
use offload_engine::{
    tcp::SeqNum,
    time::{Duration, Instant},
};
use std::vec::Vec;

use super::Flow;
use crate::wire::{self, Frame};

/// Segment between the two ends, with the given options and timestamp.
struct SegmentFields {
    seq: u32,
    ack: Option<u32>,
    syn: bool,
    window: u16,
    options: Vec<TcpOptionElement>,
    payload: usize,
}

fn segment_of(seq: u32, ack: u32, window: u16) -> SegmentFields {
    SegmentFields { seq, ack: Some(ack), syn: false, window, options: Vec::new(), payload: 0 }
}

impl SegmentFields {
    fn frame(&self) -> Vec<u8> {
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .tcp(1, 2, self.seq, self.window)
            .options(&self.options)
            .unwrap();
        let flags = match (self.syn, self.ack) {
            (true, None) => "S",
            (true, Some(_)) => "SA",
            (false, None) => "",
            (false, Some(_)) => "A",
        };
        wire::forged(builder, flags, self.ack.unwrap_or(0), &std::vec![0; self.payload])
    }

    fn arrives(&self, flow: &mut Flow, now: Instant) {
        let frame = self.frame();
        let Frame::Tcp(segment) = wire::parse(&frame) else { panic!() };
        assert!(segment.frame.checksum_is_valid());
        flow.incoming(now, &segment);
    }

    fn is_transmitted(&self, flow: &mut Flow, now: Instant) {
        let frame = self.frame();
        let Frame::Tcp(mut segment) = wire::parse(&frame) else { panic!() };
        flow.outgoing(now, &mut segment);
    }
}

fn syn(seq: u32, ack: Option<u32>, scale: u8, timestamp: u32) -> SegmentFields {
    let options = std::vec![
        TcpOptionElement::MaximumSegmentSize(1460),
        TcpOptionElement::WindowScale(scale),
        TcpOptionElement::Timestamp(timestamp, 0),
    ];
    SegmentFields { seq, ack, syn: true, window: 60_000, options, payload: 0 }
}

/// Accepted flow: their ISN 1000, scale 2; ours 5000, scale 3; our window ends at 1001 + 8000.
fn accepted() -> Flow {
    let mut flow = Flow::new(Instant::ZERO);
    syn(1000, None, 2, 77).arrives(&mut flow, Instant::ZERO);
    syn(5000, Some(1001), 3, 1).is_transmitted(&mut flow, Instant::ZERO);
    segment_of(1001, 5001, 100).arrives(&mut flow, Instant::ZERO);
    flow
}

#[test]
fn handshake_sets_the_variables() {
    let flow = accepted();
    let agreed = flow.agreed().unwrap();
    assert_eq!(agreed.window_scales, Some((2, 3)));
    assert_eq!((agreed.remote_mss, agreed.timestamps, agreed.sack), (Some(1460), true, false));
    assert_eq!((flow.snd_una, flow.snd_max), (SeqNum(5001), SeqNum(5001)));
    // A SYN's window is not scaled; the next one is.
    assert_eq!(flow.right_edge, SeqNum(1001 + 60_000));
    assert_eq!((flow.send_window.snd_wnd, flow.send_window.max_snd_wnd), (400, 60_000));
    assert_eq!(flow.ts_recent, 77);
    assert_eq!(flow.peer_mac.0, [2; 6]);
}

// RFC 9293 §3.10.7.4: an old segment does not change the window, though smoltcp accepts it from any.
#[test]
fn window_follows_wl1_and_wl2() {
    let mut flow = accepted();
    segment_of(5001, 1001, 60_000).is_transmitted(&mut flow, Instant::ZERO);
    let mut data = segment_of(1001, 5001, 500);
    data.payload = 100;
    data.arrives(&mut flow, Instant::ZERO);
    assert_eq!(flow.send_window.snd_wnd, 2_000);
    let mut later = segment_of(1101, 5001, 600);
    later.payload = 100;
    later.arrives(&mut flow, Instant::ZERO);
    data.window = 900;
    data.arrives(&mut flow, Instant::ZERO);
    assert_eq!(flow.send_window.snd_wnd, 2_400, "reordered");
    assert_eq!(flow.send_window.snd_wl1, SeqNum(1101));
    data.ack = Some(5002);
    let mut sent = segment_of(5001, 1001, 60_000);
    sent.payload = 1;
    sent.is_transmitted(&mut flow, Instant::ZERO);
    data.arrives(&mut flow, Instant::ZERO);
    assert_eq!(flow.send_window.snd_wnd, 3_600, "reordered, but it acknowledges more");
}

// RFC 7323 §4.3: segments at Last.ACK.sent update TS.Recent; segments beyond it and older values do not.
#[test]
fn ts_recent_follows_the_last_ack_sent() {
    let mut flow = accepted();
    let at = Instant::ZERO + Duration::from_millis(5);
    let stamped = |seq, value| {
        let mut segment = segment_of(seq, 5001, 100);
        segment.options.push(TcpOptionElement::Timestamp(value, 0));
        segment.payload = 10;
        segment
    };
    stamped(1011, 90).arrives(&mut flow, at);
    assert_eq!(flow.ts_recent, 77, "ahead of what is acknowledged");
    stamped(1001, 80).arrives(&mut flow, at);
    assert_eq!((flow.ts_recent, flow.ts_recent_at), (80, at));
    stamped(1001, 79).arrives(&mut flow, at);
    assert_eq!(flow.ts_recent, 80, "older");
}

#[test]
fn unacceptable_segments_change_nothing() {
    let mut flow = accepted();
    let before = std::format!("{flow:?}");
    segment_of(900_000, 5001, 7).arrives(&mut flow, Instant::from_millis(1));
    assert_eq!(std::format!("{flow:?}"), before);
    // An acknowledgment of unsent data.
    segment_of(1001, 6000, 7).arrives(&mut flow, Instant::ZERO);
    assert_eq!(std::format!("{flow:?}"), before);
    // Another SYN.
    syn(7, None, 9, 9).arrives(&mut flow, Instant::ZERO);
    assert_eq!(std::format!("{flow:?}"), before);
}

// P9: the right edge never moves back.
#[test]
fn right_edge_stays() {
    let mut flow = accepted();
    segment_of(5001, 1001, 10).is_transmitted(&mut flow, Instant::ZERO);
    assert_eq!(flow.right_edge, SeqNum(61_001));
    segment_of(5001, 1101, 7_600).is_transmitted(&mut flow, Instant::ZERO);
    assert_eq!((flow.right_edge, flow.acknowledged), (SeqNum(61_901), SeqNum(1101)));
}

// RFC 6298 §2.2, §2.3: the handshake is the first sample, data follows; §3: no sample of retransmitted segments.
#[test]
fn round_trips_are_timed() {
    let at = Instant::from_millis;
    let mut flow = Flow::new(at(0));
    syn(1000, None, 2, 77).arrives(&mut flow, at(0));
    syn(5000, Some(1001), 3, 1).is_transmitted(&mut flow, at(5));
    assert_eq!(flow.round_trip(), (0, 0));
    segment_of(1001, 5001, 100).arrives(&mut flow, at(45));
    assert_eq!(flow.round_trip(), (8 * 40, 4 * 20));
    SegmentFields { payload: 10, ..segment_of(5001, 1001, 100) }.is_transmitted(&mut flow, at(50));
    SegmentFields { payload: 10, ..segment_of(5011, 1001, 100) }.is_transmitted(&mut flow, at(60));
    segment_of(1001, 5021, 100).arrives(&mut flow, at(98));
    assert_eq!(flow.round_trip(), (8 * 41, 4 * 17), "the older of the two is timed");
    SegmentFields { payload: 10, ..segment_of(5021, 1001, 100) }.is_transmitted(&mut flow, at(100));
    SegmentFields { payload: 10, ..segment_of(5021, 1001, 100) }.is_transmitted(&mut flow, at(300));
    segment_of(1001, 5031, 100).arrives(&mut flow, at(900));
    assert_eq!(flow.round_trip(), (8 * 41, 4 * 17), "ambiguous");

    let mut active = Flow::new(at(0));
    syn(5000, None, 3, 1).is_transmitted(&mut active, at(0));
    syn(1000, Some(5001), 2, 77).arrives(&mut active, at(2));
    assert_eq!(active.round_trip(), (16, 4));
    let mut repeated = Flow::new(at(0));
    syn(5000, None, 3, 1).is_transmitted(&mut repeated, at(0));
    syn(5000, None, 3, 1).is_transmitted(&mut repeated, at(1_000));
    syn(1000, Some(5001), 2, 77).arrives(&mut repeated, at(1_002));
    assert_eq!(repeated.round_trip(), (0, 0));
}
