//! The monitor must pass legal traces and fail on each violation: hand-written traces, in pairs.

mod feed;
mod leniency;

use std::time::Duration;

use etherparse::{IpDscp, IpEcn, IpHeaders, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header};
use etherparse::{PacketBuilder, TcpHeader, TcpOptionElement};

use super::{Clause, Feed, Mac, Monitor, Rules, Way};

const OUR_MAC: Mac = [2, 0, 0, 0, 0, 1];
const THEIR_MAC: Mac = [2, 0, 0, 0, 0, 2];
/// Sequence numbers wrap within the first bytes.
const OUR_ISN: u32 = 0xffff_fff0;
const THEIR_ISN: u32 = 5000;
const OUR_SCALE: u8 = 3;
const OUR_WINDOW: u16 = 1000;
const THEIR_WINDOW: u16 = 2000;
const MS: u64 = 1_000_000;
/// TSvals at time 0.
const OUR_CLOCK: u32 = 0xffff_fffe;
const THEIR_CLOCK: u32 = 77;

#[derive(Clone, Debug)]
struct Forged {
    /// Relative to the ISN.
    seq: u32,
    ack: Option<u32>,
    flags: &'static str,
    window: u16,
    payload: Vec<u8>,
    timestamps: Option<(u32, u32)>,
    options: Vec<TcpOptionElement>,
    ecn: IpEcn,
    ttl: u8,
    dont_fragment: bool,
    mac: Option<Mac>,
    damaged: bool,
}

impl Forged {
    fn new(flags: &'static str, seq: u32, ack: u32, payload: &[u8], window: u16) -> Self {
        Self {
            seq,
            ack: Some(ack),
            flags,
            window,
            payload: payload.to_vec(),
            timestamps: None,
            options: Vec::new(),
            ecn: IpEcn::NotEct,
            ttl: 64,
            dont_fragment: true,
            mac: None,
            damaged: false,
        }
    }
}

/// A segment of the host, with its window.
fn ours(flags: &'static str, seq: u32, ack: u32, payload: &[u8]) -> Forged {
    Forged::new(flags, seq, ack, payload, OUR_WINDOW)
}

/// A segment of the peer.
fn theirs(flags: &'static str, seq: u32, ack: u32, payload: &[u8]) -> Forged {
    Forged::new(flags, seq, ack, payload, THEIR_WINDOW)
}

fn with_sack(forged: Forged, blocks: &[(u32, u32)]) -> Forged {
    let absolute = |&(start, end): &(u32, u32)| (THEIR_ISN + start, THEIR_ISN + end);
    let mut rest = [None; 3];
    for (slot, block) in rest.iter_mut().zip(&blocks[1..]) {
        *slot = Some(absolute(block));
    }
    let option = TcpOptionElement::SelectiveAcknowledgement(absolute(&blocks[0]), rest);
    Forged { options: vec![option], ..forged }
}

#[derive(Clone, Copy, Debug)]
struct Offer {
    scales: bool,
    sack: bool,
    timestamps: bool,
    ecn: bool,
}

const ALL: Offer = Offer { scales: true, sack: true, timestamps: true, ecn: true };
const PLAIN: Offer = Offer { scales: true, sack: true, timestamps: false, ecn: false };

struct Trace {
    monitor: Monitor,
    now_ms: u64,
    timestamps: bool,
    /// Latest TSval received.
    echo: u32,
    v6: bool,
}

impl Trace {
    fn new(v6: bool) -> Self {
        Self::of(v6, true)
    }

    fn of(v6: bool, in_order: bool) -> Self {
        let rules = Rules {
            mac: OUR_MAC,
            mtu: 1500,
            gso_packets: false,
            window_max: 16_000,
            lag: Duration::ZERO,
            resets: false,
            in_order,
            echoes_latest_timestamp: false,
        };
        Self { monitor: Monitor::new(rules), now_ms: 1, timestamps: false, echo: 0, v6 }
    }

    /// Trace after the handshake, opened by the host.
    fn open(offer: Offer) -> Self {
        let mut trace = Self::new(false);
        trace.handshake(offer);
        trace
    }

