mod icmp;

use alloc::{vec, vec::Vec};
use core::net::IpAddr;

use etherparse::{
    Icmpv4Type, Icmpv6Type, NetSlice, PacketBuilder, SlicedPacket, TcpOptionElement, TransportSlice,
};
use proptest::prelude::*;

use super::*;
use crate::{
    checksum,
    memory::{Piece, SharedSpan},
    segment::{Ecn, Flags, PathErrorKind, SackBlock, SeqNum, SoftError, Timestamps},
    state::{ConnectionState, MacAddress, TcpState},
};

const NO_SACK: [SackBlock; 4] = [SackBlock { start: SeqNum(0), end: SeqNum(0) }; 4];

fn state(source: &str, destination: &str) -> ConnectionState {
    let local = SocketAddr::new(source.parse().unwrap(), 40_000);
    let remote = SocketAddr::new(destination.parse().unwrap(), 5000);
    let mut state = ConnectionState::established(local, remote, (SeqNum(1), SeqNum(1)), 1);
    state.tcp.constant.timestamp_enabled = true;
    state.tcp.constant.sack_enabled = true;
    state.tcp.constant.window_scaling_enabled = true;
    state
}

fn tcp_state() -> TcpState {
    state("10.0.0.1", "10.0.0.2").tcp
}

fn template(source: &str, destination: &str, vlan_id: u16) -> HeaderTemplate {
    make_template(source, destination, vlan_id, &tcp_state())
}

fn template_of(ipv6: bool, tcp: &TcpState) -> HeaderTemplate {
    let (source, destination) =
        if ipv6 { ("fd00::1", "fd00::2") } else { ("10.0.0.1", "10.0.0.2") };
    make_template(source, destination, 0, tcp)
}

fn tagged_template(vlan_id: u16, tcp: &TcpState) -> HeaderTemplate {
    make_template("10.0.0.1", "10.0.0.2", vlan_id, tcp)
}

fn make_template(source: &str, destination: &str, vlan_id: u16, tcp: &TcpState) -> HeaderTemplate {
    let ConnectionState { mut neighbor, path, .. } = state(source, destination);
    neighbor.constant.vlan_id = vlan_id;
    neighbor.cached.dl_destination_address = MacAddress([2, 0, 0, 0, 0, 9]);
    HeaderTemplate::new(&neighbor, &path, tcp, MacAddress([2, 0, 0, 0, 0, 1]))
}

fn build(template: &mut HeaderTemplate, segment: &SegmentHeader<'_>, payload: &[u8]) -> Vec<u8> {
    let mut header = [0; HEADER_BYTES_MAX];
    let length = template.write(&mut header, segment, 1);
    // Split at odd offsets: the pieces have odd lengths, and are private and shared.
    let (left, right) = Piece::Private(payload).split_at(payload.len() / 3);
    let shared = SharedSpan::allocate(payload.len().max(1), 1).unwrap();
    shared.write(0, payload);
    let middle = shared.view().slice(left.len(), right.len() / 2);
    let rest = right.split_at(middle.len()).1;
    let pieces = [left, Piece::Shared(middle), rest];
    template.finish_checksum(&mut header[..length], pieces.into_iter());
    [&header[..length], payload].concat()
}

/// Fields compared between two parsers of a frame: flow, ECN bits, SEG.SEQ and payload.
type Reading = (FlowKey, Ecn, SeqNum, Vec<u8>);

fn by_classify(frame: &[u8]) -> Option<Reading> {
    let tcp = classify(frame)?;
    let mut sack = NO_SACK;
    let segment = tcp.segment(0, &mut sack);
    assert_eq!(segment.payload.len(), tcp.octets().1);
    Some((tcp.flow, tcp.ecn, segment.seq, segment.payload.to_vec()))
}

