use alloc::{vec, vec::Vec};

use etherparse::{PacketBuilder, SlicedPacket, TcpOptionElement, TransportSlice};
use proptest::prelude::*;

use super::*;
use crate::{
    chimney::state::{
        MacAddress, NeighborCached, NeighborConst, NeighborDelegated, NeighborState, PathCached,
        PathConst, PathState, TcpCached, TcpConst, TcpDelegated, TcpState, TimerState,
    },
    tcp::{Ecn, Flags, SackBlock, SeqNum, TcpPhase, Timestamps},
};

const NO_SACK: [SackBlock; 4] = [SackBlock { start: SeqNum(0), end: SeqNum(0) }; 4];

fn tcp_state() -> TcpState {
    TcpState {
        constant: TcpConst {
            timestamp_enabled: true,
            sack_enabled: true,
            window_scaling_enabled: true,
            remote_port: 5000,
            local_port: 40_000,
            snd_wind_scale: 0,
            rcv_wind_scale: 0,
            remote_mss: 1460,
            local_mss: 1460,
            hash_value: 0,
            ecn_enabled: false,
        },
        cached: TcpCached::default(),
        delegated: TcpDelegated {
            state: TcpPhase::Established,
            rcv_nxt: SeqNum(1),
            rcv_wnd: 1,
            snd_una: SeqNum(1),
            snd_nxt: SeqNum(1),
            snd_max: SeqNum(1),
            snd_wnd: 1,
            max_snd_wnd: 1,
            snd_wl1: SeqNum(1),
            cwnd: 0,
            ss_thresh: 0,
            srtt: 0,
            rtt_var: 0,
            ts_recent: 0,
            ts_recent_age: 0,
            ts_time: 0,
            total_rt: 0,
            dup_ack_count: 0,
            snd_wnd_probe_count: 0,
            keep_alive: TimerState::default(),
            retransmit: TimerState::default(),
            ecn_echo: false,
        },
    }
}

fn template(source: &str, destination: &str, vlan_id: u16) -> HeaderTemplate {
    let neighbor = NeighborState {
        constant: NeighborConst { dl_source_address: MacAddress::default(), vlan_id },
        cached: NeighborCached {
            dl_destination_address: MacAddress([2, 0, 0, 0, 0, 9]),
            host_reachability_delta: 0,
        },
        delegated: NeighborDelegated { nic_reachability_delta: 0 },
    };
    let path = PathState {
        constant: PathConst {
            source_address: source.parse().unwrap(),
            destination_address: destination.parse().unwrap(),
        },
        cached: PathCached { path_mtu: 1500 },
    };
    HeaderTemplate::new(&neighbor, &path, &tcp_state(), MacAddress([2, 0, 0, 0, 0, 1]))
}

fn build(template: &mut HeaderTemplate, segment: &SegmentHeader<'_>, payload: &[u8]) -> Vec<u8> {
    let mut header = [0; HEADER_BYTES_MAX];
    let length = template.write(&mut header, segment, 1);
    // Split at an odd place: gathered payload has odd slices.
    let (left, right) = payload.split_at(payload.len() / 3);
    template.finish_checksum(&mut header[..length], [left, right].into_iter());
    [&header[..length], payload].concat()
}

proptest! {
    // What we write, etherparse reads back with good checksums, and classify() finds.
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

        // Seen from the other node.
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

    // A peer's frame never panics, and a flipped bit never passes as valid TCP.
    #[test]
    fn any_bytes_are_survived(frame in proptest::collection::vec(any::<u8>(), 0..200)) {
        if let Some(found) = classify(&frame) {
            let mut sack = NO_SACK;
            let _ = found.segment(0, &mut sack);
        }
    }

    #[test]
    fn flipped_bits_are_found(at in 14_usize..120, bit in 0_u8..8) {
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

    #[test]
    fn checksum_matches_the_plain_sum(
        data in proptest::collection::vec(any::<u8>(), 0..100),
        cut in 0_usize..100,
    ) {
        let mut plain = 0_u64;
        for pair in data.chunks(2) {
            plain += u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        }
        let fold = checksum::fold;
        prop_assert_eq!(fold(checksum::add(0, &data)) % 0xffff, fold(plain) % 0xffff);
        let (left, right) = data.split_at(cut.min(data.len()));
        let (sum, odd) = checksum::add_unaligned(0, left, false);
        let (sum, _) = checksum::add_unaligned(sum, right, odd);
        prop_assert_eq!(fold(sum) % 0xffff, fold(plain) % 0xffff);
    }
}

// CH 9.1: fragments, IPv4 options and everything that is not TCP go to the host.
#[test]
fn the_rest_is_the_hosts() {
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

// Ethernet padding behind a short IP packet is not payload.
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

// MUST-6: an unknown option is stepped over; MUST-7: an illegal length is survived.
#[test]
fn unknown_and_illegal_options() {
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

// CH 6.4: DF set, ids from the upper half, also when they wrap; CH 9.4: tag with CFI 0.
#[test]
fn ip_identification_and_vlan() {
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
fn sack_blocks_are_cut_to_the_room() {
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
fn flow_keys_keep_the_family() {
    for (local, remote) in [("10.0.0.1:1", "10.0.0.2:2"), ("[fd00::1]:1", "[fd00::2]:2")] {
        let key = FlowKey::new(local.parse().unwrap(), remote.parse().unwrap());
        assert_eq!(key.local(), local.parse().unwrap());
        assert_eq!(key.remote(), remote.parse().unwrap());
    }
}
