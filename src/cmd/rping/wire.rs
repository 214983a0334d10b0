//! Message of rping: 16 bytes that describe a memory range.
//!
//! ```text
//! 0  be64 address (tagged offset) | 8  be32 remote key (STag) | 12  be32 size
//! ```
//!
//! The server's "go ahead" messages have the same length and no content.

/// Length of the message, bytes.
pub const ADVERT_BYTES: usize = 16;

/// Memory that the peer may read or write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Advert {
    /// Tagged offset of its first byte.
    pub address: u64,
    /// STag.
    pub token: u32,
    /// Size, bytes.
    pub size: u32,
}

/// Error: the message is not [`ADVERT_BYTES`] long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("rping: message of {0} octets, expected 16")]
pub struct WrongLength(pub usize);

impl Advert {
    /// "Go ahead" of the server.
    pub const GO_AHEAD: Self = Self { address: 0, token: 0, size: 0 };

    /// Encodes the message.
    pub fn encode(&self) -> [u8; ADVERT_BYTES] {
        let Self { address, token, size } = *self;
        let mut octets = [0; ADVERT_BYTES];
        octets[0..8].copy_from_slice(&address.to_be_bytes());
        octets[8..12].copy_from_slice(&token.to_be_bytes());
        octets[12..16].copy_from_slice(&size.to_be_bytes());
        octets
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// Not 16 bytes.
    pub fn decode(octets: &[u8]) -> Result<Self, WrongLength> {
        let &[a0, a1, a2, a3, a4, a5, a6, a7, t0, t1, t2, t3, s0, s1, s2, s3] = octets else {
            return Err(WrongLength(octets.len()));
        };
        Ok(Self {
            address: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            token: u32::from_be_bytes([t0, t1, t2, t3]),
            size: u32::from_be_bytes([s0, s1, s2, s3]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_at_the_offsets_of_rdma_core() {
        let advert = Advert { address: 0x0102_0304_0506_0708, token: 0x1112_1314, size: 64 };
        let octets = [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0, 0, 0, 64];
        assert_eq!(advert.encode(), octets);
        assert_eq!(Advert::decode(&octets), Ok(advert));
        assert_eq!(Advert::GO_AHEAD.encode(), [0; 16]);
    }

    #[test]
    fn other_lengths_are_rejected() {
        assert_eq!(Advert::decode(&[0; 15]), Err(WrongLength(15)));
        assert_eq!(Advert::decode(&[0; 17]), Err(WrongLength(17)));
        assert_eq!(Advert::decode(&[]), Err(WrongLength(0)));
    }
}
