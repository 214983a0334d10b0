//! Text of a ping: "rdma-ping-N: ", then the letters from 'A' (65) to 'z' (122) cyclically, starting one letter later
//! with each ping, and a final NUL.

/// First letter of the cycle.
const FIRST: u8 = b'A';
/// Last letter of the cycle.
const LAST: u8 = b'z';
/// Letters of the cycle.
const LETTERS: u32 = (LAST - FIRST) as u32 + 1;

/// Smallest ping, bytes: the limit of rdma-core. The longest head ("rdma-ping-2147483647: ", 22 bytes), a letter and
/// the NUL fit.
pub const SIZE_MIN_BYTES: u32 = 26;
/// Largest ping, bytes: 64 KiB minus one.
pub const SIZE_MAX_BYTES: u32 = 65_535;
/// Default size of a ping, bytes.
pub const SIZE_DEFAULT_BYTES: u32 = 64;

/// Fills `data` with the text of ping `number`; the last byte is the NUL. `data` has at least [`SIZE_MIN_BYTES`] bytes;
/// otherwise the head is truncated.
pub fn fill(data: &mut [u8], number: u32) {
    let head = format!("rdma-ping-{number}: ");
    let Some((end, text)) = data.split_last_mut() else { return };
    let mut letter = number % LETTERS;
    for (index, octet) in text.iter_mut().enumerate() {
        *octet = match head.as_bytes().get(index) {
            Some(&of_head) => of_head,
            None => {
                let current = FIRST + letter as u8;
                letter = (letter + 1) % LETTERS;
                current
            }
        };
    }
    *end = 0;
}

/// Returns the offset of the first byte that differs; the shorter length if one is a prefix of the other; `None` if
/// they are equal.
pub fn first_difference(sent: &[u8], received: &[u8]) -> Option<usize> {
    let differing = sent.iter().zip(received).position(|(one, other)| one != other);
    let unequal = (sent.len() != received.len()).then(|| sent.len().min(received.len()));
    differing.or(unequal)
}

/// Returns the length of the text in `data` including its NUL, or the length of `data` without a NUL. The server writes
/// that many bytes back.
pub fn text_len(data: &[u8]) -> usize {
    data.iter().position(|&octet| octet == 0).map_or(data.len(), |nul| nul + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn first_pings_match_rdma_core() {
        let mut data = [0xff; 26];
        fill(&mut data, 0);
        assert_eq!(&data, b"rdma-ping-0: ABCDEFGHIJKL\0");
        fill(&mut data, 1);
        assert_eq!(&data, b"rdma-ping-1: BCDEFGHIJKLM\0");
        fill(&mut data, 57);
        assert_eq!(&data, b"rdma-ping-57: zABCDEFGHIJ\0", "A follows z");
        fill(&mut data, 58);
        assert_eq!(&data, b"rdma-ping-58: ABCDEFGHIJK\0", "the cycle has 58 letters");
    }

    proptest! {
        #[test]
        fn consecutive_pings_are_text_and_differ(size in SIZE_MIN_BYTES..4000, number in 0..u32::MAX) {
            let mut one = vec![0; size as usize];
            fill(&mut one, number);
            prop_assert_eq!(text_len(&one), size as usize);
            let mut next = vec![0; size as usize];
            fill(&mut next, number + 1);
            prop_assert!(first_difference(&one, &next).is_some());
            prop_assert_eq!(first_difference(&one, &one), None);
        }

        #[test]
        fn changed_byte_is_located(size in SIZE_MIN_BYTES..500, at in any::<proptest::sample::Index>()) {
            let mut sent = vec![0; size as usize];
            fill(&mut sent, 3);
            let mut received = sent.clone();
            let at = at.index(received.len());
            received[at] ^= 0x80;
            prop_assert_eq!(first_difference(&sent, &received), Some(at));
        }
    }

    #[test]
    fn short_answers_differ_at_their_end() {
        assert_eq!(first_difference(b"abc", b"ab"), Some(2));
        assert_eq!(first_difference(b"", b""), None);
        assert_eq!(text_len(b"ab\0cd"), 3);
        assert_eq!(text_len(b"abcd"), 4);
        fill(&mut [], 0);
    }
}
