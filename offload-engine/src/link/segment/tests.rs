use std::vec::Vec;

use proptest::prelude::*;

use super::Segments;
use crate::link::testing::{Parsed, TIMESTAMPS, parse, pattern, tcp_frame};

fn cut(frame: &[u8], size: usize) -> Option<Vec<Parsed>> {
    let mut segments = Segments::new(frame, size)?;
    let (mut piece, mut pieces) = (Vec::new(), Vec::new());
    while segments.next_into(&mut piece) {
        pieces.push(parse(&piece).expect("complete and correct segments"));
    }
    Some(pieces)
}

/// RFC 9293 §3.4 (sequence numbers wrap), RFC 3168 §6.1.2 (CWR is set once).
#[test]
fn gso_packet_is_segmented() {
    for ipv6 in [false, true] {
        let payload = pattern(4000);
        let mut frame = tcp_frame(ipv6, u32::MAX - 999, &payload);
        if !ipv6 {
            frame[18..20].copy_from_slice(&0xffff_u16.to_be_bytes());
        }
        let pieces = cut(&frame, 1448).unwrap();
        assert_eq!(pieces.len(), 3);
        assert_eq!(pieces.iter().map(|p| p.payload.len()).collect::<Vec<_>>(), [1448, 1448, 1104]);
        assert_eq!(pieces.iter().map(|p| p.seq).collect::<Vec<_>>(), [u32::MAX - 999, 448, 1896]);
        assert_eq!(pieces.iter().map(|p| p.psh).collect::<Vec<_>>(), [false, false, true]);
        assert_eq!(pieces.iter().map(|p| p.fin).collect::<Vec<_>>(), [false, false, true]);
        assert_eq!(pieces.iter().map(|p| p.cwr).collect::<Vec<_>>(), [true, false, false]);
        let ids = if ipv6 { [None; 3] } else { [Some(0xffff), Some(0), Some(1)] };
        assert_eq!(pieces.iter().map(|p| p.identification).collect::<Vec<_>>(), ids);
        assert!(pieces.iter().all(|p| p.options == TIMESTAMPS));
        assert_eq!(pieces.iter().flat_map(|p| p.payload.clone()).collect::<Vec<_>>(), payload);
    }
}

#[test]
fn frames_other_than_complete_tcp_are_not_segmented() {
    let frame = tcp_frame(false, 1, &pattern(100));
    assert!(cut(&frame, 0).is_none());
    assert!(cut(&frame[..frame.len() - 1], 10).is_none(), "shorter than its IP length");
    assert!(cut(&[0; 60], 10).is_none());
    let mut udp = frame.clone();
    udp[23] = 17;
    assert!(cut(&udp, 10).is_none());
    let mut fragment = frame;
    fragment[20] |= 0x20;
    assert!(cut(&fragment, 10).is_none());
}

#[test]
fn frame_without_payload_is_one_segment() {
    let pieces = cut(&tcp_frame(true, 9, &[]), 1000).unwrap();
    assert_eq!(pieces.len(), 1);
    assert!(pieces[0].payload.is_empty() && pieces[0].fin && pieces[0].cwr);
}

#[test]
fn vlan_tags_and_extension_headers_are_skipped() {
    let plain = tcp_frame(true, 9, &pattern(50));
    let mut tagged = plain[..12].to_vec();
    tagged.extend_from_slice(&[0x81, 0, 0, 5]);
    tagged.extend_from_slice(&plain[12..]);
    // Destination options of 8 bytes (RFC 8200 §4.6): pad only.
    tagged[18 + 6] = 60;
    tagged[18 + 5] += 8;
    tagged.splice(58..58, [6, 0, 1, 4, 0, 0, 0, 0]);
    let mut segments = Segments::new(&tagged, 30).unwrap();
    let (mut piece, mut payload) = (Vec::new(), Vec::new());
    while segments.next_into(&mut piece) {
        let packet = etherparse::SlicedPacket::from_ethernet(&piece).unwrap();
        let Some(etherparse::TransportSlice::Tcp(tcp)) = packet.transport else { panic!() };
        payload.extend_from_slice(tcp.payload());
    }
    assert_eq!(payload, pattern(50));
}

proptest! {
    #[test]
    fn segments_contain_whole_payload(
        ipv6: bool, seq: u32, len in 0usize..20_000, size in 1usize..3000,
    ) {
        let payload = pattern(len);
        let pieces = cut(&tcp_frame(ipv6, seq, &payload), size).unwrap();
        prop_assert_eq!(pieces.len(), len.div_ceil(size).max(1));
        let mut expected = seq;
        for piece in &pieces {
            prop_assert_eq!(piece.seq, expected);
            expected = expected.wrapping_add(piece.payload.len() as u32);
        }
        prop_assert_eq!(pieces.iter().flat_map(|p| p.payload.clone()).collect::<Vec<_>>(), payload);
    }

    /// Bytes of a peer never cause a panic.
    #[test]
    fn arbitrary_bytes_do_not_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), v6: bool) {
        if bytes.len() > 24 {
            bytes[12..15].copy_from_slice(if v6 { &[0x86, 0xdd, 0x60] } else { &[8, 0, 0x45] });
            bytes[if v6 { 20 } else { 23 }] = 6;
        }
        if let Some(mut segments) = Segments::new(&bytes, 7) {
            let mut piece = Vec::new();
            while segments.next_into(&mut piece) {}
        }
    }
}