    fn handshake(&mut self, offer: Offer) {
        self.timestamps = offer.timestamps;
        let mut syn = ours(if offer.ecn { "SEW" } else { "S" }, 0, 0, &[]);
        syn.ack = None;
        syn.options = syn_options(offer, OUR_SCALE);
        self.sent(syn);
        let mut answer = theirs(if offer.ecn { "SE" } else { "S" }, 0, 1, &[]);
        answer.options = syn_options(offer, 0);
        self.received(answer);
        self.sent(ours("", 1, 1, &[]));
    }

    fn frame(&self, way: Way, forged: Forged) -> Vec<u8> {
        let (isns, ports, macs, hosts) = match way {
            Way::Sent => ([OUR_ISN, THEIR_ISN], [4000, 5000], [OUR_MAC, THEIR_MAC], [1, 2]),
            Way::Received => ([THEIR_ISN, OUR_ISN], [5000, 4000], [THEIR_MAC, OUR_MAC], [2, 1]),
        };
        let has = |letter| forged.flags.contains(letter);
        let mut tcp =
            TcpHeader::new(ports[0], ports[1], isns[0].wrapping_add(forged.seq), forged.window);
        (tcp.syn, tcp.fin, tcp.rst) = (has('S'), has('F'), has('R'));
        (tcp.urg, tcp.ece, tcp.cwr, tcp.ns) = (has('U'), has('E'), has('W'), has('N'));
        tcp.ack = forged.ack.is_some();
        tcp.acknowledgment_number = forged.ack.map_or(0, |ack| isns[1].wrapping_add(ack));
        let mut options = forged.options.clone();
        let now = self.now_ms as u32;
        let clocks = match way {
            Way::Sent => (OUR_CLOCK.wrapping_add(now), self.echo),
            Way::Received => (THEIR_CLOCK + now, OUR_CLOCK.wrapping_add(now)),
        };
        let stamps = forged.timestamps.or_else(|| self.timestamps.then_some(clocks));
        options.extend(stamps.map(|(value, echo)| TcpOptionElement::Timestamp(value, echo)));
        tcp.set_options(&options).unwrap();
        let macs = [forged.mac.unwrap_or(macs[0]), macs[1]];
        let ip = self.ip(&forged, hosts, tcp.header_len() + forged.payload.len());
        let mut frame = Vec::new();
        PacketBuilder::ethernet2(macs[0], macs[1])
            .ip(ip)
            .tcp_header(tcp)
            .write(&mut frame, &forged.payload)
            .unwrap();
        if forged.damaged {
            *frame.last_mut().unwrap() ^= 1;
        }
        frame
    }

    fn ip(&self, forged: &Forged, hosts: [u8; 2], bytes: usize) -> IpHeaders {
        if self.v6 {
            let address = |host| [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host];
            let header = Ipv6Header {
                traffic_class: forged.ecn.value(),
                flow_label: Ipv6FlowLabel::ZERO,
                payload_length: bytes as u16,
                next_header: IpNumber::TCP,
                hop_limit: forged.ttl,
                source: address(hosts[0]),
                destination: address(hosts[1]),
            };
            return IpHeaders::Ipv6(header, Default::default());
        }
        let [from, to] = hosts.map(|host| [10, 0, 0, host]);
        let mut header =
            Ipv4Header::new(bytes as u16, forged.ttl, IpNumber::TCP, from, to).unwrap();
        header.ecn = forged.ecn;
        header.dscp = IpDscp::ZERO;
        header.dont_fragment = forged.dont_fragment;
        IpHeaders::Ipv4(header, Default::default())
    }

    /// Sends a segment a millisecond after the previous one.
    fn sent(&mut self, forged: Forged) {
        self.now_ms += 1;
        self.sent_at_once(forged);
    }

    /// Sends a segment at the time of the previous one.
    fn sent_at_once(&mut self, forged: Forged) {
        let frame = self.frame(Way::Sent, forged);
        self.monitor.frame(self.now_ms * MS, Way::Sent, &frame);
    }

    fn received(&mut self, forged: Forged) {
        self.now_ms += 1;
        self.received_at_once(forged);
    }

    fn received_at_once(&mut self, forged: Forged) {
        self.echo = THEIR_CLOCK + self.now_ms as u32;
        let frame = self.frame(Way::Received, forged);
        self.monitor.frame(self.now_ms * MS, Way::Received, &frame);
    }

    fn clauses(&self) -> Vec<Clause> {
        self.monitor.violations().iter().map(|violation| violation.clause).collect()
    }
}

