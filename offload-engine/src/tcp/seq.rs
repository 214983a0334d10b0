//! Stream positions: sequence numbers that do not wrap.

use core::{
    fmt,
    ops::{Add, AddAssign},
};

use crate::segment::SeqNum;

/// Position in one direction of a byte stream: a sequence number that does not wrap. Its low 32 bits are the sequence
/// number, so that conversion is free one way and one subtraction the other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(super) struct Position(u64);

impl Position {
    /// First position, for `seq`: one wrap in, so that older sequence numbers have a position too.
    pub(super) const fn first(seq: SeqNum) -> Self {
        Self((1 << 32) | seq.0 as u64)
    }

    /// Sequence number on the wire.
    pub(super) const fn seq(self) -> SeqNum {
        SeqNum((self.0 & 0xffff_ffff) as u32)
    }

    /// Position of `seq` nearest to `self`.
    pub(super) fn locate(self, seq: SeqNum) -> Self {
        Self(self.0.wrapping_add_signed(i64::from(seq.distance(self.seq()))))
    }

    /// Bytes from `earlier` to `self`; 0 if `earlier` is later.
    pub(super) const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Position one byte before.
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
        // A position is restored from its sequence number over any distance below 2^31, in both directions.
        #[test]
        fn positions_round_trip(start: u32, steps in 0u64..1 << 40, delta in -(1i64 << 31) + 1..1i64 << 31) {
            let here = Position::first(SeqNum(start)) + steps;
            let there = Position(here.0.wrapping_add_signed(delta));
            prop_assert_eq!(here.locate(there.seq()), there);
            prop_assert_eq!(there.since(here), u64::try_from(delta).unwrap_or(0));
        }
    }
}
