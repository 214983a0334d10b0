//! Atomic Operations: encoding and arithmetic (RFC 7306 §5).
//!
//! A request has an operation, a target of eight octets and up to four operands. A response has the original value of
//! the target. Swap has no separate opcode: it is a CmpSwap with an empty compare mask ([`AtomicOperation::swap`]).
//! Values are integers: big-endian on the wire, in native byte order in memory.

use super::RdmapError;
use crate::ddp::{Stag, TaggedOffset};

/// Octets of an Atomic Request after the DDP header.
pub const ATOMIC_REQUEST_OCTETS: usize = 52;

/// Octets of an Atomic Response after the DDP header.
pub const ATOMIC_RESPONSE_OCTETS: usize = 12;

/// Octets of the target of an Atomic Operation, and their alignment (EXT-5.1-1).
pub const ATOMIC_TARGET_OCTETS: u32 = 8;

const FETCH_ADD: u8 = 0;
const COMPARE_SWAP: u8 = 2;
const OPCODE_MASK: u8 = 0x0f;

/// Atomic Operation on eight octets of the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicOperation {
    /// FetchAdd: adds `add`. Each bit set in `mask` is the last of a field: no carry crosses it (§5.1.1).
    FetchAdd {
        /// The addend.
        add: u64,
        /// Last bits of fields; 0 for one field of 64 bits.
        mask: u64,
    },
    /// CmpSwap: if the value equals `compare` in the bits of `compare_mask`, the bits of `swap_mask` are replaced by
    /// those of `swap` (§5.1.2).
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// Mask of the bits to compare.
        compare_mask: u64,
        /// New value of the replaced bits.
        swap: u64,
        /// Mask of the bits to replace.
        swap_mask: u64,
    },
}

impl AtomicOperation {
    /// Returns an operation that replaces any value.
    pub const fn swap(value: u64) -> Self {
        Self::CompareSwap { compare: 0, compare_mask: 0, swap: value, swap_mask: u64::MAX }
    }

    /// Returns the new value for `original`.
    pub const fn apply(self, original: u64) -> u64 {
        match self {
            Self::FetchAdd { add, mask } => {
                // The sum of each field without its last bit; then the last bits, whose carry is discarded.
                let sum = (original & !mask).wrapping_add(add & !mask);
                sum ^ (original ^ add) & mask
            }
            Self::CompareSwap { compare, compare_mask, swap, swap_mask } => {
                match (original ^ compare) & compare_mask {
                    0 => original & !swap_mask | swap & swap_mask, // EXT-5.1.2-1
                    _ => original,
                }
            }
        }
    }
}

/// Atomic Request (RFC 7306 §5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicRequest {
    /// The operation.
    pub operation: AtomicOperation,
    /// Identifier that the response returns.
    pub identifier: u32,
    /// STag of the responder's buffer.
    pub stag: Stag,
    /// Offset of the target in the buffer.
    pub offset: TaggedOffset,
}

impl AtomicRequest {
    /// Parses the payload of a segment on the queue of Read Requests; `last` is the segment's L. Operands that the
    /// operation does not use are ignored.
    ///
    /// # Errors
    /// [`RdmapError::Length`] unless the segment is exactly one Atomic Request; [`RdmapError::AtomicOpcode`]
    /// (EXT-5.2.1-2).
    pub fn parse(payload: &[u8], last: bool) -> Result<Self, RdmapError> {
        let error = RdmapError::Length { octets: payload.len(), expected: ATOMIC_REQUEST_OCTETS };
        let octets: &[u8; ATOMIC_REQUEST_OCTETS] =
            payload.try_into().ok().filter(|_| last).ok_or(error)?;
        let word = |at: usize| {
            u32::from_be_bytes([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]])
        };
        let value = |at| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        let operation = match octets[3] & OPCODE_MASK {
            FETCH_ADD => AtomicOperation::FetchAdd { add: value(20), mask: value(28) },
            COMPARE_SWAP => AtomicOperation::CompareSwap {
                swap: value(20),
                swap_mask: value(28),
                compare: value(36),
                compare_mask: value(44),
            },
            other => return Err(RdmapError::AtomicOpcode(other)),
        };
        let (stag, offset) = (Stag(word(8)), TaggedOffset(value(12)));
        Ok(Self { operation, identifier: word(4), stag, offset })
    }

    /// Encodes the octets after the DDP header.
    pub fn emit(&self) -> [u8; ATOMIC_REQUEST_OCTETS] {
        let &Self { operation, identifier, stag, offset } = self;
        let (code, operands) = match operation {
            AtomicOperation::FetchAdd { add, mask } => (FETCH_ADD, [add, mask, 0, u64::MAX]),
            AtomicOperation::CompareSwap { compare, compare_mask, swap, swap_mask } => {
                (COMPARE_SWAP, [swap, swap_mask, compare, compare_mask])
            }
        };
        let mut out = [0; ATOMIC_REQUEST_OCTETS];
        out[3] = code;
        out[4..8].copy_from_slice(&identifier.to_be_bytes());
        out[8..12].copy_from_slice(&stag.0.to_be_bytes());
        out[12..20].copy_from_slice(&offset.0.to_be_bytes());
        for (place, operand) in out[20..].chunks_exact_mut(8).zip(operands) {
            place.copy_from_slice(&operand.to_be_bytes());
        }
        out
    }
}

/// Atomic Response (RFC 7306 §5.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicResponse {
    /// Identifier of the request.
    pub identifier: u32,
    /// Value of the target before the operation.
    pub original: u64,
}

impl AtomicResponse {
    /// Parses the payload of a segment on the queue of Atomic Responses; `last` is the segment's L.
    ///
    /// # Errors
    /// [`RdmapError::Length`] unless the segment is exactly one Atomic Response.
    pub fn parse(payload: &[u8], last: bool) -> Result<Self, RdmapError> {
        let error = RdmapError::Length { octets: payload.len(), expected: ATOMIC_RESPONSE_OCTETS };
        let octets: &[u8; ATOMIC_RESPONSE_OCTETS] =
            payload.try_into().ok().filter(|_| last).ok_or(error)?;
        let &[i0, i1, i2, i3, original @ ..] = octets;
        let identifier = u32::from_be_bytes([i0, i1, i2, i3]);
        Ok(Self { identifier, original: u64::from_be_bytes(original) })
    }

    /// Encodes the octets after the DDP header.
    pub fn emit(&self) -> [u8; ATOMIC_RESPONSE_OCTETS] {
        let &Self { identifier, original } = self;
        let mut out = [0; ATOMIC_RESPONSE_OCTETS];
        out[..4].copy_from_slice(&identifier.to_be_bytes());
        out[4..].copy_from_slice(&original.to_be_bytes());
        out
    }
}
