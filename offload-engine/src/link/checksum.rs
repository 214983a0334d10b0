//! Frame checksums: completion of partial ones, and computation of complete ones.
//!
//! The checksum field of a frame with a *partial* checksum contains the sum of the pseudo header (not inverted).
//! Completion sums from the transport header to the end of the frame, including that field, inverts the sum, and stores
//! it.
#![forbid(unsafe_code)]

use super::{
    TxChecksum,
    layout::{PROTOCOL_TCP, TcpLayout},
};
use crate::checksum;

/// Offset of the checksum field in a TCP header.
pub(super) const TCP_CHECKSUM_OFFSET: u16 = 16;
/// Offset of the checksum field in a UDP header.
const UDP_CHECKSUM_OFFSET: u16 = 6;

/// Completes a partial checksum in place. Returns false, without a change, if the field is outside the frame.
pub(super) fn finish(frame: &mut [u8], place: TxChecksum) -> bool {
    let start = usize::from(place.start);
    let field = start + usize::from(place.offset);
    if field + 2 > frame.len() {
        return false;
    }
    let mut value = checksum::finish(checksum::add(0, &frame[start..]));
    if place.offset == UDP_CHECKSUM_OFFSET && value == 0 {
        value = 0xffff; // RFC 768: zero would mean no checksum
    }
    frame[field..field + 2].copy_from_slice(&value.to_be_bytes());
    true
}

/// Computes and stores the TCP checksum of a frame, whatever the field contains.
pub(super) fn fill_tcp(frame: &mut [u8], layout: &TcpLayout) {
    let field = layout.tcp + usize::from(TCP_CHECKSUM_OFFSET);
    frame[field..field + 2].fill(0);
    let total = checksum::add(pseudo_header_sum(frame, layout), &frame[layout.tcp..layout.end]);
    frame[field..field + 2].copy_from_slice(&checksum::finish(total).to_be_bytes());
}

/// Stores the partial TCP checksum for completion by a device, whatever the field contains.
pub(super) fn store_pseudo_header_sum(frame: &mut [u8], layout: &TcpLayout) {
    let field = layout.tcp + usize::from(TCP_CHECKSUM_OFFSET);
    let partial = partial(frame, layout);
    frame[field..field + 2].copy_from_slice(&partial.to_be_bytes());
}

/// Computes and stores the IPv4 header checksum. No effect for IPv6.
pub(super) fn fill_ipv4(frame: &mut [u8], layout: &TcpLayout) {
    if layout.ipv6 {
        return;
    }
    let field = layout.ip + 10;
    frame[field..field + 2].fill(0);
    let value = checksum::finish(checksum::add(0, &frame[layout.ip..layout.tcp]));
    frame[field..field + 2].copy_from_slice(&value.to_be_bytes());
}

/// Returns the partial TCP checksum for completion by a device.
pub(super) fn partial(frame: &[u8], layout: &TcpLayout) -> u16 {
    checksum::fold(pseudo_header_sum(frame, layout))
}

/// Sum of the pseudo header (RFC 9293 §3.1, RFC 8200 §8.1): addresses, protocol, length.
fn pseudo_header_sum(frame: &[u8], layout: &TcpLayout) -> u64 {
    let addresses = if layout.ipv6 {
        &frame[layout.ip + 8..layout.ip + 40]
    } else {
        &frame[layout.ip + 12..layout.ip + 20]
    };
    // 2^32 and 2^16 are both 1 modulo 65535, so words of 32 bits have the same checksum.
    let words = addresses.as_chunks::<4>().0;
    let sum: u64 = words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum();
    sum + u64::from(PROTOCOL_TCP) + (layout.end - layout.tcp) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