/// Expected result of `classify`, parsed by `etherparse`.
fn by_etherparse(frame: &[u8]) -> Option<Reading> {
    let sliced = SlicedPacket::from_ethernet(frame).ok()?;
    let TransportSlice::Tcp(tcp) = sliced.transport.as_ref()? else { return None };
    // One customer tag (802.1Q) is parsed. etherparse also parses service tags, 0x88a8 and 0x9100.
    let tagged = frame[12..14] == [0x81, 0];
    if sliced.link_exts.len() != usize::from(tagged) {
        return None;
    }
    let (ecn, local, remote): (u8, IpAddr, IpAddr) = match sliced.net.as_ref()? {
        NetSlice::Ipv4(ip) => {
            let header = ip.header();
            let sum = checksum::fold(checksum::add(0, header.slice()));
            if header.ihl() != 5 || header.is_fragmenting_payload() || sum != 0xffff {
                return None;
            }
            (header.ecn().value(), header.destination_addr().into(), header.source_addr().into())
        }
        NetSlice::Ipv6(ip) => {
            let header = ip.header();
            // RFC 8200 §3, RFC 2675: a length of 0 denotes a jumbogram, which etherparse reads to the end of the frame.
            if header.next_header() != etherparse::IpNumber::TCP || header.payload_length() == 0 {
                return None;
            }
            (header.ecn().value(), header.destination_addr().into(), header.source_addr().into())
        }
        NetSlice::Arp(_) => return None,
    };
    let flow =
        FlowKey::new((local, tcp.destination_port()).into(), (remote, tcp.source_port()).into());
    Some((flow, Ecn::from_bits(ecn), SeqNum(tcp.sequence_number()), tcp.payload().to_vec()))
}

proptest! {
    // RFC 791, RFC 8200, RFC 9293 §3.1: `classify` reads the same fields as etherparse, whatever is damaged in the
    // headers.
    #[test]
    fn classify_agrees_with_etherparse(
        ipv6 in any::<bool>(),
        vlan_id in prop_oneof![Just(0_u16), Just(7)],
        seq in any::<u32>(),
        ecn in 0_u8..4,
        damage in proptest::collection::vec((12_usize..80, any::<u8>()), 0..3),
        cut in 0_usize..120,
        padding in 0_usize..9,
    ) {
        let (source, destination) = if ipv6 { ("fd00::1", "fd00::2") } else { ("10.0.0.1", "10.0.0.2") };
        let mut template = template(source, destination, vlan_id);
        let segment = SegmentHeader {
            seq: SeqNum(seq),
            ack: SeqNum(!seq),
            flags: Flags::ACK,
            window: 9,
            timestamps: Some(Timestamps { value: seq, echo: 1 }),
            sack: &[],
            payload_len: 30,
            ecn: Ecn::from_bits(ecn),
        };
        let mut frame = build(&mut template, &segment, &[7; 30]);
        frame.resize(frame.len() + padding, 0);
        let is_whole = damage.is_empty() && cut >= frame.len();
        for (at, byte) in damage {
            if let Some(damaged) = frame.get_mut(at) {
                *damaged = byte;
            }
        }
        frame.truncate(cut.max(14));
        let found = by_classify(&frame);
        prop_assert_eq!(&found, &by_etherparse(&frame));
        prop_assert!(!is_whole || found.is_some());
    }
}

