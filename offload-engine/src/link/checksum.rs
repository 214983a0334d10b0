//! The Internet checksum (RFC 1071), and finishing what a sender left to its device.
//!
//! A frame with a *partial* checksum carries, in its checksum field, the sum of the pseudo header
//! (not inverted). Finishing sums from the transport header to the end of the frame, that field
//! included, inverts, and stores.
#![forbid(unsafe_code)]

use super::{
    TxChecksum,
    layout::{PROTOCOL_TCP, TcpLayout},
};

/// Offset of the checksum field in a TCP header.
pub(super) const TCP_CHECKSUM_OFFSET: u16 = 16;
/// Offset of the checksum field in a UDP header.
const UDP_CHECKSUM_OFFSET: u16 = 6;

/// The sum of `data` as 16-bit words in network order, not folded: add several, then [`fold`].
/// An odd last octet counts as the high half of a word, so only the last piece may be odd.
///
/// Never overflows for data below 16 GiB.
pub(super) fn sum(data: &[u8]) -> u64 {
    // 32-bit words into 64-bit lanes: carries cannot be lost, and the compiler vectorises it.
    let (words, tail) = data.as_chunks::<4>();
    let mut total: u64 = words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum();
    let mut rest = [0; 4];
    rest[..tail.len()].copy_from_slice(tail);
    total += u64::from(u32::from_be_bytes(rest));
    // 2^32 and 2^16 are both 1 modulo 65535, so 32-bit words sum to the same checksum.
    total
}

/// Folds a sum to 16 bits.
pub(super) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Finishes a partial checksum in place. Returns false, changing nothing, when the field does not
/// lie within the frame.
pub(super) fn finish(frame: &mut [u8], place: TxChecksum) -> bool {
    let start = usize::from(place.start);
    let field = start + usize::from(place.offset);
    if field + 2 > frame.len() {
        return false;
    }
    let mut checksum = !fold(sum(&frame[start..]));
    if place.offset == UDP_CHECKSUM_OFFSET && checksum == 0 {
        checksum = 0xffff; // RFC 768: zero would mean "none"
    }
    frame[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
    true
}

/// Computes and stores the TCP checksum of a frame, whatever the field held.
pub(super) fn fill_tcp(frame: &mut [u8], layout: &TcpLayout) {
    let field = layout.tcp + usize::from(TCP_CHECKSUM_OFFSET);
    frame[field..field + 2].fill(0);
    let total = pseudo_header_sum(frame, layout) + sum(&frame[layout.tcp..layout.end]);
    let checksum = !fold(total);
    frame[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// Stores what a device starts from that finishes the TCP checksum, whatever the field held.
pub(super) fn store_pseudo_header_sum(frame: &mut [u8], layout: &TcpLayout) {
    let field = layout.tcp + usize::from(TCP_CHECKSUM_OFFSET);
    let partial = fold(pseudo_header_sum(frame, layout));
    frame[field..field + 2].copy_from_slice(&partial.to_be_bytes());
}

/// Computes and stores the IPv4 header checksum; nothing for IPv6.
pub(super) fn fill_ipv4(frame: &mut [u8], layout: &TcpLayout) {
    if layout.ipv6 {
        return;
    }
    let field = layout.ip + 10;
    frame[field..field + 2].fill(0);
    let checksum = !fold(sum(&frame[layout.ip..layout.tcp]));
    frame[field..field + 2].copy_from_slice(&checksum.to_be_bytes());
}

/// RFC 9293 §3.1 and RFC 8200 §8.1: addresses, protocol, length.
pub(super) fn pseudo_header_sum(frame: &[u8], layout: &TcpLayout) -> u64 {
    let addresses = if layout.ipv6 {
        &frame[layout.ip + 8..layout.ip + 40]
    } else {
        &frame[layout.ip + 12..layout.ip + 20]
    };
    sum(addresses) + u64::from(PROTOCOL_TCP) + (layout.end - layout.tcp) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RFC 1071 §3 sums these octets to ddf2.
    #[test]
    fn rfc1071_example() {
        let octets = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(sum(&octets)), 0xddf2);
    }

    /// The header that RFC 1071 readers know: 4500 0073 ... c0a8 00c7 has checksum b861.
    #[test]
    fn known_ipv4_header() {
        let header = [
            0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0,
            0xc7,
        ];
        assert_eq!(!fold(sum(&header)), 0xb861);
    }

    #[test]
    fn field_outside_the_frame_is_refused() {
        let mut frame = [7; 40];
        assert!(!finish(&mut frame, TxChecksum { start: 34, offset: 16 }));
        assert!(!finish(&mut frame, TxChecksum { start: u16::MAX, offset: u16::MAX }));
        assert_eq!(frame, [7; 40]);
        assert!(finish(&mut frame, TxChecksum { start: 22, offset: 16 }));
    }

    #[test]
    fn udp_checksum_is_never_zero() {
        // Words 0xffff and 0x0000: the sum is ffff, inverted zero.
        let mut frame = [0xff, 0xff, 0, 0, 0, 0, 0, 0];
        assert!(finish(&mut frame, TxChecksum { start: 0, offset: 6 }));
        assert_eq!(frame[6..], [0xff, 0xff]);
    }

    proptest! {
        #[test]
        fn same_as_word_by_word(data in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut plain: u64 = 0;
            for pair in data.chunks(2) {
                plain += u64::from(pair[0]) << 8 | u64::from(*pair.get(1).unwrap_or(&0));
            }
            // Zero and ffff are the same number in ones' complement.
            prop_assert_eq!(fold(sum(&data)) % 0xffff, fold(plain) % 0xffff);
        }
    }
}