fn syn_options(offer: Offer, scale: u8) -> Vec<TcpOptionElement> {
    let mut options = vec![TcpOptionElement::MaximumSegmentSize(1460)];
    if offer.scales {
        options.push(TcpOptionElement::WindowScale(scale));
    }
    if offer.sack {
        options.push(TcpOptionElement::SelectiveAcknowledgementPermitted);
    }
    options
}

/// Asserts that `then` is legal after a handshake with these options.
#[track_caller]
fn legal(offer: Offer, then: impl FnOnce(&mut Trace)) -> super::Counts {
    let mut trace = Trace::open(offer);
    then(&mut trace);
    trace.monitor.expect_legal("the forged host")
}

/// Asserts that the last segment of `then`, and no other, violates `clause` after a handshake with these
/// options.
#[track_caller]
fn violates(clause: Clause, offer: Offer, then: impl FnOnce(&mut Trace)) {
    let mut trace = Trace::open(offer);
    then(&mut trace);
    assert_eq!(trace.clauses(), [clause], "{:?}", trace.monitor.violations());
    assert_eq!(trace.monitor.violations()[0].time_ns, trace.now_ms * MS);
}

#[test]
fn legal_connection_passes_in_both_families() {
    for v6 in [false, true] {
        let mut trace = Trace::new(v6);
        trace.handshake(ALL);
        trace.sent(ours("", 1, 1, &[7; 1000]));
        trace.received(theirs("", 1, 1001, &[8; 500]));
        trace.sent(ours("", 1001, 501, &[]));
        trace.received(theirs("F", 501, 1001, &[]));
        trace.sent(ours("F", 1001, 502, b"last"));
        trace.received(theirs("", 502, 1006, &[]));
        let counts = trace.monitor.expect_legal("the forged host");
        assert_eq!((counts.segments, counts.bytes, counts.fins), (5, 1004, 1));
        assert_eq!((counts.retransmitted, counts.idle_acks, counts.resets), (0, 0, 0));
    }
}

// RFC 9293 §3.1, §3.10.
#[test]
fn headers() {
    for flags in ["U", "N"] {
        violates(Clause::Header, PLAIN, |trace| trace.sent(ours(flags, 1, 1, b"a")));
    }
    violates(Clause::Header, PLAIN, |trace| {
        trace.sent(Forged { ack: None, ..ours("", 1, 1, b"a") });
    });
    violates(Clause::Header, PLAIN, |trace| {
        trace.sent(Forged { damaged: true, ..ours("", 1, 1, b"a") });
    });
}

// RFC 1071 §2: the checksum of data whose sum is zero is 0 or 0xffff.
#[test]
fn both_zero_checksums_are_accepted() {
    const CHECKSUM: std::ops::Range<usize> = 50..52;
    for (checksum, is_legal) in [([0x00, 0x00], true), ([0xff, 0xff], true), ([0xff, 0xfe], false)]
    {
        let mut trace = Trace::open(PLAIN);
        // A segment that contains the checksum of the rest has a sum of zero.
        let rest = trace.frame(Way::Received, theirs("", 1, 1, &[0, 0]));
        let mut frame = trace.frame(Way::Received, theirs("", 1, 1, &rest[CHECKSUM]));
        assert_eq!(frame[CHECKSUM], [0, 0]);
        frame[CHECKSUM].copy_from_slice(&checksum);
        trace.monitor.frame(trace.now_ms * MS, Way::Received, &frame);
        trace.sent(ours("", 1, 3, &[]));
        assert_eq!(trace.clauses().is_empty(), is_legal, "{checksum:02x?}");
    }
}

// RFC 9293 §3.5.
#[test]
fn handshakes() {
    let mut again = ours("S", 0, 0, &[]);
    again.ack = None;
    again.options = syn_options(PLAIN, OUR_SCALE);
    legal(PLAIN, |trace| trace.sent(again.clone()));
    for (seq, scale) in [(1, OUR_SCALE), (0, OUR_SCALE + 1)] {
        let options = syn_options(PLAIN, scale);
        violates(Clause::Handshake, PLAIN, |trace| {
            trace.sent(Forged { seq, options, ..again.clone() });
        });
    }
    let mut trace = Trace::new(false);
    trace.sent(ours("", 1, 1, b"a"));
    assert_eq!(trace.clauses(), [Clause::Handshake]);
    // A late SYN of a connection that either side has reset opens a new connection.
    for reset_by in [Some(Way::Sent), Some(Way::Received), None] {
        let resets = reset_by.is_some();
        let mut trace = Trace::open(PLAIN);
        trace.monitor.rules.resets = true;
        match reset_by {
            Some(Way::Sent) => trace.sent(ours("R", 1, 1, &[])),
            Some(Way::Received) => trace.received(theirs("R", 1, 1, &[])),
            None => {}
        }
        trace.received(Forged { ack: None, ..theirs("S", 0, 0, &[]) });
        trace.sent(ours("S", 1_000, 1, &[]));
        assert_eq!(trace.clauses().is_empty(), resets);
    }
}

