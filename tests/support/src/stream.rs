//! Bytes from a seed, and their digest: data sent by one side, expected at the other.

use std::fmt;
use std::io::{self, Read};

use oorandom::Rand64;
use sha2::{Digest as _, Sha256};

/// Endless pseudo-random byte stream; equal seeds give equal streams on every machine.
#[derive(Clone, Debug)]
pub struct Stream {
    generator: Rand64,
    word: [u8; 8],
    used: usize,
}

impl Stream {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self { generator: Rand64::new(u128::from(seed)), word: [0; 8], used: 8 }
    }

    /// Fills `buffer` with the next bytes.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        for byte in self.leftover(buffer) {
            *byte = self.next_byte();
        }
    }

    /// Fills whole words quickly and returns the unfilled rest of `buffer`.
    fn leftover<'a>(&mut self, mut buffer: &'a mut [u8]) -> &'a mut [u8] {
        while self.used < self.word.len() && !buffer.is_empty() {
            let (first, rest) = buffer.split_at_mut(1);
            first[0] = self.next_byte();
            buffer = rest;
        }
        let (words, rest) = buffer.as_chunks_mut::<8>();
        for word in words {
            *word = self.generator.rand_u64().to_le_bytes();
        }
        rest
    }

    fn next_byte(&mut self) -> u8 {
        if self.used == self.word.len() {
            self.word = self.generator.rand_u64().to_le_bytes();
            self.used = 0;
        }
        self.used += 1;
        self.word[self.used - 1]
    }

    /// Digest of the next `bytes` bytes.
    pub fn digest(mut self, bytes: u64) -> Digest {
        let mut summer = HashingSink::default();
        let mut buffer = vec![0; 64 * 1024];
        while summer.bytes < bytes {
            let take =
                buffer.len().min(usize::try_from(bytes - summer.bytes).unwrap_or(usize::MAX));
            self.fill(&mut buffer[..take]);
            summer.update(&buffer[..take]);
        }
        summer.finish()
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.fill(buffer);
        Ok(buffer.len())
    }
}

/// Number of bytes, and their SHA-256.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest {
    /// Length of the data, bytes.
    pub bytes: u64,
    /// SHA-256 of the data.
    pub sha256: [u8; 32],
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes, sha256 ", self.bytes)?;
        self.sha256.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Computes the digest of the bytes written to it.
#[derive(Clone, Debug, Default)]
pub struct HashingSink {
    hash: Sha256,
    bytes: u64,
}

impl HashingSink {
    /// Adds `data`.
    pub fn update(&mut self, data: &[u8]) {
        self.hash.update(data);
        self.bytes += data.len() as u64;
    }

    /// Reads `from` to its end and returns its digest.
    ///
    /// # Errors
    ///
    /// Errors of `from`.
    pub fn drain(mut from: impl Read) -> io::Result<Digest> {
        let mut summer = Self::default();
        let mut buffer = vec![0; 256 * 1024];
        loop {
            match from.read(&mut buffer)? {
                0 => return Ok(summer.finish()),
                bytes => summer.update(&buffer[..bytes]),
            }
        }
    }

    /// Bytes added so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Digest of all data added.
    pub fn finish(self) -> Digest {
        Digest { bytes: self.bytes, sha256: self.hash.finalize().into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_is_independent_of_read_sizes() {
        let mut whole = [0; 1000];
        Stream::new(7).fill(&mut whole);
        let mut pieces = Vec::new();
        let mut stream = Stream::new(7);
        for size in [1, 2, 3, 7, 8, 9, 64, 100, 806] {
            let mut piece = vec![0; size];
            stream.fill(&mut piece);
            pieces.extend(piece);
        }
        assert_eq!(pieces, whole);
        assert_ne!(Stream::new(7).digest(1000), Stream::new(8).digest(1000));
    }

    #[test]
    fn digest_is_sha256() {
        // FIPS 180-4, the message "abc".
        let digest = HashingSink::drain(&b"abc"[..]).unwrap();
        assert_eq!(digest.bytes, 3);
        assert_eq!(digest.sha256[..4], [0xba, 0x78, 0x16, 0xbf]);
    }

    #[test]
    fn drained_and_computed_digests_agree() {
        assert_eq!(
            HashingSink::drain(Stream::new(3).take(100_001)).unwrap(),
            Stream::new(3).digest(100_001)
        );
    }
}