proptest! {
    // Headers written here are parsed by etherparse with correct checksums, and by classify().
    #[test]
    fn headers_agree_with_etherparse(
        ipv6 in any::<bool>(),
        seq in any::<u32>(),
        ack in any::<u32>(),
        window in any::<u16>(),
        timestamps in proptest::option::of((any::<u32>(), any::<u32>())),
        sack in proptest::collection::vec((any::<u32>(), any::<u32>()), 0..4),
        payload in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut template = if ipv6 {
            template("fd00::1", "fd00::2", 0)
        } else {
            template("10.0.0.1", "10.0.0.2", 0)
        };
        let timestamps = timestamps.map(|(value, echo)| Timestamps { value, echo });
        let blocks: Vec<_> = sack
            .iter()
            .map(|&(start, end)| SackBlock { start: SeqNum(start), end: SeqNum(end) })
            .collect();
        let segment = SegmentHeader {
            seq: SeqNum(seq),
            ack: SeqNum(ack),
            flags: Flags::ACK | Flags::PSH,
            window,
            timestamps,
            sack: &blocks,
            payload_len: payload.len(),
            ecn: Ecn::NotCapable,
        };
        let frame = build(&mut template, &segment, &payload);

        let sliced = SlicedPacket::from_ethernet(&frame).unwrap();
        let Some(TransportSlice::Tcp(tcp)) = sliced.transport else { panic!("no TCP") };
        prop_assert_eq!(tcp.source_port(), 40_000);
        prop_assert_eq!(tcp.sequence_number(), seq);
        prop_assert_eq!(tcp.payload(), &payload[..]);
        prop_assert!(tcp.ack() && tcp.psh() && !tcp.syn());

        // Parsed by the peer.
        let found = classify(&frame).unwrap();
        prop_assert!(found.checksum_is_valid());
        prop_assert_eq!(found.remote().port(), 40_000);
        let mut sack_space = NO_SACK;
        let parsed = found.segment(0, &mut sack_space);
        prop_assert_eq!(parsed.seq.0, seq);
        prop_assert_eq!(parsed.ack.0, ack);
        prop_assert_eq!(parsed.window, window);
        prop_assert_eq!(parsed.timestamps, timestamps);
        prop_assert_eq!(parsed.sack, &blocks[..]);
        prop_assert_eq!(parsed.payload, &payload[..]);
    }

    // A frame of the peer never causes a panic, and a flipped bit never passes as valid TCP.
    #[test]
    fn arbitrary_bytes_do_not_panic(frame in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&frame);
        if let Some(found) = classify(&frame) {
            let mut sack = NO_SACK;
            let _ = found.segment(0, &mut sack);
        }
    }

    #[test]
    fn flipped_bits_are_detected(at in 14_usize..120, bit in 0_u8..8) {
        let mut template = template("10.0.0.1", "10.0.0.2", 0);
        let payload = vec![0x5a; 200];
        let segment = SegmentHeader {
            seq: SeqNum(1),
            ack: SeqNum(2),
            flags: Flags::ACK,
            window: 3,
            timestamps: None,
            sack: &[],
            payload_len: payload.len(),
            ecn: Ecn::NotCapable,
        };
        let mut frame = build(&mut template, &segment, &payload);
        frame[at] ^= 1 << bit;
        prop_assert!(classify(&frame).is_none_or(|found| !found.checksum_is_valid()));
    }
}