// RFC 9293 §3.4.
#[test]
fn sequence_numbers() {
    let data = [7; 100];
    let counts = legal(PLAIN, |trace| {
        trace.sent(ours("", 1, 1, &data));
        trace.sent(ours("", 51, 1, &data));
        trace.received(theirs("", 1, 101, &[]));
        // Arrived at the same instant: not binding yet.
        trace.sent_at_once(ours("", 51, 1, &[7; 50]));
        trace.sent(ours("", 101, 1, &[7; 50]));
        trace.sent(ours("", 100, 1, &[]));
    });
    assert_eq!((counts.retransmitted, counts.bytes, counts.probes), (3, 150, 1));
    // A keep-alive probe before an acknowledgment of the same instant, which may have been processed.
    let probes = legal(PLAIN, |trace| {
        trace.sent(ours("", 1, 1, &data));
        trace.received(theirs("", 1, 101, &[]));
        trace.sent_at_once(ours("", 100, 1, &[0]));
    });
    assert_eq!((probes.bytes, probes.probes), (100, 0));
    assert_eq!(counts.bytes_retransmitted, 50 + 50 + 50);
    // Acknowledged bytes are retransmitted.
    violates(Clause::Sequence, PLAIN, |trace| {
        trace.sent(ours("", 1, 1, &data));
        trace.received(theirs("", 1, 51, &[]));
        trace.sent(ours("", 50, 1, &data));
    });
    // An acknowledgment number too low; one too high; a gap.
    for (seq, payload) in [(49, &b""[..]), (102, b""), (102, b"x")] {
        violates(Clause::Sequence, PLAIN, |trace| {
            trace.sent(ours("", 1, 1, &data));
            trace.received(theirs("", 1, 51, &[]));
            trace.sent(ours("", seq, 1, payload));
        });
    }
}

// Input that a stack may ignore is not binding: an unacceptable segment, an older one.
#[test]
fn nonbinding_acknowledgment_may_be_ignored() {
    legal(PLAIN, |trace| {
        trace.sent(ours("", 1, 1, &[7; 100]));
        trace.received(theirs("", 1, 1, b"abc"));
        trace.sent(ours("", 101, 4, &[]));
        trace.received(theirs("", 1, 101, b"abc"));
        trace.sent(ours("", 1, 4, &[7; 100]));
        trace.received(theirs("", 1 + 16_000, 101, b"x"));
        trace.sent(ours("", 1, 4, &[7; 100]));
    });
    // More than fits the window, and data after it.
    legal(PLAIN, |trace| {
        trace.sent(ours("", 1, 1, &[7; 100]));
        trace.received(theirs("", 1, 1, &[8; 8_100]));
        trace.received(theirs("", 8_101, 101, &[]));
        trace.sent(ours("", 1, 8_001, &[7; 100]));
    });
    legal(ALL, |trace| {
        trace.sent(ours("", 1, 1, &[7; 100]));
        let old = Some((THEIR_CLOCK, OUR_CLOCK));
        trace.received(Forged { timestamps: old, ..theirs("", 1, 101, &[]) });
        let echo = THEIR_CLOCK + 3;
        let stamps = Some((OUR_CLOCK.wrapping_add(6), echo));
        trace.sent(Forged { timestamps: stamps, ..ours("", 1, 1, &[7; 100]) });
    });
    // Damaged, in the payload or in IPv4's reserved flag, or for another station.
    let damages: [fn(&mut [u8]); 3] =
        [|frame| *frame.last_mut().unwrap() ^= 1, |frame| frame[20] ^= 0x80, |frame| frame[5] = 9];
    for damage in damages {
        let mut trace = Trace::open(PLAIN);
        trace.sent(ours("", 1, 1, &[7; 100]));
        let mut frame = trace.frame(Way::Received, theirs("", 1, 101, b"x"));
        damage(&mut frame);
        trace.monitor.frame(trace.now_ms * MS, Way::Received, &frame);
        trace.sent(ours("", 1, 1, &[7; 100]));
        trace.monitor.expect_legal("the forged host");
        trace.sent(ours("", 101, 2, &[]));
        assert_eq!(trace.clauses(), [Clause::Acknowledgment]);
    }
}

