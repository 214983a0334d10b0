//! Control messages of the lab's script, and their errors.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Length of a control message, bytes.
pub const CONTROL_BYTES: usize = 64;

const MAGIC: [u8; 4] = *b"FLUE";
const VERSION: u8 = 1;

/// SHA-256 digest.
pub type Digest = [u8; 32];

/// Operation that transfers the file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TransferKind {
    /// NDK Send into posted Receives.
    Send,
    /// RDMA Write.
    Write,
    /// RDMA Read.
    Read,
}

impl TransferKind {
    /// All kinds, in the order of the script.
    pub const ALL: [Self; 3] = [Self::Send, Self::Write, Self::Read];

    pub(super) const fn next(self) -> Option<Self> {
        match self {
            Self::Send => Some(Self::Write),
            Self::Write => Some(Self::Read),
            Self::Read => None,
        }
    }
}

impl fmt::Display for TransferKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Send => "Send/Receive",
            Self::Write => "RDMA Write",
            Self::Read => "RDMA Read",
        })
    }
}

/// Memory of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// Tagged offset of its first byte.
    pub address: u64,
    /// Remote token: the STag.
    pub token: u32,
}

/// Control message. On the wire, in network byte order: "FLUE", version, kind, two zero octets, be32 token, be32 count,
/// be64 address, be64 length, 32 octets of digest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Control {
    /// Announcement of the file.
    Hello {
        /// Length of the file, bytes.
        length: u64,
        /// Length of each Send except the last, bytes.
        chunk: u32,
    },
    /// Sink memory, and the receives posted over it.
    Ready {
        /// Sink memory.
        sink: Remote,
        /// Number of receives.
        credit: u32,
    },
    /// Further posted receives.
    Credit {
        /// Number of receives.
        credit: u32,
    },
    /// All bytes of the transfer have arrived.
    Arrived,
    /// Digest of the received bytes.
    Digest(Digest),
    /// The last RDMA Write was posted before this message.
    Written,
    /// Memory from which to read the file.
    Offer {
        /// Source memory.
        source: Remote,
    },
}

impl Control {
    const fn kind(&self) -> u8 {
        match self {
            Self::Hello { .. } => 1,
            Self::Ready { .. } => 2,
            Self::Credit { .. } => 3,
            Self::Arrived => 4,
            Self::Digest(_) => 5,
            Self::Written => 6,
            Self::Offer { .. } => 7,
        }
    }

    /// Encodes the message.
    pub fn encode(&self) -> [u8; CONTROL_BYTES] {
        let no_memory = Remote { address: 0, token: 0 };
        let (memory, count, length, digest) = match *self {
            Self::Hello { length, chunk } => (no_memory, chunk, length, [0; 32]),
            Self::Ready { sink, credit } => (sink, credit, 0, [0; 32]),
            Self::Credit { credit } => (no_memory, credit, 0, [0; 32]),
            Self::Digest(digest) => (no_memory, 0, 0, digest),
            Self::Offer { source } => (source, 0, 0, [0; 32]),
            Self::Arrived | Self::Written => (no_memory, 0, 0, [0; 32]),
        };
        let mut octets = [0; CONTROL_BYTES];
        octets[0..4].copy_from_slice(&MAGIC);
        octets[4] = VERSION;
        octets[5] = self.kind();
        octets[8..12].copy_from_slice(&memory.token.to_be_bytes());
        octets[12..16].copy_from_slice(&count.to_be_bytes());
        octets[16..24].copy_from_slice(&memory.address.to_be_bytes());
        octets[24..32].copy_from_slice(&length.to_be_bytes());
        octets[32..64].copy_from_slice(&digest);
        octets
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// [`ScriptError::Malformed`].
    pub fn decode(octets: &[u8]) -> Result<Self, ScriptError> {
        let octets: &[u8; CONTROL_BYTES] =
            octets.try_into().map_err(|_| ScriptError::Malformed("length"))?;
        if octets[0..4] != MAGIC {
            return Err(ScriptError::Malformed("magic"));
        }
        if octets[4] != VERSION {
            return Err(ScriptError::Malformed("version"));
        }
        let be32 = |at: usize| {
            let mut bytes = [0; 4];
            bytes.copy_from_slice(&octets[at..at + 4]);
            u32::from_be_bytes(bytes)
        };
        let be64 = |at: usize| (u64::from(be32(at)) << 32) | u64::from(be32(at + 4));
        let memory = Remote { address: be64(16), token: be32(8) };
        Ok(match octets[5] {
            1 => Self::Hello { length: be64(24), chunk: be32(12) },
            2 => Self::Ready { sink: memory, credit: be32(12) },
            3 => Self::Credit { credit: be32(12) },
            4 => Self::Arrived,
            5 => {
                let mut digest = [0; 32];
                digest.copy_from_slice(&octets[32..64]);
                Self::Digest(digest)
            }
            6 => Self::Written,
            7 => Self::Offer { source: memory },
            _ => return Err(ScriptError::Malformed("kind")),
        })
    }
}

/// Protocol violation of the peer, or corrupted file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ScriptError {
    /// Malformed control message.
    #[error("lab: control message: invalid {0}")]
    Malformed(&'static str),
    /// Message that is unexpected in this state.
    #[error("lab: unexpected {0}")]
    Unexpected(&'static str),
    /// Number beyond its limit.
    #[error("lab: {0}: limit exceeded")]
    Limit(&'static str),
    /// Digest mismatch between source and sink.
    #[error("{0}: SHA-256 of received data differs from that of the file")]
    DigestMismatch(TransferKind),
}
