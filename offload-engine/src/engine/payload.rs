//! Payload of a segment as memory pieces, split into the payloads of its frames.
//!
//! Most frames have a few pieces, so space for these is allocated first. Space for [`tcp::SLICES_MAX`] is used only if
//! they do not suffice.

use crate::{memory::Piece, tcp};

/// Pieces of a payload with space in advance: a header, data, a trailer, and one more.
const INLINE_PIECES: usize = 4;
const _: () = assert!(INLINE_PIECES < tcp::SLICES_MAX);

/// Remainder of a payload.
pub(super) struct Payload<'p, I> {
    pieces: I,
    rest: Piece<'p>,
}

/// Space for the pieces of a frame.
pub(super) struct FramePieces<'p> {
    inline: [Piece<'p>; INLINE_PIECES],
    many: Option<[Piece<'p>; tcp::SLICES_MAX]>,
}

impl FramePieces<'_> {
    #[inline]
    pub(super) fn new() -> Self {
        Self { inline: [Piece::EMPTY; INLINE_PIECES], many: None }
    }
}

impl<'p, I: Iterator<Item = Piece<'p>>> Payload<'p, I> {
    /// Creates the payload from `pieces`.
    pub(super) const fn new(pieces: I) -> Self {
        Self { pieces, rest: Piece::EMPTY }
    }

    /// Returns the next `len` bytes as pieces, at most [`tcp::SLICES_MAX`].
    pub(super) fn cut<'s>(
        &mut self,
        len: usize,
        places: &'s mut FramePieces<'p>,
    ) -> &'s [Piece<'p>] {
        let FramePieces { inline, many } = places;
        let mut left = len;
        let count = self.fill(&mut left, inline);
        if left == 0 || count < INLINE_PIECES {
            return &inline[..count];
        }
        let many = many.insert([Piece::EMPTY; tcp::SLICES_MAX]);
        many[..INLINE_PIECES].copy_from_slice(inline);
        let count = INLINE_PIECES + self.fill(&mut left, &mut many[INLINE_PIECES..]);
        &many[..count]
    }

    /// Fills `places` with pieces of the next `left` bytes. Returns the number of places filled.
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

    // For any sizes of pieces and frames, the frames have the bytes in order, in the fewest possible pieces, none
    // empty.
    #[test]
    fn frames_keep_byte_order() {
        let bytes: Vec<u8> = (0..=255).cycle().take(4000).collect();
        for piece_len in [1, 3, 64, 1000, 4000] {
            for frame_len in [1, 7, 16, 60] {
                let mut payload = Payload::new(bytes.chunks(piece_len).map(Piece::from));
                for (number, wanted) in bytes.chunks(frame_len).enumerate() {
                    let mut places = FramePieces::new();
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
    fn empty_payload_yields_no_pieces() {
        let mut payload = Payload::new([Piece::Private(b"abc")].into_iter());
        assert!(payload.cut(0, &mut FramePieces::new()).is_empty());
        assert_eq!(joined(payload.cut(9, &mut FramePieces::new())), b"abc");
        assert!(payload.cut(9, &mut FramePieces::new()).is_empty());
    }
}