// RFC 9293 §3.10.7.4: data that may have been old when processed need not have acknowledged anything.
#[test]
fn several_queues_may_reorder_frames() {
    for in_order in [true, false] {
        let mut trace = Trace::of(false, in_order);
        trace.handshake(PLAIN);
        trace.sent(ours("", 1, 1, &[7; 100]));
        trace.received(theirs("", 1, 101, b"x"));
        trace.sent(ours("", 1, 2, &[7; 100]));
        let expected: &[Clause] = if in_order { &[Clause::Sequence] } else { &[] };
        assert_eq!(trace.clauses(), expected);
    }
}

#[test]
fn content() {
    legal(PLAIN, |trace| {
        trace.sent(ours("", 1, 1, b"abcdef"));
        trace.sent(ours("", 3, 1, b"cdefgh"));
    });
    violates(Clause::Content, PLAIN, |trace| {
        trace.sent(ours("", 1, 1, b"abcdef"));
        trace.sent(ours("", 3, 1, b"cdxfgh"));
    });
}

// RFC 9293 §3.6.
#[test]
fn fins() {
    let counts = legal(PLAIN, |trace| {
        trace.sent(ours("F", 1, 1, b"abc"));
        trace.sent(ours("F", 4, 1, &[]));
        trace.sent(ours("", 1, 1, b"ab"));
        trace.sent(ours("", 5, 1, &[]));
    });
    assert_eq!((counts.fins, counts.retransmitted), (1, 2));
    let wrong: [(&str, u32, &[u8]); 4] =
        [("F", 3, b""), ("F", 3, b"c!"), ("", 4, b"!"), ("", 5, b"!")];
    for (flags, seq, payload) in wrong {
        violates(Clause::Fin, PLAIN, |trace| {
            trace.sent(ours("F", 1, 1, b"abc"));
            trace.sent(ours(flags, seq, 1, payload));
        });
    }
    // A FIN before data that was already sent.
    violates(Clause::Fin, PLAIN, |trace| {
        trace.sent(ours("", 1, 1, b"abc"));
        trace.sent(ours("F", 3, 1, &[]));
    });
}

// RFC 9293 §3.8.6.
#[test]
fn peer_window_is_enforced() {
    legal(PLAIN, |trace| {
        trace.sent(ours("", 1, 1, &[7; 1400]));
        trace.sent(ours("", 1401, 1, &[7; 600]));
        // A FIN needs no window.
        trace.sent(ours("F", 2001, 1, &[]));
    });
    violates(Clause::PeerWindow, PLAIN, |trace| {
        trace.sent(ours("", 1, 1, &[7; 1400]));
        trace.sent(ours("", 1401, 1, &[7; 601]));
    });
    // A closed window is probed by one byte.
    let close = |trace: &mut Trace| {
        trace.sent(ours("", 1, 1, &[7; 1400]));
        trace.sent(ours("", 1401, 1, &[7; 600]));
        trace.received(Forged { window: 0, ..theirs("", 1, 2001, &[]) });
    };
    let counts = legal(PLAIN, |trace| {
        close(trace);
        trace.sent(ours("", 2001, 1, &[7; 1]));
        trace.sent(ours("", 2001, 1, &[7; 1]));
    });
    assert_eq!(counts.probes, 2);
    violates(Clause::PeerWindow, PLAIN, |trace| {
        close(trace);
        trace.sent(ours("", 2001, 1, &[7; 2]));
    });
    violates(Clause::PeerWindow, PLAIN, |trace| {
        trace.sent(ours("", 1, 1, &[7; 1400]));
        trace.sent(ours("", 1401, 1, &[7; 600]));
        trace.sent(ours("", 2001, 1, &[7; 1]));
    });
    // A window opens with its acknowledgment, scaled by the SYN's option.
    let mut trace = Trace::open(PLAIN);
    trace.received(Forged { window: 3000, ..theirs("", 1, 1, &[]) });
    trace.sent(ours("", 1, 1, &[7; 1460]));
    trace.sent(ours("", 1461, 1, &[7; 1460]));
    trace.monitor.expect_legal("the forged host");
}

