//! Acknowledgment: private message between queue pairs of reliable connected service. It counts executed messages.
//!
//! RDMAP reserves opcode 1110b. A receiver that does not support the message rejects it as an unexpected opcode.

use super::RdmapError;

/// Octets of an acknowledgment after its DDP header.
pub const ACKNOWLEDGMENT_OCTETS: usize = 8;

/// Condition of the receiver, as reported by an acknowledgment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// The counted messages were executed.
    Executed,
    /// As `Executed`, and the next message waits for a receive.
    NotReady,
    /// As `Executed`, and the next message, or another request named by the Terminate that follows, has failed with
    /// this status of `ibv_wc_status`.
    Failed(u8),
}

/// Acknowledgment of messages: Sends, Writes, and immediate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Acknowledgment {
    /// Messages executed since the start of the stream, modulo 2^32.
    pub count: u32,
    /// Condition of the receiver.
    pub syndrome: Syndrome,
}

impl Acknowledgment {
    /// Parses the payload of a segment. The reserved octets are ignored.
    ///
    /// # Errors
    /// [`RdmapError::Length`] unless the segment is exactly the whole message; [`RdmapError::Syndrome`].
    pub fn parse(payload: &[u8], last: bool) -> Result<Self, RdmapError> {
        let (octets, expected) = (payload.len(), ACKNOWLEDGMENT_OCTETS);
        let error = RdmapError::Length { octets, expected };
        let fields: [u8; ACKNOWLEDGMENT_OCTETS] =
            payload.try_into().ok().filter(|_| last).ok_or(error)?;
        let [a, b, c, d, syndrome, status, _, _] = fields;
        let syndrome = match syndrome {
            0 => Syndrome::Executed,
            1 => Syndrome::NotReady,
            2 => Syndrome::Failed(status),
            unknown => return Err(RdmapError::Syndrome(unknown)),
        };
        Ok(Self { count: u32::from_be_bytes([a, b, c, d]), syndrome })
    }

    /// Encodes the payload.
    pub fn emit(&self) -> [u8; ACKNOWLEDGMENT_OCTETS] {
        let [a, b, c, d] = self.count.to_be_bytes();
        let (syndrome, status) = match self.syndrome {
            Syndrome::Executed => (0, 0),
            Syndrome::NotReady => (1, 0),
            Syndrome::Failed(status) => (2, status),
        };
        [a, b, c, d, syndrome, status, 0, 0]
    }
}
