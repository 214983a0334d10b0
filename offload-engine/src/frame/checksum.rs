//! The Internet checksum (RFC 1071).

/// Adds the 16-bit words of `data` to `sum`. `data` starts on an even offset of what is summed; an
/// odd last byte counts as the high half of a word.
pub fn add(sum: u64, data: &[u8]) -> u64 {
    // Words are added in native order, four lanes of 32 bits at a time, and swapped at the end:
    // one's complement addition does not care (RFC 1071 s2 B).
    let (mut a, mut b, mut c, mut d) = (0_u64, 0_u64, 0_u64, 0_u64);
    let word = |bytes: &[u8]| -> u64 {
        u64::from(u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    let mut chunks = data.chunks_exact(16);
    for chunk in &mut chunks {
        a += word(&chunk[0..4]);
        b += word(&chunk[4..8]);
        c += word(&chunk[8..12]);
        d += word(&chunk[12..16]);
    }
    let mut pairs = chunks.remainder().chunks_exact(2);
    for pair in &mut pairs {
        a += u64::from(u16::from_ne_bytes([pair[0], pair[1]]));
    }
    if let [last] = pairs.remainder() {
        a += u64::from(u16::from_ne_bytes([*last, 0]));
    }
    let native = fold(a + b + c + d);
    sum + u64::from(u16::from_be_bytes(native.to_ne_bytes()))
}

/// Adds `data` that starts on an odd offset if `odd`; returns the sum and whether the next byte is
/// on an odd offset. For gathered data.
pub fn add_unaligned(sum: u64, data: &[u8], odd: bool) -> (u64, bool) {
    let part = add(0, data);
    let part = if odd { u64::from(fold(part).swap_bytes()) } else { part };
    (sum + part, odd ^ (data.len() % 2 == 1))
}

/// Folds a sum into 16 bits, not inverted.
pub const fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The checksum field's value for a sum.
pub const fn finish(sum: u64) -> u16 {
    !fold(sum)
}
