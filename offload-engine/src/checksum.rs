//! Internet checksum (RFC 1071).

use crate::memory::Piece;

/// Adds the 16-bit words of `data` to `sum`. `data` starts at an even offset of the summed data. An odd last byte
/// counts as the high half of a word.
pub fn add(sum: u64, data: &[u8]) -> u64 {
    // Words are added in native order and swapped at the end: one's complement addition is independent of byte order
    // (RFC 1071 §2 B). The lanes fill two 512-bit vector registers, so that the compiler can use the widest registers
    // of the CPU.
    const LANES: usize = 16;
    let mut lanes = [0_u64; LANES];
    let mut chunks = data.chunks_exact(4 * LANES);
    for chunk in &mut chunks {
        for (lane, bytes) in lanes.iter_mut().zip(chunk.chunks_exact(4)) {
            *lane += word(bytes);
        }
    }
    let mut sum_native: u64 = lanes.iter().sum();
    let mut words = chunks.remainder().chunks_exact(4);
    for bytes in &mut words {
        sum_native += word(bytes);
    }
    let mut pairs = words.remainder().chunks_exact(2);
    for pair in &mut pairs {
        sum_native += u64::from(u16::from_ne_bytes([pair[0], pair[1]]));
    }
    if let [last] = pairs.remainder() {
        sum_native += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    sum + u64::from(u16::from_be_bytes(fold(sum_native).to_ne_bytes()))
}

/// Variant of [`add`] for the few words of a header, without lanes. `N` is a multiple of 4.
#[inline]
pub fn add_header<const N: usize>(sum: u64, header: &[u8; N]) -> u64 {
    const { assert!(N.is_multiple_of(4)) };
    let sum_native: u64 =
        header.as_chunks::<4>().0.iter().map(|bytes| u64::from(u32::from_ne_bytes(*bytes))).sum();
    sum + u64::from(u16::from_be_bytes(fold(sum_native).to_ne_bytes()))
}

fn word(bytes: &[u8]) -> u64 {
    u64::from(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
}

/// Adds `data` that starts at an odd offset if `odd`. Returns the sum, and true if the next byte is at an odd offset.
/// For gathered data.
pub fn add_unaligned(sum: u64, data: &[u8], odd: bool) -> (u64, bool) {
    let part = add(0, data);
    let part = if odd { u64::from(fold(part).swap_bytes()) } else { part };
    (sum + part, odd ^ (data.len() % 2 == 1))
}

/// Variant of [`add_unaligned`] for data that may be shared.
pub fn add_piece(mut sum: u64, piece: Piece<'_>, mut odd: bool) -> (u64, bool) {
    piece.chunks(|chunk| (sum, odd) = add_unaligned(sum, chunk, odd));
    (sum, odd)
}

/// Folds a sum into 16 bits, without inverting it.
pub const fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Returns the value of the checksum field for a sum.
pub const fn finish(sum: u64) -> u16 {
    !fold(sum)
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::{add, add_header, add_piece, add_unaligned, finish, fold};
    use crate::memory::{CHUNK_BYTES, Piece, SharedSpan};

    /// RFC 1071 §3 sums these octets to ddf2.
    #[test]
    fn rfc1071_example() {
        let octets = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(add(0, &octets)), 0xddf2);
    }

    /// The IPv4 header 4500 0073 ... c0a8 00c7 has the checksum b861.
    #[test]
    fn known_ipv4_header() {
        let header = [
            0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0,
            0xc7,
        ];
        assert_eq!(finish(add(0, &header)), 0xb861);
    }

    // Shared memory is copied and summed one part at a time.
    #[test]
    fn shared_memory_checksum_matches_private() {
        let memory = SharedSpan::allocate(3 * CHUNK_BYTES, 1).unwrap();
        let data: Vec<u8> = (0..memory.len()).map(|at| (at * 31 + at / 256) as u8).collect();
        memory.write(0, &data);
        for (offset, len) in [(0, 1), (3, 1447), (1, CHUNK_BYTES), (0, 3 * CHUNK_BYTES - 1)] {
            for odd in [false, true] {
                let shared = Piece::Shared(memory.view().slice(offset, len));
                let plain = add_unaligned(7, &data[offset..][..len], odd);
                let (sum, then) = add_piece(7, shared, odd);
                assert_eq!((fold(sum), then), (fold(plain.0), plain.1), "{len}");
            }
        }
    }

    proptest! {
        #[test]
        fn checksum_matches_plain_sum(
            data in proptest::collection::vec(any::<u8>(), 0..100),
            cut in 0_usize..100,
        ) {
            let mut plain = 0_u64;
            for pair in data.chunks(2) {
                plain += u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
            }
            prop_assert_eq!(fold(add(0, &data)) % 0xffff, fold(plain) % 0xffff);
            let (left, right) = data.split_at(cut.min(data.len()));
            let (sum, odd) = add_unaligned(0, left, false);
            let (sum, _) = add_unaligned(sum, right, odd);
            prop_assert_eq!(fold(sum) % 0xffff, fold(plain) % 0xffff);
        }

        #[test]
        fn header_checksum_matches_byte_checksum(
            before in 0_u64..1 << 32,
            header in any::<[u8; 20]>(),
            addresses in any::<[u8; 32]>(),
        ) {
            prop_assert_eq!(add_header(before, &header), add(before, &header));
            prop_assert_eq!(add_header(before, &addresses), add(before, &addresses));
        }
    }
}