// CH §9.1: fragments, IPv4 options and other protocols than TCP are for the host.
#[test]
fn frames_other_than_plain_tcp_are_for_host() {
    let builder = PacketBuilder::ethernet2([2; 6], [3; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
    let mut tcp = Vec::new();
    builder.tcp(1, 2, 3, 4).write(&mut tcp, b"abc").unwrap();
    assert!(classify(&tcp).is_some());

    let mut fragment = tcp.clone();
    fragment[20] = 0x20; // more fragments
    assert!(classify(&fragment).is_none());
    let mut arp = tcp.clone();
    arp[12..14].copy_from_slice(&0x0806_u16.to_be_bytes());
    assert!(classify(&arp).is_none());
    let mut udp = Vec::new();
    PacketBuilder::ethernet2([2; 6], [3; 6])
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .udp(1, 2)
        .write(&mut udp, b"abc")
        .unwrap();
    assert!(classify(&udp).is_none());
    for length in 0..tcp.len() - 3 {
        assert!(classify(&tcp[..length]).is_none(), "cut at {length}");
    }
}

// Ethernet padding after a short IP packet is not payload.
#[test]
fn padding_is_not_payload() {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2([2; 6], [3; 6])
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .tcp(1, 2, 3, 4)
        .write(&mut frame, b"")
        .unwrap();
    frame.resize(60, 0xee);
    let found = classify(&frame).unwrap();
    assert!(found.checksum_is_valid());
    assert!(found.segment(0, &mut NO_SACK.clone()).payload.is_empty());
}

// MUST-6: an unknown option is skipped. MUST-7: an illegal length is handled without error.
#[test]
fn unknown_option_is_skipped_and_illegal_length_ends_options() {
    for (options, expected) in [
        (&[253, 4, 0, 0, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9, 0, 0][..], Some((7, 9))),
        (&[8, 10, 0, 0, 0, 7, 0, 0, 0, 9, 253, 2][..], Some((7, 9))),
        (&[253, 0, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9][..], None),
        (&[253, 40, 8, 10, 0, 0, 0, 7, 0, 0, 0, 9][..], None),
        (&[8, 1, 0, 0][..], None),
    ] {
        let mut frame = Vec::new();
        PacketBuilder::ethernet2([2; 6], [3; 6])
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .tcp(1, 2, 3, 4)
            .options_raw(options)
            .unwrap()
            .write(&mut frame, b"x")
            .unwrap();
        let found = classify(&frame).unwrap();
        let timestamps = found.segment(0, &mut NO_SACK.clone()).timestamps;
        assert_eq!(timestamps.map(|stamps| (stamps.value, stamps.echo)), expected, "{options:?}");
    }
}

// CH §6.4: DF is set and ids are in the upper half, also after wrapping. CH §9.4: the tag has CFI 0.
#[test]
fn ip_identification_stays_in_target_half() {
    let mut template = template("10.0.0.1", "10.0.0.2", 0x123);
    let segment = SegmentHeader {
        seq: SeqNum(1),
        ack: SeqNum(2),
        flags: Flags::ACK,
        window: 3,
        timestamps: None,
        sack: &[],
        payload_len: 0,
        ecn: Ecn::NotCapable,
    };
    let mut out = [0; HEADER_BYTES_MAX];
    for _ in 0..5 {
        template.write(&mut out, &segment, 0x3fff);
        assert_eq!(&out[12..16], &[0x81, 0x00, 0x01, 0x23]);
        assert_eq!(&out[16..18], &[0x08, 0x00]);
        let ip = &out[18..38];
        assert!(u16::from_be_bytes([ip[4], ip[5]]) >= 0x8000);
        assert_eq!(ip[6] & 0x40, 0x40);
        assert_eq!(checksum::fold(checksum::add(0, ip)), 0xffff);
    }
}

// With timestamps only three SACK blocks fit.
#[test]
fn sack_blocks_are_limited_by_option_space() {
    let mut template = template("10.0.0.1", "10.0.0.2", 0);
    let blocks = [SackBlock { start: SeqNum(10), end: SeqNum(20) }; 4];
    let segment = SegmentHeader {
        seq: SeqNum(1),
        ack: SeqNum(2),
        flags: Flags::ACK,
        window: 3,
        timestamps: Some(Timestamps { value: 1, echo: 2 }),
        sack: &blocks,
        payload_len: 0,
        ecn: Ecn::NotCapable,
    };
    let frame = build(&mut template, &segment, b"");
    let sliced = SlicedPacket::from_ethernet(&frame).unwrap();
    let Some(TransportSlice::Tcp(tcp)) = sliced.transport else { panic!("no TCP") };
    let options: Vec<_> = tcp.options_iterator().map(Result::unwrap).collect();
    assert!(matches!(
        options[..],
        [
            TcpOptionElement::Noop,
            TcpOptionElement::Noop,
            TcpOptionElement::Timestamp(1, 2),
            TcpOptionElement::Noop,
            TcpOptionElement::Noop,
            TcpOptionElement::SelectiveAcknowledgement((10, 20), [Some(_), Some(_), None]),
        ]
    ));
}

#[test]
fn flow_key_keeps_address_family() {
    for (local, remote) in [("10.0.0.1:1", "10.0.0.2:2"), ("[fd00::1]:1", "[fd00::2]:2")] {
        let key = FlowKey::new(local.parse().unwrap(), remote.parse().unwrap());
        assert_eq!(key.local(), local.parse().unwrap());
        assert_eq!(key.remote(), remote.parse().unwrap());
    }
}

fn plain_segment(payload_len: usize) -> SegmentHeader<'static> {
    SegmentHeader {
        seq: SeqNum(1),
        ack: SeqNum(2),
        flags: Flags::ACK,
        window: 3,
        timestamps: None,
        sack: &[],
        payload_len,
        ecn: Ecn::NotCapable,
    }
}

// CH §6.4: the kernel increments ids over the frames of a GSO packet. None of them wraps into the host's half.
#[test]
fn ids_of_gso_packets_do_not_wrap() {
    let mut template = template("10.0.0.1", "10.0.0.2", 0);
    let mut out = [0; HEADER_BYTES_MAX];
    let mut last = None;
    for pieces in [1, 45, 0x7fd0, 3, 0x7ffd, 0x8000, 2, 0x7fff, 1] {
        template.write(&mut out, &plain_segment(0), pieces);
        let id = u16::from_be_bytes([out[18], out[19]]);
        assert!(id >= 0x8000 && id.checked_add(pieces - 1).is_some(), "{id:#x}, {pieces} pieces");
        assert!(
            last.is_none_or(|last| id == 0x8000 || id == last + 1),
            "no gap except at the wrap"
        );
        last = Some(id.saturating_add(pieces - 1));
    }
}

// RFC 2474: DSCP is set by the host. RFC 3168 §5: the two ECN bits are set by the target. RFC 6437: the flow label is
// set.
#[test]
fn dscp_ecn_and_flow_label_are_written() {
    let mut state = tcp_state();
    state.cached.tos_or_traffic_class = 0xba | 0x03;
    state.cached.flow_label = 0xfff_abcde;
    state.cached.ttl_or_hop_limit = 17;
    for ipv6 in [false, true] {
        let mut template = template_of(ipv6, &state);
        for ecn in [Ecn::Capable0, Ecn::NotCapable, Ecn::Congestion, Ecn::Capable1] {
            let frame = build(&mut template, &SegmentHeader { ecn, ..plain_segment(3) }, b"abc");
            let found = classify(&frame).expect("the IPv4 checksum covers the bits");
            assert_eq!(found.ecn, ecn);
            assert!(found.checksum_is_valid());
            match SlicedPacket::from_ethernet(&frame).unwrap().net.unwrap() {
                NetSlice::Ipv4(ip) => {
                    assert_eq!((ip.header().dcp().value(), ip.header().ttl()), (0x2e, 17));
                }
                NetSlice::Ipv6(ip) => {
                    assert_eq!(ip.header().traffic_class() >> 2, 0x2e);
                    assert_eq!(ip.header().flow_label().value(), 0xabcde);
                    assert_eq!(ip.header().hop_limit(), 17);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

// Both tables of CH §9.4.
#[test]
fn vlan_tags() {
    for (vlan_id, priority, tag) in
        [(0, 0, None), (0, 5, Some(0xa000)), (0x123, 0, Some(0x0123)), (0x123, 5, Some(0xa123))]
    {
        let mut state = tcp_state();
        state.cached.user_priority = priority;
        let mut template = tagged_template(vlan_id, &state);
        let frame = build(&mut template, &plain_segment(3), b"abc");
        let found = classify(&frame).unwrap();
        assert!(found.checksum_is_valid());
        match tag {
            None => assert_eq!(found.vlan, Vlan::Untagged),
            Some(tag) => {
                assert_eq!(frame[12..16], [0x81, 0, (tag >> 8) as u8, tag as u8]);
                assert_eq!(found.vlan, Vlan::Tagged(tag & 0xfff));
            }
        }
    }
    for (tag, vlan_id, accepted) in [
        (Vlan::Untagged, 0, true),
        (Vlan::Tagged(0), 0, true),
        (Vlan::Tagged(7), 0, true),
        (Vlan::Untagged, 7, false),
        (Vlan::Tagged(0), 7, false),
        (Vlan::Tagged(8), 7, false),
        (Vlan::Tagged(7), 7, true),
    ] {
        assert_eq!(tag.is_accepted_by(vlan_id), accepted, "{tag:?} for {vlan_id}");
    }
}

// A single tag is parsed. A second one or a truncated one is not.
#[test]
fn stacked_and_truncated_tags_are_for_host() {
    let mut template = tagged_template(0x123, &tcp_state());
    let frame = build(&mut template, &plain_segment(0), b"");
    let twice = [&frame[..12], &[0x81, 0, 0, 1], &frame[12..]].concat();
    assert!(classify(&twice).is_none());
    for tag_type in [[0x88, 0xa8], [0x91, 0]] {
        let service = [&frame[..12], &tag_type[..], &frame[14..]].concat();
        assert_eq!((by_classify(&service), by_etherparse(&service)), (None, None));
    }
    for length in 0..frame.len() {
        assert!(classify(&frame[..length]).is_none(), "cut at {length}");
    }
}

/// Builds an ICMP error with a correct checksum about the packet in `frame`, as its first router sends it. It quotes
/// `quoted` bytes.
fn icmp_about(frame: &[u8], kind: u8, code: u8, rest: u32, quoted: usize) -> Vec<u8> {
    let packet = &frame[14..frame.len().min(14 + quoted)];
    let mut error = Vec::new();
    let [a, b, c, d] = rest.to_be_bytes();
    let header = [kind, code, 0, 0, a, b, c, d];
    if frame[12..14] == [0x08, 0x00] {
        let bytes = Icmpv4Type::Unknown { type_u8: kind, code_u8: code, bytes5to8: [a, b, c, d] };
        PacketBuilder::ethernet2([3; 6], [2; 6])
            .ipv4([10, 9, 9, 9], [10, 0, 0, 1], 64)
            .icmpv4(bytes)
            .write(&mut error, packet)
            .unwrap();
    } else {
        let bytes = Icmpv6Type::Unknown { type_u8: kind, code_u8: code, bytes5to8: [a, b, c, d] };
        PacketBuilder::ethernet2([3; 6], [2; 6])
            .ipv6([9; 16], "fd00::1".parse::<Ipv6Addr>().unwrap().octets(), 64)
            .icmpv6(bytes)
            .write(&mut error, packet)
            .unwrap();
    }
    assert!(error.len() >= header.len());
    error
}

fn frame_in_flight(ipv6: bool) -> Vec<u8> {
    let mut template = template_of(ipv6, &tcp_state());
    build(
        &mut template,
        &SegmentHeader { seq: SeqNum(0xdead_beef), ..plain_segment(100) },
        &[7; 100],
    )
}

/// Modification of a valid frame.
#[derive(Clone, Debug)]
enum Modification {
    /// A byte is replaced.
    Byte(prop::sample::Index, u8),
    /// The frame is truncated.
    Truncate(prop::sample::Index),
    /// Bytes are appended.
    Append(Vec<u8>),
    /// The IP length is replaced.
    IpLength(u16),
    /// The data offset is replaced.
    DataOffset(u8),
    /// The header length of IPv4 is replaced; over IPv6 the next header.
    HeaderLength(u8),
    /// The options are replaced.
    Options(Vec<u8>),
    /// A tag is inserted.
    Tag(u16),
}

fn modification() -> impl Strategy<Value = Modification> {
    prop_oneof![
        (any::<prop::sample::Index>(), any::<u8>()).prop_map(|(at, to)| Modification::Byte(at, to)),
        any::<prop::sample::Index>().prop_map(Modification::Truncate),
        prop::collection::vec(any::<u8>(), 0..80).prop_map(Modification::Append),
        any::<u16>().prop_map(Modification::IpLength),
        (0_u16..200).prop_map(Modification::IpLength),
        any::<u8>().prop_map(Modification::DataOffset),
        any::<u8>().prop_map(Modification::HeaderLength),
        prop::collection::vec(prop_oneof![0_u8..11, any::<u8>()], 0..41)
            .prop_map(Modification::Options),
        any::<u16>().prop_map(Modification::Tag),
    ]
}

fn set(frame: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = frame.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}

impl Modification {
    fn apply(&self, frame: &mut Vec<u8>, ipv6: bool) {
        let tcp = 14 + if ipv6 { 40 } else { 20 };
        match self {
            Self::Byte(at, to) if !frame.is_empty() => {
                let at = at.index(frame.len());
                frame[at] = *to;
            }
            Self::Truncate(at) if !frame.is_empty() => frame.truncate(at.index(frame.len())),
            Self::Byte(..) | Self::Truncate(_) => {}
            Self::Append(bytes) => frame.extend_from_slice(bytes),
            Self::IpLength(length) => set(frame, if ipv6 { 18 } else { 16 }, &length.to_be_bytes()),
            Self::DataOffset(offset) => set(frame, tcp + 12, &[*offset]),
            Self::HeaderLength(length) => set(frame, if ipv6 { 20 } else { 14 }, &[*length]),
            Self::Options(options) => set(frame, tcp + 20, options),
            Self::Tag(tag) => {
                let [a, b] = tag.to_be_bytes();
                if frame.len() >= 12 {
                    frame.splice(12..12, [0x81, 0, a, b]);
                }
            }
        }
    }

    /// Corrects the IPv4 header checksum after modifications, as a malicious sender would.
    fn repair(frame: &mut [u8], ipv6: bool) {
        if ipv6 || frame.len() < 34 {
            return;
        }
        let header = (usize::from(frame[14] & 0xf) * 4).clamp(20, frame.len() - 14);
        frame[24..26].fill(0);
        let sum = checksum::finish(checksum::add(0, &frame[14..14 + header]));
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
}

proptest! {
    // MUST-7, CH §9.1: no modification of a frame causes a panic. The payload of a parsed segment is within the frame,
    // and its options within its header.
    #[test]
    fn malformed_frames_do_not_panic(
        ipv6 in any::<bool>(),
        icmp in any::<bool>(),
        repaired in any::<bool>(),
        modifications in prop::collection::vec(modification(), 0..6),
    ) {
        let mut frame = frame_in_flight(ipv6);
        if icmp {
            let (kind, code) = if ipv6 { (2, 0) } else { (3, 4) };
            frame = icmp_about(&frame, kind, code, 1280, 60);
        }
        for modification in &modifications {
            modification.apply(&mut frame, ipv6);
        }
        if repaired {
            Modification::repair(&mut frame, ipv6);
        }
        let _ = classify_icmp(&frame);
        if let Some(found) = classify(&frame) {
            let mut sack = NO_SACK;
            let segment = found.segment(0, &mut sack);
            prop_assert!(segment.sack.len() <= SACK_BLOCKS_MAX);
            let inside = frame.as_ptr_range();
            let payload = segment.payload.as_ptr_range();
            prop_assert!(inside.start <= payload.start && payload.end <= inside.end);
            prop_assert!(segment.payload.len() + 54 <= frame.len());
            let _ = found.checksum_is_valid();
        }
    }

    // For any option list, known options are parsed as present, and the iteration ends (MUST-4, MUST-6, MUST-7).
    #[test]
    fn arbitrary_option_list_does_not_panic(
        mut options in prop::collection::vec(prop_oneof![0_u8..11, any::<u8>()], 0..41),
    ) {
        let walked = TcpOptions::new(&options).count();
        prop_assert!(walked <= options.len() / 2 + 1);
        // A timestamp is found after legal options, and not after an error or an end of list.
        let open = TcpOptions::new(&options).all(|option| option.is_ok())
            && !ends(&options);
        options.extend_from_slice(&[8, 10, 0, 0, 0, 7, 0, 0, 0, 9]);
        let last = TcpOptions::new(&options).last();
        let stamps = Ok(TcpOption::Timestamps(Timestamps { value: 7, echo: 9 }));
        prop_assert_eq!(last == Some(stamps), open);
    }
}

/// True if a list of legal options contains an end of list.
fn ends(mut options: &[u8]) -> bool {
    loop {
        match *options {
            [] => return false,
            [0, ..] => return true,
            [1, ref rest @ ..] => options = rest,
            [_, length, ..] if length >= 2 && usize::from(length) <= options.len() => {
                options = &options[usize::from(length)..];
            }
            _ => return false,
        }
    }
}

// CH §9.1: packets with IPv4 options or IPv6 extension headers, and jumbograms, are for the host.
#[test]
fn options_and_extension_headers_are_for_host() {
    let mut options = frame_in_flight(false);
    options.splice(34..34, [1, 1, 1, 0]);
    options[14] = 0x46;
    options[16..18].copy_from_slice(&144_u16.to_be_bytes());
    Modification::repair(&mut options, false);
    assert!(classify(&options).is_none());
    let back = parse(&options).expect("the host skips the options");
    assert_eq!(back.flow, classify(&frame_in_flight(false)).expect("plain").flow);
    assert!(back.checksum_is_valid());
    options[24] ^= 1;
    assert_eq!(parse(&options).err(), Some(NoSegment::BadHeader), "its IPv4 header checksum");
    for next_header in [0, 43, 44, 51, 60, 135] {
        let mut extended = frame_in_flight(true);
        extended.splice(54..54, [6, 0, 1, 4, 0, 0, 0, 0]);
        extended[20] = next_header;
        extended[18..20].copy_from_slice(&128_u16.to_be_bytes());
        assert!(classify(&extended).is_none());
        let is_skipped = [0, 43, 60].contains(&next_header);
        assert_eq!(parse(&extended).is_ok(), is_skipped, "{next_header}");
    }
    // RFC 2675: a payload length of 0, with the actual length in an option.
    let mut jumbo = frame_in_flight(true);
    jumbo[18..20].fill(0);
    assert_eq!((by_classify(&jumbo), by_etherparse(&jumbo)), (None, None));
    assert_eq!(parse(&jumbo).err(), Some(NoSegment::BadHeader));
    // RFC 4291 §2.5.5.2: otherwise an IPv6 packet could match an IPv4 connection.
    for address in [22, 38] {
        let mut mapped = frame_in_flight(true);
        assert!(parse(&mapped).is_ok() && classify(&mapped).is_some());
        mapped[address..][..12].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
        assert_eq!(parse(&mapped).err(), Some(NoSegment::Other));
        assert!(classify(&mapped).is_none());
    }
    assert_eq!(parse(&frame_in_flight(true)[..12]).err(), Some(NoSegment::Other));
}

// CH §9.1: only the first fragment of a segment has ports. No other frame is classified as a fragment.
#[test]
fn first_fragment_yields_its_flow() {
    let flow = FlowKey::new("10.0.0.1:80".parse().unwrap(), "10.0.0.2:9".parse().unwrap());
    let mut v4 = Vec::new();
    let builder = PacketBuilder::ethernet2([1; 6], [2; 6]).ipv4([10, 0, 0, 2], [10, 0, 0, 1], 64);
    builder.tcp(9, 80, 1, 1).write(&mut v4, b"data").unwrap();
    assert_eq!(classify_fragment(&v4), None, "whole");
    v4[20] |= 0x20;
    assert_eq!(classify_fragment(&v4), Some(flow));
    assert_eq!(classify(&v4).map(|tcp| tcp.flow), None);
    assert_eq!(parse(&v4).err(), Some(NoSegment::Fragment));
    v4[21] = 1;
    assert_eq!(classify_fragment(&v4), None, "a later one");

    let flow = FlowKey::new("[fe80::1]:80".parse().unwrap(), "[fe80::2]:9".parse().unwrap());
    let mut v6 = Vec::new();
    let address = |last| {
        let mut address = [0; 16];
        (address[0], address[1], address[15]) = (0xfe, 0x80, last);
        address
    };
    let builder = PacketBuilder::ethernet2([1; 6], [2; 6]).ipv6(address(2), address(1), 64);
    builder.tcp(9, 80, 1, 1).write(&mut v6, b"data").unwrap();
    assert_eq!(classify_fragment(&v6), None, "whole");
    v6.splice(54..54, [6, 0, 0, 1, 0, 0, 0, 9]);
    v6[20] = 44;
    v6[19] += 8;
    assert_eq!(classify_fragment(&v6), Some(flow));
    assert_eq!(parse(&v6).err(), Some(NoSegment::Fragment));
    for length in 0..v6.len() {
        let found = classify_fragment(&v6[..length]);
        assert!(found.is_none() || found == Some(flow));
    }
    v6[57] = 9;
    assert_eq!(classify_fragment(&v6), None, "a later one");
}
