//! Sequence numbers: arithmetic modulo 2^32 (RFC 9293 s3.4).

use core::{
    cmp::Ordering,
    fmt,
    ops::{Add, AddAssign, Sub},
};

/// A TCP sequence number. Ordered by [`SeqNum::is_before`] and friends, never by its integer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
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

    /// Order in sequence space.
    pub fn order(self, other: Self) -> Ordering {
        self.distance(other).cmp(&0)
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

/// A place in one direction of a byte stream: a sequence number that does not wrap. Its low 32 bits
/// are the sequence number, so conversion is free one way and one subtraction the other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(super) struct Position(u64);

impl Position {
    /// Where counting starts for `seq`: one lap in, so that older sequence numbers have a place too.
    pub(super) const fn first(seq: SeqNum) -> Self {
        Self((1 << 32) | seq.0 as u64)
    }

    /// The sequence number as on the wire.
    pub(super) const fn seq(self) -> SeqNum {
        SeqNum((self.0 & 0xffff_ffff) as u32)
    }

    /// The place of `seq` that is nearest to `self`.
    pub(super) fn locate(self, seq: SeqNum) -> Self {
        Self(self.0.wrapping_add_signed(i64::from(seq.distance(self.seq()))))
    }

    /// Bytes from `earlier` to `self`; 0 when `earlier` is later.
    pub(super) const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The place one byte before.
    pub(super) const fn previous(self) -> Self {
        Self(self.0 - 1)
    }
}

impl Add<u64> for Position {
    type Output = Self;

    fn add(self, rhs: u64) -> Self {
        Self(self.0 + rhs)
    }
}

impl AddAssign<u64> for Position {
    fn add_assign(&mut self, rhs: u64) {
        *self = *self + rhs;
    }
}

impl fmt::Debug for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.seq().0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        // RFC 9293 s3.4: order within half the space, across the wrap.
        #[test]
        fn order_holds_across_the_wrap(base: u32, ahead in 1u32..0x8000_0000) {
            let (a, b) = (SeqNum(base), SeqNum(base) + ahead);
            prop_assert!(a.is_before(b) && b.is_after(a) && !a.is_at_or_after(b));
            prop_assert_eq!(b - ahead, a);
            prop_assert_eq!(a.later(b), b);
            prop_assert_eq!(a.earlier(b), a);
            prop_assert_eq!(a.order(b), Ordering::Less);
        }

        // A position finds its way back from the wire over any distance below 2^31, both ways.
        #[test]
        fn positions_survive_the_wire(start: u32, steps in 0u64..1 << 40, delta in -(1i64 << 31) + 1..1i64 << 31) {
            let here = Position::first(SeqNum(start)) + steps;
            let there = Position(here.0.wrapping_add_signed(delta));
            prop_assert_eq!(here.locate(there.seq()), there);
            prop_assert_eq!(there.since(here), u64::try_from(delta).unwrap_or(0));
        }
    }
}
