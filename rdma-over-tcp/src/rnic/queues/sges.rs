//! Scatter/gather lists of a queue's requests.
//!
//! The entries are stored in one ring per queue, in the order of the requests. So posting allocates no memory in steady
//! state.

use alloc::collections::VecDeque;

use bytes::Bytes;

use super::wr::Sge;
use crate::{
    mpa::{Slab, Source},
    rnic::status::VerbError,
};

/// Entries of a request. Most requests have one, which is stored in the request itself.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Entries {
    One([Sge; 1]),
    /// `count` entries of the ring, starting at serial `first`.
    InRing {
        first: u64,
        count: u32,
    },
}

/// Ring of the scatter/gather entries of a queue's requests, in order.
#[derive(Debug, Default)]
pub(crate) struct SgeRing {
    entries: VecDeque<Sge>,
    /// Serial of the front entry.
    base: u64,
}

impl SgeRing {
    #[inline]
    pub(crate) fn push(&mut self, sges: &[Sge]) -> Entries {
        if let &[sge] = sges {
            return Entries::One([sge]);
        }
        let first = self.base + self.entries.len() as u64;
        self.entries.extend(sges);
        Entries::InRing { first, count: sges.len() as u32 }
    }

    /// Returns the entries of a request; none without a request.
    #[inline]
    pub(crate) fn get<'a>(&'a self, entries: Option<&'a Entries>) -> impl Iterator<Item = Sge> {
        let (front, back) = match entries {
            None => (&[][..], &[][..]),
            Some(Entries::One(sge)) => (&sge[..], &[][..]),
            Some(Entries::InRing { first, count }) => self.in_ring(*first, *count),
        };
        front.iter().chain(back).copied()
    }

    /// Entries of the ring as two slices: the ring may wrap at any position.
    pub(crate) fn in_ring(&self, first: u64, count: u32) -> (&[Sge], &[Sge]) {
        let (front, back) = self.entries.as_slices();
        let start = (first - self.base) as usize;
        let end = start + count as usize;
        let seam = front.len();
        let part = |at: usize| at.saturating_sub(seam);
        (&front[start.min(seam)..end.min(seam)], &back[part(start)..part(end)])
    }

    /// Removes the entries of the front request.
    #[inline]
    pub(crate) fn pop(&mut self, entries: Entries) {
        if let Entries::InRing { first, count } = entries {
            debug_assert_eq!(first, self.base);
            self.entries.drain(..count as usize);
            self.base += u64::from(count);
        }
    }
}

/// Returns the pieces of a list that hold `length` bytes from byte `offset` on. Empty pieces are omitted.
pub(crate) fn pieces(
    sges: impl Iterator<Item = Sge>,
    offset: u32,
    length: u32,
) -> impl Iterator<Item = Sge> {
    sges.scan((offset, length), |(skip, left), sge| {
        let skipped = sge.length.min(*skip);
        *skip -= skipped;
        let length = (sge.length - skipped).min(*left);
        *left -= length;
        let address = sge.address.wrapping_add(u64::from(skipped));
        Some(Sge { address, length, token: sge.token })
    })
    .filter(|piece| piece.length > 0)
}

/// Returns the bytes over all entries, if the list is within the limits of the queue pair.
///
/// # Errors
/// [`VerbError::TooManySges`]: too many entries; [`VerbError::TooLong`]: too many bytes.
#[inline]
pub(crate) fn total_length(sges: &[Sge], sges_max: u32, bytes_max: u32) -> Result<u32, VerbError> {
    if sges.len() > sges_max as usize {
        return Err(VerbError::TooManySges);
    }
    let total: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
    u32::try_from(total).ok().filter(|total| *total <= bytes_max).ok_or(VerbError::TooLong)
}

/// Returns the bytes of inline data, if they are within the limit of the queue pair.
///
/// # Errors
/// [`VerbError::InlineTooLong`]: more than `bytes_max`.
#[inline]
pub(crate) fn inline_length(
    parts: &[impl Source + Copy],
    bytes_max: u32,
) -> Result<u32, VerbError> {
    let total = parts.iter().try_fold(0_usize, |total, part| total.checked_add(part.octets()));
    let total = total.and_then(|total| u32::try_from(total).ok());
    total.filter(|total| *total <= bytes_max).ok_or(VerbError::InlineTooLong)
}

/// Copies inline data into one reused buffer (NDK-INL-1).
pub(crate) fn capture(memory: &mut Slab, parts: &[impl Source + Copy]) -> Bytes {
    let total: usize = parts.iter().map(Source::octets).sum();
    if memory.room() < total {
        memory.turn(total);
    }
    parts.iter().for_each(|part| memory.put(*part));
    memory.close().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::{vec, vec::Vec};

    use proptest::prelude::*;

    use super::*;

    fn sge(address: u64, length: u32) -> Sge {
        Sge { address, length, token: 0 }
    }

    proptest! {
        // Any partition of a list into pieces gives the same bytes as the list.
        #[test]
        fn pieces_cover_the_list(
            lengths in prop::collection::vec(0_u32..20, 0..6),
            cuts in prop::collection::vec(1_u32..15, 1..8),
        ) {
            let list: Vec<Sge> = lengths.iter().zip(1_u64..).map(|(length, n)| sge(n << 16, *length)).collect();
            let bytes = |sges: &[Sge]| -> Vec<u64> {
                sges.iter().flat_map(|sge| (0..sge.length).map(|n| sge.address + u64::from(n))).collect()
            };
            let total: u32 = lengths.iter().sum();
            let mut found = vec![];
            let mut offset = 0;
            for cut in cuts.iter().cycle() {
                if offset >= total { break; }
                let part: Vec<Sge> = pieces(list.iter().copied(), offset, *cut).collect();
                found.extend(bytes(&part));
                offset += *cut;
            }
            prop_assert_eq!(found, bytes(&list));
        }
    }

    #[test]
    fn limits() {
        let list = [sge(0, u32::MAX), sge(0, 2)];
        assert_eq!(total_length(&list, 1, 9), Err(VerbError::TooManySges));
        assert_eq!(total_length(&list, 2, u32::MAX), Err(VerbError::TooLong));
        assert_eq!(total_length(&list[1..], 2, 2), Ok(2));
        assert_eq!(total_length(&[], 0, 0), Ok(0), "NDK-SGE-4");
        let inline_length = |parts: &[&[u8]]| inline_length(parts, 3);
        assert_eq!(inline_length(&[b"ab", b"", b"c"]), Ok(3));
        assert_eq!(inline_length(&[b"ab", b"cd"]), Err(VerbError::InlineTooLong));
        let mut memory = Slab::new();
        let mut capture = |parts: &[&[u8]]| capture(&mut memory, parts);
        assert_eq!(capture(&[b"ab", b"", b"c"]), Bytes::from_static(b"abc"));
        assert_eq!(capture(&[]), Bytes::new());
    }
}
