//! The payload of a segment, as the pieces it lies in, cut into that of its frames.
//!
//! Most frames have a handful of pieces, so place for these is made first, and for [`tcp::SLICES_MAX`] only where they
//! do not do.

use crate::{memory::Piece, tcp};

/// Pieces of a payload for which place is made without asking: a header, data, a trailer, and one more.
const FEW: usize = 4;
const _: () = assert!(FEW < tcp::SLICES_MAX);

/// What is left of a payload.
pub(super) struct Payload<'p, I> {
    pieces: I,
    rest: Piece<'p>,
}

/// Place for the pieces of a frame.
pub(super) struct Places<'p> {
    few: [Piece<'p>; FEW],
    many: Option<[Piece<'p>; tcp::SLICES_MAX]>,
}

impl Places<'_> {
    #[inline]
    pub(super) fn new() -> Self {
        Self { few: [Piece::EMPTY; FEW], many: None }
    }
}

impl<'p, I: Iterator<Item = Piece<'p>>> Payload<'p, I> {
    /// All that `pieces` have.
    pub(super) const fn new(pieces: I) -> Self {
        Self { pieces, rest: Piece::EMPTY }
    }

    /// The next `len` bytes, as the pieces they lie in; at most [`tcp::SLICES_MAX`].
    pub(super) fn cut<'s>(&mut self, len: usize, places: &'s mut Places<'p>) -> &'s [Piece<'p>] {
        let Places { few, many } = places;
        let mut left = len;
        let count = self.fill(&mut left, few);
        if left == 0 || count < FEW {
            return &few[..count];
        }
        let many = many.insert([Piece::EMPTY; tcp::SLICES_MAX]);
        many[..FEW].copy_from_slice(few);
        let count = FEW + self.fill(&mut left, &mut many[FEW..]);
        &many[..count]
    }

    /// The next bytes, of which `left` are wanted, as far as `places` go. Returns how many of these are filled.
    fn fill(&mut self, left: &mut usize, places: &mut [Piece<'p>]) -> usize {
        for (count, place) in places.iter_mut().enumerate() {
            if *left == 0 {
                return count;
            }
            if self.rest.is_empty() {
                let Some(next) = self.pieces.next() else { return count };
                self.rest = next;
            }
            let (piece, rest) = match self.rest.len() <= *left {
                true => (self.rest, Piece::EMPTY),
                false => self.rest.split_at(*left),
            };
            *place = piece;
            *left -= piece.len();
            self.rest = rest;
        }
        places.len()
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::memory::to_vec;

    fn joined(pieces: &[Piece<'_>]) -> Vec<u8> {
        to_vec(pieces.iter().copied())
    }

    // Whatever the pieces and the frames are, frame after frame has the bytes in their order, in as few pieces as
    // there are, and none that is empty.
    #[test]
    fn frames_have_the_bytes_in_their_order() {
        let bytes: Vec<u8> = (0..=255).cycle().take(4000).collect();
        for piece_len in [1, 3, 64, 1000, 4000] {
            for frame_len in [1, 7, 16, 60] {
                let mut payload = Payload::new(bytes.chunks(piece_len).map(Piece::from));
                for (number, wanted) in bytes.chunks(frame_len).enumerate() {
                    let mut places = Places::new();
                    let pieces = payload.cut(wanted.len(), &mut places);
                    assert_eq!(joined(pieces), wanted, "{piece_len} {frame_len} {number}");
                    let start = number * frame_len;
                    let (first, last) = (start / piece_len, (start + wanted.len() - 1) / piece_len);
                    assert_eq!(pieces.len(), last - first + 1, "{piece_len} {frame_len} {number}");
                }
            }
        }
    }

    #[test]
    fn nothing_is_cut_from_nothing() {
        let mut payload = Payload::new([Piece::Private(b"abc")].into_iter());
        assert!(payload.cut(0, &mut Places::new()).is_empty());
        assert_eq!(joined(payload.cut(9, &mut Places::new())), b"abc");
        assert!(payload.cut(9, &mut Places::new()).is_empty());
    }
}
