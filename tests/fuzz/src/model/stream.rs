//! True bytes of the two streams.

use std::sync::LazyLock;

/// Period of a stream in bytes: a prime, so that a shifted byte is detected with any segment or window size.
const PERIOD: u64 = 65_521;
/// Bytes compared or copied at once.
const CHUNK: usize = 4_096;

/// Stream selector.
#[derive(Clone, Copy)]
pub(super) enum Stream {
    Ours,
    Theirs,
}

/// One period of both streams, and one chunk more.
static STREAMS: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
    [0x9e37_79b9_7f4a_7c15_u64, 0xc2b2_ae3d_27d4_eb4f].map(|salt| {
        let places = 0..PERIOD + CHUNK as u64;
        places.map(|at| ((at % PERIOD + 1).wrapping_mul(salt) >> 56) as u8).collect()
    })
});

impl Stream {
    /// Bytes from `at` on, at most [`CHUNK`] of them.
    fn chunk(self, at: u64, len: usize) -> &'static [u8] {
        let from = (at % PERIOD) as usize;
        &STREAMS[self as usize][from..from + len.min(CHUNK)]
    }

    /// Appends `len` bytes from `at` on.
    pub(super) fn write(self, at: u64, len: u64, out: &mut Vec<u8>) {
        let mut at = at;
        let end = at + len;
        while at < end {
            let chunk = self.chunk(at, (end - at) as usize);
            out.extend_from_slice(chunk);
            at += chunk.len() as u64;
        }
    }

    /// Compares `data` with the bytes from `at` on.
    ///
    /// # Errors
    /// The offset of the first byte that differs.
    pub(super) fn check(self, at: u64, data: &[u8]) -> Result<(), u64> {
        let mut at = at;
        for part in data.chunks(CHUNK) {
            let truth = self.chunk(at, part.len());
            if truth != part {
                let same = truth.iter().zip(part).take_while(|(a, b)| a == b).count();
                return Err(at + same as u64);
            }
            at += part.len() as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_byte_is_detected() {
        for at in [0, PERIOD - 10, 3 * PERIOD - 5_000] {
            let mut data = Vec::new();
            Stream::Ours.write(at, 9_000, &mut data);
            assert_eq!((data.len(), Stream::Ours.check(at, &data)), (9_000, Ok(())));
            assert!(Stream::Theirs.check(at, &data).is_err());
            data[8_000] ^= 1;
            assert_eq!(Stream::Ours.check(at, &data), Err(at + 8_000));
            assert!(Stream::Ours.check(at + 1, &data).is_err());
        }
    }
}