// RFC 6691: options count toward the size.
#[test]
fn segment_sizes() {
    legal(PLAIN, |trace| trace.sent(ours("", 1, 1, &[7; 1460])));
    violates(Clause::SegmentSize, PLAIN, |trace| trace.sent(ours("", 1, 1, &[7; 1461])));
    legal(ALL, |trace| trace.sent(ours("", 1, 1, &[7; 1448])));
    violates(Clause::SegmentSize, ALL, |trace| trace.sent(ours("", 1, 1, &[7; 1449])));
}

// RFC 9293 §3.4.
#[test]
fn acknowledgments() {
    legal(PLAIN, |trace| {
        trace.received(theirs("", 1, 1, b"abc"));
        trace.sent(ours("", 1, 3, &[]));
        trace.received(theirs("F", 4, 1, &[]));
        trace.sent(ours("", 1, 5, &[]));
    });
    // Decreasing; beyond the received data; over a gap; the FIN before the data.
    violates(Clause::Acknowledgment, PLAIN, |trace| {
        trace.received(theirs("", 1, 1, b"abc"));
        trace.sent(ours("", 1, 4, &[]));
        trace.sent(ours("", 1, 3, &[]));
    });
    let unseen: [(u32, &'static str, u32); 3] = [(1, "", 5), (2, "", 5), (2, "F", 6)];
    for (seq, flags, ack) in unseen {
        violates(Clause::Acknowledgment, PLAIN, |trace| {
            trace.received(theirs(flags, seq, 1, b"abc"));
            trace.sent(ours("", 1, ack, &[]));
        });
    }
}

// RFC 7323 §2.4.
#[test]
fn right_edge_is_enforced() {
    let unit = 1 << OUR_SCALE;
    let advertised = u32::from(OUR_WINDOW) << OUR_SCALE;
    let full = vec![8; 1000];
    legal(PLAIN, |trace| {
        trace.received(theirs("", 1, 1, &full));
        let window = ((advertised - 1000) / unit) as u16;
        trace.sent(Forged { window, ..ours("", 1, 1001, &[]) });
        trace.received(theirs("", 1001, 1, b"abc"));
        // Rounded down: seven bytes less.
        trace.sent(Forged { window: window - 1, ..ours("", 1, 1004, &[]) });
    });
    violates(Clause::RightEdge, PLAIN, |trace| {
        trace.received(theirs("", 1, 1, &full));
        let window = ((advertised - 1000) / unit) as u16 - 1;
        trace.sent(Forged { window, ..ours("", 1, 1001, &[]) });
    });
    // Another scale than in the SYN.
    violates(Clause::RightEdge, PLAIN, |trace| {
        trace.sent(Forged { window: OUR_WINDOW / 2, ..ours("", 1, 1, &[]) });
    });
    violates(Clause::WindowLimit, PLAIN, |trace| {
        trace.sent(Forged { window: OUR_WINDOW * 4, ..ours("", 1, 1, &[]) });
    });
}

// RFC 7323 §3.2, §5.4.
#[test]
fn timestamps() {
    legal(ALL, |trace| trace.sent(ours("", 1, 1, b"a")));
    violates(Clause::Timestamps, ALL, |trace| {
        trace.timestamps = false;
        trace.sent(ours("", 1, 1, b"a"));
    });
    violates(Clause::Timestamps, PLAIN, |trace| {
        trace.sent(Forged { timestamps: Some((OUR_CLOCK, THEIR_CLOCK)), ..ours("", 1, 1, b"a") });
    });
    // The handshake ends at 4 ms, the segment is sent at 5 ms: backward, slow within a tick's tolerance, and
    // fast.
    for (ticks, is_legal) in [(3, false), (4, true), (6, true), (12, false)] {
        let stamps = Some((OUR_CLOCK.wrapping_add(ticks), THEIR_CLOCK + 3));
        let then = |trace: &mut Trace| {
            trace.sent(Forged { timestamps: stamps, ..ours("", 1, 1, b"a") });
        };
        match is_legal {
            true => drop(legal(ALL, then)),
            false => violates(Clause::Timestamps, ALL, then),
        }
    }
}

// RFC 7323 §4.3.
#[test]
fn echoes_of_timestamps() {
    let echo = |echo: u32, trace: &mut Trace| {
        let value = OUR_CLOCK.wrapping_add(trace.now_ms as u32 + 1);
        trace.sent(Forged { timestamps: Some((value, echo)), ..ours("", 1, 1, &[]) });
    };
    // The TSval of the SYN-ACK was THEIR_CLOCK + 3.
    legal(ALL, |trace| echo(THEIR_CLOCK + 3, trace));
    violates(Clause::Echo, ALL, |trace| echo(THEIR_CLOCK + 4, trace));
    let back = |trace: &mut Trace| {
        trace.received(theirs("", 1, 1, &[]));
        echo(THEIR_CLOCK + 5, trace);
        echo(THEIR_CLOCK + 3, trace);
    };
    violates(Clause::Echo, ALL, back);
    let mut trace = Trace::open(ALL);
    trace.monitor.rules.echoes_latest_timestamp = true;
    back(&mut trace);
    assert_eq!(trace.clauses(), []);
    echo(THEIR_CLOCK + 4, &mut trace);
    assert_eq!(trace.clauses(), [Clause::Echo]);
}

// RFC 2018 §4, RFC 2883 §4.
#[test]
fn sack_blocks() {
    let hole = |trace: &mut Trace| {
        trace.received(theirs("", 11, 1, &[8; 10]));
        trace.received(theirs("", 31, 1, &[8; 10]));
    };
    let counts = legal(PLAIN, |trace| {
        hole(trace);
        trace.sent(with_sack(ours("", 1, 1, &[]), &[(31, 41), (11, 21)]));
        // A duplicate, within the second block; an acknowledged one.
        trace.sent(with_sack(ours("", 1, 1, &[]), &[(12, 14), (11, 21)]));
        trace.received(theirs("", 1, 1, &[8; 10]));
        trace.sent(with_sack(ours("", 1, 21, &[]), &[(1, 11), (31, 41)]));
    });
    assert_eq!(counts.with_sack, 3);
    // Not received; received in part; adjacent to SEG.ACK; empty.
    for block in [(51, 61), (31, 42), (1, 21), (31, 31)] {
        violates(Clause::Sack, PLAIN, |trace| {
            hole(trace);
            trace.sent(with_sack(ours("", 1, 1, &[]), &[block]));
        });
    }
    violates(Clause::Sack, Offer { sack: false, ..PLAIN }, |trace| {
        hole(trace);
        trace.sent(with_sack(ours("", 1, 1, &[]), &[(11, 21)]));
    });
}

// RFC 2018 §8: SACKed data is kept.
#[test]
fn reneging() {
    let promise = |trace: &mut Trace| {
        trace.received(theirs("", 11, 1, &[8; 10]));
        trace.sent(with_sack(ours("", 1, 1, &[]), &[(11, 21)]));
        trace.received(theirs("", 1, 1, &[8; 10]));
    };
    legal(PLAIN, |trace| {
        promise(trace);
        trace.sent(ours("", 1, 21, &[]));
    });
    for ack in [11, 15] {
        violates(Clause::Reneging, PLAIN, |trace| {
            promise(trace);
            trace.sent(ours("", 1, ack, &[]));
        });
    }
}

#[test]
fn ip_headers() {
    let ordinary = ours("", 1, 1, &[]);
    violates(Clause::Ip, PLAIN, |trace| trace.sent(Forged { ttl: 63, ..ordinary.clone() }));
    violates(Clause::Ip, PLAIN, |trace| {
        trace.sent(Forged { dont_fragment: false, ..ordinary.clone() });
    });
    violates(Clause::Ip, PLAIN, |trace| {
        trace.sent(Forged { mac: Some(THEIR_MAC), ..ordinary.clone() });
    });
}

// RFC 3168 §6.1.
#[test]
fn congestion_marks() {
    let capable = |forged: Forged| Forged { ecn: IpEcn::Ect0, ..forged };
    let marked = |trace: &mut Trace, seq: u32| {
        let ecn = IpEcn::CongestionExperienced;
        trace.received(Forged { ecn, ..theirs("", seq, 1, b"a") });
    };
    let counts = legal(ALL, |trace| {
        trace.sent(capable(ours("", 1, 1, b"a")));
        trace.sent(ours("", 1, 1, b"a"));
        marked(trace, 1);
        trace.sent(ours("E", 2, 2, &[]));
        trace.sent(ours("E", 2, 2, &[]));
        trace.received(theirs("WE", 2, 1, b"a"));
        trace.sent(capable(ours("W", 2, 3, b"b")));
    });
    assert_eq!(counts.echoes, 2);
    // Not negotiated.
    violates(Clause::Ecn, PLAIN, |trace| trace.sent(capable(ours("", 1, 1, b"a"))));
    violates(Clause::Ecn, PLAIN, |trace| trace.sent(ours("E", 1, 1, b"a")));
    // An acknowledgment; a retransmission; CE set by the sender.
    violates(Clause::Ecn, ALL, |trace| trace.sent(capable(ours("", 1, 1, &[]))));
    violates(Clause::Ecn, ALL, |trace| {
        trace.sent(ours("", 1, 1, b"a"));
        trace.sent(capable(ours("", 1, 1, b"a")));
    });
    violates(Clause::Ecn, ALL, |trace| {
        trace.sent(Forged { ecn: IpEcn::CongestionExperienced, ..ours("", 1, 1, b"a") });
    });
    // An echo without a mark; CWR without new data; no echo.
    violates(Clause::Ecn, ALL, |trace| trace.sent(ours("E", 1, 1, &[])));
    violates(Clause::Ecn, ALL, |trace| trace.sent(ours("W", 1, 1, &[])));
    violates(Clause::Ecn, ALL, |trace| {
        marked(trace, 1);
        trace.sent(ours("", 1, 2, &[]));
    });
    // Not processed yet.
    legal(ALL, |trace| {
        marked(trace, 1);
        marked(trace, 2);
        trace.sent(ours("", 1, 1, &[]));
        trace.sent(ours("E", 1, 3, &[]));
    });
}

#[test]
fn resets() {
    violates(Clause::Reset, PLAIN, |trace| trace.sent(ours("R", 1, 1, &[])));
    let mut trace = Trace::open(PLAIN);
    trace.monitor.rules.resets = true;
    trace.sent(ours("R", 1, 1, &[]));
    assert_eq!(trace.monitor.expect_legal("the forged host").resets, 1);
    // A segment of a closed connection may cause an RST; one of an open connection must not.
    let close = |trace: &mut Trace| {
        trace.received(theirs("F", 1, 1, &[]));
        trace.sent(ours("F", 1, 2, &[]));
    };
    legal(PLAIN, |trace| {
        close(trace);
        trace.received(theirs("", 2, 2, &[]));
        trace.sent(ours("R", 2, 2, &[]));
    });
    violates(Clause::Reset, PLAIN, |trace| {
        close(trace);
        trace.sent(ours("R", 2, 2, &[]));
    });
    // RSTs of the peer count while the connection is open.
    assert_eq!(legal(PLAIN, |trace| trace.received(theirs("R", 1, 1, &[]))).peer_resets, 1);
    let counts = legal(PLAIN, |trace| {
        close(trace);
        trace.received(theirs("", 2, 2, &[]));
        trace.received(theirs("R", 2, 2, &[]));
    });
    assert_eq!(counts.peer_resets, 0);
}

#[test]
fn idle_acks_are_counted() {
    let counts = legal(PLAIN, |trace| {
        trace.received(theirs("", 1, 1, b"a"));
        trace.sent(ours("", 1, 2, &[]));
        trace.sent(ours("", 1, 2, &[]));
        // An acknowledgment of received data is not idle.
        trace.received(theirs("", 1, 1, b"a"));
        trace.sent(ours("", 1, 2, &[]));
    });
    assert_eq!(counts.idle_acks, 1);
}

// Within the lag the host need not have processed a segment; after it, it must have.
#[test]
fn lag_delays_binding() {
    for (lag_ms, is_legal) in [(3, true), (1, false)] {
        let mut trace = Trace::open(PLAIN);
        trace.monitor.rules.lag = Duration::from_millis(lag_ms);
        trace.sent(ours("", 1, 1, b"abc"));
        trace.received(theirs("", 1, 4, &[]));
        trace.now_ms += 1;
        trace.sent(ours("", 1, 1, b"abc"));
        assert_eq!(trace.clauses().is_empty(), is_legal, "{lag_ms} ms");
    }
}
