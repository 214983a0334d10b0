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
