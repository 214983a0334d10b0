//! A TCP segment as it was received: sequence numbers, flags, options, ECN bits; and ICMP errors that quote one.
//!
//! `frame` and `tcp` share these types, and are independent of each other.

use core::{
    fmt,
    ops::{Add, AddAssign, Sub},
};

/// A TCP sequence number. Ordered by [`SeqNum::is_before`] and friends, never by its integer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct SeqNum(pub u32);

impl SeqNum {
    /// Signed distance from `other` to `self`; meaningful while both lie within 2^31 of each other.
    pub const fn distance(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0).cast_signed()
    }

    /// `self < other` in sequence space.
    pub const fn is_before(self, other: Self) -> bool {
        self.distance(other) < 0
    }

    /// `self <= other` in sequence space.
    pub const fn is_at_or_before(self, other: Self) -> bool {
        self.distance(other) <= 0
    }

    /// `self > other` in sequence space.
    pub const fn is_after(self, other: Self) -> bool {
        self.distance(other) > 0
    }

    /// `self >= other` in sequence space.
    pub const fn is_at_or_after(self, other: Self) -> bool {
        self.distance(other) >= 0
    }

    /// The later of two.
    pub fn later(self, other: Self) -> Self {
        if self.is_after(other) { self } else { other }
    }

    /// The earlier of two.
    pub fn earlier(self, other: Self) -> Self {
        if self.is_before(other) { self } else { other }
    }
}

impl Add<u32> for SeqNum {
    type Output = Self;

    fn add(self, rhs: u32) -> Self {
        Self(self.0.wrapping_add(rhs))
    }
}

impl AddAssign<u32> for SeqNum {
    fn add_assign(&mut self, rhs: u32) {
        *self = *self + rhs;
    }
}

impl Sub<u32> for SeqNum {
    type Output = Self;

    fn sub(self, rhs: u32) -> Self {
        Self(self.0.wrapping_sub(rhs))
    }
}

impl fmt::Debug for SeqNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// TCP header flags.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Flags(pub u8);

impl Flags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronize.
    pub const SYN: Self = Self(0x02);
    /// Reset.
    pub const RST: Self = Self(0x04);
    /// Push.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgement field is significant.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer is significant.
    pub const URG: Self = Self(0x20);
    /// ECN echo.
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced.
    pub const CWR: Self = Self(0x80);

    /// Whether all of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl core::ops::BitOr for Flags {
    type Output = Self;

    fn bitor(self, rhs: Self) -> Self {
        Self(self.0 | rhs.0)
    }
}

impl core::ops::BitOrAssign for Flags {
    fn bitor_assign(&mut self, rhs: Self) {
        self.0 |= rhs.0;
    }
}

/// A SACK block: bytes `start..end` have arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SackBlock {
    /// First byte.
    pub start: SeqNum,
    /// One beyond the last byte.
    pub end: SeqNum,
}

/// A timestamps option (RFC 7323).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timestamps {
    /// TSval.
    pub value: u32,
    /// TSecr.
    pub echo: u32,
}

/// The TCP header of a received segment, parsed, and its payload. Checksum already verified.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Sequence number.
    pub seq: SeqNum,
    /// Acknowledgement number; meaningful with ACK.
    pub ack: SeqNum,
    /// Flags.
    pub flags: Flags,
    /// Window field as on the wire, unscaled.
    pub window: u16,
    /// Timestamps option.
    pub timestamps: Option<Timestamps>,
    /// SACK blocks, at most 4.
    pub sack: &'a [SackBlock],
    /// Payload.
    pub payload: &'a [u8],
    /// Payload bytes of each original segment if the link coalesced several; 0 if it did not.
    pub gso_size: usize,
    /// The ECN bits of its IP header.
    pub ecn: Ecn,
}

/// What changes in the headers of a connection from one transmitted segment to the next.
#[derive(Clone, Copy, Debug)]
pub struct SegmentHeader<'a> {
    /// Sequence number.
    pub seq: SeqNum,
    /// Acknowledgement number.
    pub ack: SeqNum,
    /// Flags.
    pub flags: Flags,
    /// Window field.
    pub window: u16,
    /// Timestamps option.
    pub timestamps: Option<Timestamps>,
    /// SACK blocks: at most 4, at most 3 beside timestamps.
    pub sack: &'a [SackBlock],
    /// Payload bytes that will follow.
    pub payload_len: usize,
    /// The ECN bits of the IP header.
    pub ecn: Ecn,
}

/// The two ECN bits of an IP header (RFC 3168 §5).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(u8)]
pub enum Ecn {
    /// Routers drop, they do not mark.
    #[default]
    NotCapable = 0b00,
    /// ECN-capable, the other codepoint.
    Capable1 = 0b01,
    /// ECN-capable, the codepoint that we send.
    Capable0 = 0b10,
    /// Congestion experienced.
    Congestion = 0b11,
}

impl Ecn {
    /// From the low two bits of a TOS or traffic class.
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 0b11 {
            0b00 => Self::NotCapable,
            0b01 => Self::Capable1,
            0b10 => Self::Capable0,
            _ => Self::Congestion,
        }
    }

    /// The two bits.
    pub const fn bits(self) -> u8 {
        self as u8
    }
}

/// An ICMP error about a segment of ours, as far as it concerns TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathError {
    /// Sequence number of the quoted segment.
    pub seq: SeqNum,
    /// Its kind.
    pub kind: PathErrorKind,
}

/// The kind of an ICMP error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathErrorKind {
    /// "Fragmentation needed and DF set" (RFC 1191 §4), "packet too big" (RFC 4443 §3.2).
    TooBig {
        /// MTU of the next hop, in bytes; 0: the router does not report it (RFC 1191 §5).
        next_hop_mtu: u32,
        /// Bytes of the quoted IP packet, as its header has them.
        packet_len: u32,
    },
    /// Anything else.
    Soft(SoftError),
}

/// Why a segment did not arrive, as ICMP has it. None of them ends a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SoftError {
    /// No route.
    #[error("network unreachable")]
    NetworkUnreachable,
    /// The last router does not reach the host.
    #[error("host unreachable")]
    HostUnreachable,
    /// Protocol unreachable: no TCP at the host.
    #[error("protocol unreachable")]
    ProtocolUnreachable,
    /// Port unreachable.
    #[error("port unreachable")]
    PortUnreachable,
    /// A router on the way may not pass it on.
    #[error("communication prohibited")]
    Prohibited,
    /// TTL or hop limit has run out.
    #[error("time to live exceeded")]
    TimeExceeded,
    /// Something in the header is wrong.
    #[error("parameter problem")]
    ParameterProblem,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        // RFC 9293 §3.4: order within half the space, across the wrap.
        #[test]
        fn order_holds_across_the_wrap(base: u32, ahead in 1u32..0x8000_0000) {
            let (a, b) = (SeqNum(base), SeqNum(base) + ahead);
            prop_assert!(a.is_before(b) && b.is_after(a) && !a.is_at_or_after(b));
            prop_assert_eq!(b - ahead, a);
            prop_assert_eq!(a.later(b), b);
            prop_assert_eq!(a.earlier(b), a);
        }
    }
}
