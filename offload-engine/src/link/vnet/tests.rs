use std::{vec, vec::Vec};

use proptest::prelude::*;

use super::*;
use crate::link::testing::{partial_frame, pattern, segment_offload};

fn header(flags: u8, gso_type: u8, hdr_len: u16, gso_size: u16, csum: (u16, u16)) -> VnetHeader {
    VnetHeader {
        flags,
        gso_type,
        hdr_len: hdr_len.into(),
        gso_size: gso_size.into(),
        csum_start: csum.0.into(),
        csum_offset: csum.1.into(),
        num_buffers: 0.into(),
    }
}

const LEN: usize = 3000;
const TCP: (u16, u16) = (34, 16);

#[test]
fn valid_headers_are_accepted() {
    use RxChecksum::{Unverified, Valid};
    let cases = [
        ("nothing known", header(0, 0, 0, 0, (0, 0)), Unverified, 0),
        ("not summed", header(1, 0, 0, 0, TCP), Valid, 0),
        ("checked", header(2, 0, 0, 0, (0, 0)), Valid, 0),
        ("coalesced, IPv4", header(1, 1, 66, 1448, TCP), Valid, 1448),
        ("coalesced, IPv6, CWR", header(1, 0x84, 86, 1428, (54, 16)), Valid, 1428),
        ("coalesced by a NIC that checked", header(2, 1, 66, 1448, (0, 0)), Valid, 1448),
        ("hdr_len is the linear part", header(1, 1, LEN as u16, 1448, TCP), Valid, 1448),
        ("field at the very end", header(1, 0, 0, 0, (LEN as u16 - 18, 16)), Valid, 0),
        (
            "unknown flags are ignored (virtio 1.2 §5.1.6.4)",
            header(0xf8, 0, 0, 0, TCP),
            Unverified,
            0,
        ),
    ];
    for (what, header, checksum, gso_size) in cases {
        let received = header.accept(&mut [0; LEN]).expect(what);
        assert_eq!((received.checksum, received.gso_size), (checksum, gso_size), "{what}");
        assert_eq!(received.len, LEN);
    }
}

#[test]
fn malformed_headers_are_refused() {
    let cases = [
        ("unknown gso_type", header(1, 2, 66, 1448, TCP)),
        ("UDP fragmentation, not requested", header(1, 3, 66, 1448, (34, 6))),
        ("UDP segmentation, not requested", header(1, 5, 66, 1448, (34, 6))),
        ("tunnel segmentation, not requested", header(1, 0x21, 66, 1448, TCP)),
        ("ECN bit without a type", header(1, 0x80, 66, 1448, TCP)),
        ("gso_size 0", header(1, 1, 66, 0, TCP)),
        ("coalesced, checksum unknown", header(0, 1, 66, 1448, (0, 0))),
        ("coalesced TCP, checksum not TCP's", header(1, 1, 66, 1448, (34, 6))),
        ("coalesced, no room for a TCP header", header(1, 1, 66, 1448, (LEN as u16 - 19, 16))),
        ("hdr_len beyond the frame", header(1, 4, LEN as u16 + 1, 1448, (54, 16))),
        ("csum_start within Ethernet", header(1, 0, 0, 0, (13, 16))),
        ("csum_start beyond the frame", header(1, 0, 0, 0, (LEN as u16, 0))),
        ("field half beyond the frame", header(1, 0, 0, 0, (LEN as u16 - 17, 16))),
        ("sum that would overflow 16 bits", header(1, 0, 0, 0, (u16::MAX, u16::MAX))),
    ];
    for (what, header) in cases {
        assert!(header.accept(&mut [0; LEN]).is_none(), "{what}");
    }
}

/// RFC 768: the partial checksum of a UDP datagram is completed on reception.
#[test]
fn partial_udp_checksum_is_completed() {
    let mut frame: Vec<u8> = Vec::new();
    etherparse::PacketBuilder::ethernet2([2; 6], [4; 6])
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .udp(53, 53)
        .write(&mut frame, b"query")
        .unwrap();
    let complete = frame.clone();
    // Pseudo header: addresses, protocol 17, length.
    let partial =
        crate::checksum::fold(crate::checksum::add(17 + (frame.len() - 34) as u64, &frame[26..34]));
    frame[40..42].copy_from_slice(&partial.to_be_bytes());
    assert_ne!(frame, complete);
    let received = header(1, 0, 0, 0, (34, 6)).accept(&mut frame).unwrap();
    assert_eq!(received.checksum, RxChecksum::Valid);
    assert_eq!(frame, complete);
}

#[test]
fn gso_header_matches_virtio_layout() {
    let (frame, place) = partial_frame(true, 1, &pattern(5000));
    let offload = segment_offload(&frame, place, 1428);
    let frame = TxFrame { offload, head: &frame[..86], payload: &[], lender: None, comment: None };
    let header = VnetHeader::for_frame(&frame).unwrap();
    // NEEDS_CSUM; TCPv6 and ECN because the frame has CWR; then 86, 1428, 54, 16, 0 little endian.
    assert_eq!(header.as_bytes(), [1, 0x84, 86, 0, 0x94, 5, 54, 0, 16, 0, 0, 0]);

    let whole = TxFrame { offload: TxOffload::default(), ..frame };
    assert_eq!(VnetHeader::for_frame(&whole).unwrap().as_bytes(), vec![0; 12]);

    let unplaced = TxOffload { checksum: None, ..offload };
    assert!(VnetHeader::for_frame(&TxFrame { offload: unplaced, ..frame }).is_none());
}

#[test]
fn shortage_is_no_missing_feature() {
    let fails = |errno: Errno| TapError::from(VnetError::of("TUNSETVNETLE")(errno.into()));
    for errno in [Errno::NOMEM, Errno::BADFD, Errno::NODEV] {
        let error = fails(errno);
        assert!(matches!(error, TapError::Io { step: "TUNSETVNETLE", .. }), "{error}");
    }
    for errno in [Errno::INVAL, Errno::NOTTY, Errno::PERM] {
        assert!(matches!(fails(errno), TapError::NoVnetHeader { step: "TUNSETVNETLE", .. }));
    }
}

proptest! {
    /// No header from the kernel, or from a malicious peer, causes a panic. Accepted headers are consistent.
    #[test]
    fn arbitrary_headers_do_not_panic(bytes: [u8; 12], mut frame in proptest::collection::vec(any::<u8>(), 14..200)) {
        let header = VnetHeader::read_from_bytes(&bytes).unwrap();
        let len = frame.len();
        if let Some(received) = header.accept(&mut frame) {
            prop_assert_eq!(received.len, len);
            prop_assert!(received.gso_size == 0 || received.checksum == RxChecksum::Valid);
        }
    }
}
