//! Window scale on the wire that is larger than smoltcp's.
//!
//! smoltcp derives its scale from the receive buffer: 256 KiB mean scale 3, which limits the window to 512 KiB for the
//! life of the connection, even in the target. A buffer of the target's 4 MiB would have the right scale (7). But it
//! would also advertise all of it at once, which the target could never withdraw, and require 4 MiB of zeroed memory
//! per handshake. Zeroing is lazy only for freshly mapped memory: glibc reuses freed memory and zeroes it explicitly
//! (1.2 ms, and resident). So the SYN announces the scale of the target's limit, and every window of smoltcp is divided
//! by the difference. The window on the wire is smoltcp's in bytes, rounded down by less than one unit of the wire's
//! scale (128 bytes for 4 MiB; RFC 7323 §2.4 expects such rounding).

use offload_engine::{checksum, tcp::Flags};

use crate::wire::WINDOW_SCALE_MAX;

/// Largest value of a window field.
const WINDOW_FIELD_MAX: usize = 65_535;
const ETHERNET_HEADER: usize = 14;
const IPV6_HEADER: usize = 40;
const TCP_HEADER: usize = 20;
/// Kinds of the window scale, end-of-list and no-operation options.
const WINDOW_SCALE: u8 = 3;
const END: u8 = 0;
const NO_OPERATION: u8 = 1;

/// Smallest scale that allows a window of `bytes`, at most 14.
pub(crate) fn scale_for(bytes: usize) -> u8 {
    let fits = |scale: &u8| WINDOW_FIELD_MAX << scale >= bytes;
    (0..WINDOW_SCALE_MAX).find(fits).unwrap_or(WINDOW_SCALE_MAX)
}

/// Scale that smoltcp announces for a receive buffer of `capacity` bytes.
pub(crate) fn scale_of_buffer(capacity: usize) -> u8 {
    let bits = usize::BITS - capacity.leading_zeros();
    u8::try_from(bits.saturating_sub(16))
        .map_or(WINDOW_SCALE_MAX, |scale| scale.min(WINDOW_SCALE_MAX))
}

/// Raises the scale of a TCP segment sent by smoltcp, in an Ethernet frame without VLAN tag or IPv6 extension headers.
/// In a SYN it changes the option, if present; otherwise it changes the window if `scaled`. Updates the checksum (RFC
/// 1624).
pub(crate) fn raise_scale(frame: &mut [u8], by: u8, scaled: bool) {
    let Some(segment) = tcp_segment(frame) else { return };
    if Flags(segment[13]).contains(Flags::SYN) {
        let Some(at) = scale_option(segment) else { return };
        let scale = (segment[at] + by).min(WINDOW_SCALE_MAX);
        replace(segment, at, &[scale]);
    } else if scaled {
        let window = u16::from_be_bytes([segment[14], segment[15]]) >> by;
        replace(segment, 14, &window.to_be_bytes());
    }
}

fn tcp_segment(frame: &mut [u8]) -> Option<&mut [u8]> {
    let packet = frame.get_mut(ETHERNET_HEADER..)?;
    let header = match packet.first()? >> 4 {
        4 => usize::from(packet[0] & 0xf) * 4,
        _ => IPV6_HEADER,
    };
    packet.get_mut(header..).filter(|segment| segment.len() >= TCP_HEADER)
}

/// Offset of the shift count in a SYN.
fn scale_option(segment: &[u8]) -> Option<usize> {
    let end = usize::from(segment[12] >> 4) * 4;
    let mut at = TCP_HEADER;
    while at < end {
        match segment.get(at..at + 3) {
            Some([WINDOW_SCALE, _, _]) => return Some(at + 2),
            Some([NO_OPERATION, ..]) => at += 1,
            Some([END, ..]) | None => return None,
            Some([_, length, _]) => at += usize::from(*length).max(2),
            Some(_) => return None,
        }
    }
    None
}

/// Overwrites bytes of the segment, and updates its checksum word by word (RFC 1624 §3).
fn replace(segment: &mut [u8], at: usize, new: &[u8]) {
    for (at, &new) in (at..).zip(new) {
        let word = at & !1;
        let old = [segment[word], segment[word + 1]];
        segment[at] = new;
        let now = [segment[word], segment[word + 1]];
        let stated = u16::from_be_bytes([segment[16], segment[17]]);
        let sum = u64::from(!stated)
            + u64::from(!u16::from_be_bytes(old))
            + u64::from(u16::from_be_bytes(now));
        segment[16..18].copy_from_slice(&checksum::finish(sum).to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use alloc::{vec, vec::Vec};

    use etherparse::{PacketBuilder, TcpOptionElement};

    use super::*;
    use crate::wire::{self, Frame};

    fn frame(v6: bool, syn: bool, window: u16, options: &[TcpOptionElement]) -> Vec<u8> {
        let ethernet = PacketBuilder::ethernet2([2; 6], [4; 6]);
        let ip = if v6 {
            ethernet.ipv6([1; 16], [2; 16], 64)
        } else {
            ethernet.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        };
        let tcp = ip.tcp(1, 2, 3, window).options(options).expect("they fit");
        wire::forged(tcp, if syn { "SA" } else { "A" }, 4, b"odd")
    }

    // RFC 7323 §2.2: scale announced by a SYN at any option position; checksum and other bytes stay valid.
    #[test]
    fn syn_announces_larger_scale() {
        use TcpOptionElement::{
            MaximumSegmentSize, Noop, SelectiveAcknowledgementPermitted, WindowScale,
        };
        let (mss, scale) = (MaximumSegmentSize(1460), WindowScale(3));
        let orders = [
            vec![scale.clone()],
            vec![Noop, scale.clone(), mss.clone()],
            vec![mss.clone(), SelectiveAcknowledgementPermitted, scale],
        ];
        for v6 in [false, true] {
            for options in &orders {
                let mut frame = frame(v6, true, 64_000, options);
                raise_scale(&mut frame, 4, true);
                let Frame::Tcp(segment) = wire::parse(&frame) else { panic!() };
                assert_eq!(segment.syn_options.window_scale, Some(7));
                assert!(segment.frame.checksum_is_valid() && segment.window == 64_000);
            }
            let plain = frame(v6, true, 64_000, core::slice::from_ref(&mss));
            let mut same = plain.clone();
            raise_scale(&mut same, 4, true);
            assert_eq!(same, plain, "a SYN without the option");
        }
    }

    // RFC 7323 §2.3: every other window is in the larger unit.
    #[test]
    fn windows_are_divided() {
        for v6 in [false, true] {
            for window in [0, 1, 15, 16, 32_768, 65_535] {
                let original = frame(v6, false, window, &[TcpOptionElement::Timestamp(1, 2)]);
                let mut raised = original.clone();
                raise_scale(&mut raised, 4, true);
                let Frame::Tcp(segment) = wire::parse(&raised) else { panic!() };
                assert!(segment.frame.checksum_is_valid() && segment.window == window >> 4);
                let mut unscaled = original.clone();
                raise_scale(&mut unscaled, 4, false);
                assert_eq!(unscaled, original);
            }
        }
    }

    #[test]
    fn scales_of_windows_and_buffers() {
        let kib = |n: usize| n * 1024;
        assert_eq!([1, 65_535, 65_536, kib(256), kib(4096)].map(scale_for), [0, 0, 1, 3, 7]);
        assert_eq!(scale_for(usize::MAX >> 20), WINDOW_SCALE_MAX);
        assert_eq!(
            [1024, 65_535, 65_536, kib(256), kib(4096)].map(scale_of_buffer),
            [0, 0, 1, 3, 7]
        );
    }
}
