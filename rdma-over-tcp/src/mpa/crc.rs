//! CRC32C as used by MPA (RFC 5044 §4.4): the iSCSI digest, least significant octet first on the wire.
//!
//! With `std`, `crc-fast` computes the CRC and selects the CPU's instructions at run time. Without `std`, a table of 1
//! KiB is used, octet by octet.

#[cfg(feature = "std")]
use crc_fast::{CrcAlgorithm, Digest};

/// Octets of a CRC field.
pub const CRC_OCTETS: usize = 4;

/// Incremental CRC32C, kept for the life of a stream and reset for each FPDU.
#[derive(Clone, Debug)]
pub struct Crc32c {
    #[cfg(feature = "std")]
    digest: Digest,
    #[cfg(not(feature = "std"))]
    digest: table::Digest,
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc32c {
    /// Returns the CRC of zero octets.
    pub fn new() -> Self {
        Self {
            #[cfg(feature = "std")]
            digest: Digest::new(CrcAlgorithm::Crc32Iscsi),
            #[cfg(not(feature = "std"))]
            digest: table::Digest::new(),
        }
    }

    /// Resets the CRC to that of zero octets.
    #[inline]
    pub fn reset(&mut self) {
        self.digest.reset();
    }

    /// Adds octets.
    #[inline]
    pub fn update(&mut self, octets: &[u8]) {
        self.digest.update(octets);
    }

    /// Returns the CRC as an integer.
    #[inline]
    pub fn value(&self) -> u32 {
        #[cfg(feature = "std")]
        {
            // A 32-bit CRC in a 64-bit register: the upper half is zero.
            self.digest.finalize() as u32
        }
        #[cfg(not(feature = "std"))]
        {
            self.digest.finalize()
        }
    }

    /// Returns the four octets of the CRC field.
    #[inline]
    pub fn to_wire(&self) -> [u8; CRC_OCTETS] {
        self.value().to_le_bytes()
    }
}

/// CRC32C of one slice: cheaper than a [`Crc32c`] if all octets are contiguous.
#[inline]
pub fn crc32c(octets: &[u8]) -> u32 {
    #[cfg(feature = "std")]
    {
        crc_fast::crc32_iscsi(octets)
    }
    #[cfg(not(feature = "std"))]
    {
        let mut crc = Crc32c::new();
        crc.update(octets);
        crc.value()
    }
}

/// Table-driven CRC, one octet at a time: used without `std`, and compared with `crc-fast` in tests.
#[cfg(any(test, not(feature = "std")))]
mod table {
    /// The generator 0x1EDC6F41, bit-reversed.
    const POLYNOMIAL: u32 = 0x82F6_3B78;

    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut octet = 0;
        while octet < table.len() {
            let mut remainder = octet as u32;
            let mut bit = 0;
            while bit < 8 {
                let carry = remainder & 1;
                remainder = (remainder >> 1) ^ (carry * POLYNOMIAL);
                bit += 1;
            }
            table[octet] = remainder;
            octet += 1;
        }
        table
    };

    #[derive(Clone, Debug)]
    pub(super) struct Digest(u32);

    impl Digest {
        pub(super) const fn new() -> Self {
            Self(!0)
        }

        pub(super) fn reset(&mut self) {
            *self = Self::new();
        }

        pub(super) fn update(&mut self, octets: &[u8]) {
            for &octet in octets {
                let [low, ..] = self.0.to_le_bytes();
                self.0 = (self.0 >> 8) ^ TABLE[usize::from(low ^ octet)];
            }
        }

        pub(super) const fn finalize(&self) -> u32 {
            !self.0
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn by_table(octets: &[u8]) -> u32 {
        let mut digest = table::Digest::new();
        digest.update(b"forgotten");
        digest.reset();
        digest.update(octets);
        digest.finalize()
    }

    // MPA-4.4-8: the values published with iSCSI.
    #[test]
    fn published_values() {
        let rising: Vec<u8> = (0..32).collect();
        let falling: Vec<u8> = (0..32).rev().collect();
        for (octets, integer, wire) in [
            (&[0; 32][..], 0x8a91_36aa, [0xaa, 0x36, 0x91, 0x8a]),
            (&[0xff; 32], 0x62a8_ab43, [0x43, 0xab, 0xa8, 0x62]),
            (&rising, 0x46dd_794e, [0x4e, 0x79, 0xdd, 0x46]),
            (&falling, 0x113f_db5c, [0x5c, 0xdb, 0x3f, 0x11]),
            (b"123456789", 0xe306_9283, [0x83, 0x92, 0x06, 0xe3]),
        ] {
            let mut crc = Crc32c::new();
            crc.update(octets);
            assert_eq!(crc.value(), integer);
            assert_eq!(crc.to_wire(), wire);
            assert_eq!(by_table(octets), integer);
        }
    }

    proptest! {
        // Updates in pieces give the CRC of the whole with either implementation; a reset clears the state.
        #[test]
        fn pieces_and_engines_agree(
            octets in prop::collection::vec(any::<u8>(), 0..3000),
            cut in any::<prop::sample::Index>(),
        ) {
            let (first, second) = octets.split_at(cut.index(octets.len() + 1));
            let mut crc = Crc32c::new();
            crc.update(second);
            crc.reset();
            crc.update(first);
            crc.update(second);
            prop_assert_eq!(crc.value(), by_table(&octets));
            prop_assert_eq!(crc32c(&octets), by_table(&octets));
        }
    }
}
