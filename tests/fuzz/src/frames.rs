//! Raw frames: the result of [`classify`], compared with etherparse.

use etherparse::{NetSlice, SlicedPacket, TcpOptionElement, TcpSlice, TransportSlice};
use offload_engine::{
    frame::{SACK_BLOCKS_MAX, classify},
    tcp::{SackBlock, Segment, SeqNum, Timestamps},
};

/// Checks one frame. True if it is a TCP segment for the offload target.
///
/// # Panics
/// If the two parsers differ, or either panics.
pub fn check(frame: &[u8]) -> bool {
    let theirs = SlicedPacket::from_ethernet(frame).ok();
    let Some(ours) = classify(frame) else {
        assert!(
            !theirs.is_some_and(|packet| is_plain(frame, &packet)),
            "a plain segment was rejected"
        );
        return false;
    };
    let none = SackBlock { start: SeqNum(0), end: SeqNum(0) };
    let mut blocks = [none; SACK_BLOCKS_MAX];
    let segment = ours.segment(0, &mut blocks);
    // Any checksum is verified without a panic.
    let _ = ours.checksum_is_valid();
    let packet = theirs.expect("a segment is a packet");
    let Some(TransportSlice::Tcp(tcp)) = &packet.transport else {
        panic!("not TCP: {packet:?}");
    };
    assert_eq!(ours.flow.local().port(), tcp.destination_port());
    assert_eq!(ours.flow.remote().port(), tcp.source_port());
    assert_eq!(segment.seq.0, tcp.sequence_number());
    assert_eq!(segment.ack.0, tcp.acknowledgment_number());
    assert_eq!(segment.window, tcp.window_size());
    assert_eq!(segment.payload, tcp.payload());
    let flags =
        [tcp.fin(), tcp.syn(), tcp.rst(), tcp.psh(), tcp.ack(), tcp.urg(), tcp.ece(), tcp.cwr()];
    let flags: u8 = (0..).zip(flags).map(|(n, flag)| u8::from(flag) << n).sum();
    assert_eq!(segment.flags.0, flags);
    check_options(&segment, tcp);
    true
}

/// True for TCP over an IP packet without options, extensions, tags or fragments, and with a correct header
/// checksum. Such a frame has no reason to be passed to the host.
fn is_plain(frame: &[u8], packet: &SlicedPacket<'_>) -> bool {
    let tagged = !packet.link_exts.is_empty();
    let Some(TransportSlice::Tcp(_)) = packet.transport else { return false };
    let plain = match &packet.net {
        Some(NetSlice::Ipv4(ip)) => {
            let header = ip.header();
            header.ihl() == 5
                && sum(header.slice()) == 0xffff
                && !header.is_fragmenting_payload()
                && usize::from(header.total_len()) <= frame.len() - 14
        }
        Some(NetSlice::Ipv6(ip)) => {
            let announced = usize::from(ip.header().payload_length());
            ip.extensions().is_empty() && announced > 0 && announced <= frame.len() - 54
        }
        _ => false,
    };
    plain && !tagged
}

/// Sum of the Internet checksum, by RFC 1071 §1.
fn sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    words.fold(0, |sum, word| (sum + word) % 0x10000 + (sum + word) / 0x10000)
}

/// Compares options up to the first malformed one (RFC 9293 MUST-7); the last option of each kind counts.
fn check_options(segment: &Segment<'_>, tcp: &TcpSlice<'_>) {
    let mut timestamps = None;
    let mut sack = Vec::new();
    for option in tcp.options_iterator() {
        match option {
            Ok(TcpOptionElement::Timestamp(value, echo)) => {
                timestamps = Some(Timestamps { value, echo });
            }
            Ok(TcpOptionElement::SelectiveAcknowledgement(first, others)) => {
                let blocks = core::iter::once(first).chain(others.into_iter().flatten());
                let block = |(start, end)| SackBlock { start: SeqNum(start), end: SeqNum(end) };
                sack = blocks.map(block).collect();
            }
            Ok(_) => {}
            // The parsers stop at different malformed options: nothing to compare.
            Err(_) => return,
        }
    }
    assert_eq!(segment.timestamps, timestamps);
    assert_eq!(segment.sack, sack);
}
