//! Received TCP segment: sequence numbers, flags, options, ECN bits; and ICMP errors that quote one.
//!
//! Types shared by `frame` and `tcp`, which are independent of each other.

use core::{
    fmt,
    ops::{Add, AddAssign, Sub},
};

/// TCP sequence number. Ordered by [`SeqNum::is_before`] and similar methods, never by its integer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct SeqNum(pub u32);

impl SeqNum {
    /// Signed distance from `other` to `self`. Valid if the two are within 2^31 of each other.
    pub const fn distance(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0).cast_signed()
    }

    /// True if `self < other` in sequence space.
    pub const fn is_before(self, other: Self) -> bool {
        self.distance(other) < 0
    }

    /// True if `self <= other` in sequence space.
    pub const fn is_at_or_before(self, other: Self) -> bool {
        self.distance(other) <= 0
    }

    /// True if `self > other` in sequence space.
    pub const fn is_after(self, other: Self) -> bool {
        self.distance(other) > 0
    }

    /// True if `self >= other` in sequence space.
    pub const fn is_at_or_after(self, other: Self) -> bool {
        self.distance(other) >= 0
    }

    /// Returns the later of two.
    pub fn later(self, other: Self) -> Self {
        if self.is_after(other) { self } else { other }
    }

    /// Returns the earlier of two.
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
    /// The acknowledgment field is significant.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer is significant.
    pub const URG: Self = Self(0x20);
    /// ECN echo.
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced.
    pub const CWR: Self = Self(0x80);

    /// True if all of `other` are set.
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

/// SACK block: bytes `start..end` were received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SackBlock {
    /// Sequence number of the first byte.
    pub start: SeqNum,
    /// Sequence number after the last byte.
    pub end: SeqNum,
}

/// Timestamps option (RFC 7323).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timestamps {
    /// TSval.
    pub value: u32,
    /// TSecr.
    pub echo: u32,
}

/// Parsed TCP header of a received segment, and its payload. The checksum is already verified.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Sequence number.
    pub seq: SeqNum,
    /// Acknowledgment number. Valid with ACK.
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
    /// Payload bytes of each original segment if the link coalesced several. 0 if it did not.
    pub gso_size: usize,
    /// ECN bits of the IP header.
    pub ecn: Ecn,
}

/// Header fields that change from one transmitted segment of a connection to the next.
#[derive(Clone, Copy, Debug)]
pub struct SegmentHeader<'a> {
    /// Sequence number.
    pub seq: SeqNum,
    /// Acknowledgment number.
    pub ack: SeqNum,
    /// Flags.
    pub flags: Flags,
    /// Window field.
    pub window: u16,
    /// Timestamps option.
    pub timestamps: Option<Timestamps>,
    /// SACK blocks: at most 4, or 3 with timestamps.
    pub sack: &'a [SackBlock],
    /// Payload bytes that follow.
    pub payload_len: usize,
    /// ECN bits of the IP header.
    pub ecn: Ecn,
}

/// ECN bits of an IP header (RFC 3168 §5).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(u8)]
pub enum Ecn {
    /// Not ECN-capable: routers drop instead of marking.
    #[default]
    NotCapable = 0b00,
    /// ECN-capable, ECT(1). Not sent.
    Capable1 = 0b01,
    /// ECN-capable, ECT(0). Sent on data.
    Capable0 = 0b10,
    /// Congestion experienced (CE).
    Congestion = 0b11,
}

impl Ecn {
    /// Decodes the low two bits of a TOS or traffic class.
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 0b11 {
            0b00 => Self::NotCapable,
            0b01 => Self::Capable1,
            0b10 => Self::Capable0,
            _ => Self::Congestion,
        }
    }

    /// Returns the two bits.
    pub const fn bits(self) -> u8 {
        self as u8
    }
}

/// ICMP error about a sent segment, as far as TCP uses it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathError {
    /// Sequence number of the quoted segment.
    pub seq: SeqNum,
    /// Kind of the error.
    pub kind: PathErrorKind,
}

/// Kind of an ICMP error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathErrorKind {
    /// "Fragmentation needed and DF set" (RFC 1191 §4), "packet too big" (RFC 4443 §3.2).
    TooBig {
        /// MTU of the next hop in bytes. 0 if the router does not report it (RFC 1191 §5).
        next_hop_mtu: u32,
        /// Length of the quoted IP packet in bytes, from its header.
        packet_len: u32,
    },
    /// Any other error.
    Soft(SoftError),
}

/// Reason from ICMP why a segment was not delivered. No soft error closes a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SoftError {
    /// No route to the network.
    #[error("network unreachable")]
    NetworkUnreachable,
    /// The last router cannot reach the host.
    #[error("host unreachable")]
    HostUnreachable,
    /// The host has no TCP.
    #[error("protocol unreachable")]
    ProtocolUnreachable,
    /// Port unreachable.
    #[error("port unreachable")]
    PortUnreachable,
    /// A router is not permitted to forward the packet.
    #[error("communication prohibited")]
    Prohibited,
    /// TTL or hop limit exceeded.
    #[error("time to live exceeded")]
    TimeExceeded,
    /// Invalid header field.
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
        fn order_holds_across_wrap(base: u32, ahead in 1u32..0x8000_0000) {
            let (a, b) = (SeqNum(base), SeqNum(base) + ahead);
            prop_assert!(a.is_before(b) && b.is_after(a) && !a.is_at_or_after(b));
            prop_assert_eq!(b - ahead, a);
            prop_assert_eq!(a.later(b), b);
            prop_assert_eq!(a.earlier(b), a);
        }
    }
}
