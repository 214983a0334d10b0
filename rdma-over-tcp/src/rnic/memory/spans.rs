//! The memory of a registration: one span, or several end to end.
//!
//! Most registrations are one span, and every access to those is as short as can be. A chain of MDLs, or a list of
//! pages, is several, unless neighbours in the list are neighbours in memory: those are joined. Offsets count through
//! all spans, so a border between two is nothing that a peer or a request could notice.

use alloc::{sync::Arc, vec::Vec};
use core::{ops::Range, sync::atomic::AtomicU64};

use offload_engine::memory::{SharedSlice, SharedSpan};

use super::buffer::RegisteredBuffer;

/// Memory, as a sequence of bytes. Clones are of the same bytes.
#[derive(Clone, Debug)]
pub(crate) enum Spans {
    One(SharedSpan),
    /// In order, none of them empty.
    List(Arc<[Part]>),
}

/// A span of a list, and the place of its first byte among those of the list.
#[derive(Debug)]
pub(crate) struct Part {
    start: usize,
    span: SharedSpan,
}

impl From<SharedSpan> for Spans {
    #[inline]
    fn from(span: SharedSpan) -> Self {
        Self::One(span)
    }
}

impl Spans {
    /// The bytes of all `spans`, in order; `None`: there are none, or more than an address space has.
    pub(crate) fn new(spans: impl IntoIterator<Item = SharedSpan>) -> Option<Self> {
        let mut parts: Vec<Part> = Vec::new();
        let mut end = 0_usize;
        for span in spans.into_iter().filter(|span| !span.is_empty()) {
            let start = end;
            end = end.checked_add(span.len())?;
            match parts.last_mut().and_then(|last| Some((last.span.joined(&span)?, last))) {
                Some((joined, last)) => last.span = joined,
                None => parts.push(Part { start, span }),
            }
        }
        match parts.len() {
            0 | 1 => parts.pop().map(|part| Self::One(part.span)),
            _ => Some(Self::List(parts.into())),
        }
    }

    /// `length` bytes of a chain from its beginning on; `None`: none are asked for, the chain is shorter, or the
    /// addresses of its buffers do not follow each other so far (NDK-MEM-1).
    pub(crate) fn chain(chain: &[RegisteredBuffer], length: usize) -> Option<Self> {
        let mut address = chain.first()?.address();
        let mut left = length;
        let mut spans = Vec::new();
        for buffer in chain {
            if left == 0 {
                break;
            }
            if buffer.address() != address {
                return None;
            }
            let count = buffer.len().min(left);
            spans.push(buffer.memory().slice(0..count));
            left -= count;
            address = address.checked_add(count as u64)?;
        }
        if left == 0 { Self::new(spans) } else { None }
    }

    /// Bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::One(span) => span.len(),
            Self::List(parts) => parts.last().map_or(0, |last| last.start + last.span.len()),
        }
    }

    /// Returns whether all of it may be written.
    pub(crate) fn is_writable(&self) -> bool {
        self.spans().all(SharedSpan::is_writable)
    }

    /// Requests the memory back ([`SharedSpan::withdraw`]).
    pub(crate) fn withdraw(&self) {
        self.spans().for_each(SharedSpan::withdraw);
    }

    /// The same memory under an owner of its own ([`SharedSpan::under`]).
    pub(crate) fn under(&self, owner: impl Send + Sync + 'static) -> Self {
        match self {
            Self::One(span) => Self::One(span.under(owner)),
            Self::List(parts) => {
                let owner = Arc::new(owner);
                let under = |Part { start, span }: &Part| Part {
                    start: *start,
                    span: span.under(owner.clone()),
                };
                Self::List(parts.iter().map(under).collect())
            }
        }
    }

    /// The bytes in `range`, where they lie; `None`: it is empty.
    ///
    /// # Panics
    /// When there are no such bytes.
    pub(crate) fn slice(&self, range: Range<usize>) -> Option<Self> {
        assert!(range.end <= self.len(), "{range:?} of {} bytes", self.len());
        if let (Self::One(span), false) = (self, range.is_empty()) {
            return Some(Self::One(span.slice(range)));
        }
        let mut spans = Vec::new();
        self.each_span(range.start, range.len(), |span| spans.push(span));
        Self::new(spans)
    }

    fn spans(&self) -> impl Iterator<Item = &SharedSpan> {
        let (one, list) = match self {
            Self::One(span) => (Some(span), None),
            Self::List(parts) => (None, Some(parts.iter().map(|part| &part.span))),
        };
        one.into_iter().chain(list.into_iter().flatten())
    }

    /// Shows `length` bytes from `offset` on, which are there, span by span.
    #[inline]
    pub(crate) fn each_slice<'a>(
        &'a self,
        offset: usize,
        length: usize,
        mut take: impl FnMut(SharedSlice<'a>),
    ) {
        match self {
            Self::One(span) => take(span.view().slice(offset, length)),
            Self::List(parts) => within(parts, offset, length)
                .for_each(|(span, range)| take(span.view().slice(range.start, range.len()))),
        }
    }

    /// As [`Spans::each_slice`], with spans that keep the memory.
    #[inline]
    pub(crate) fn each_span(&self, offset: usize, length: usize, mut take: impl FnMut(SharedSpan)) {
        match self {
            Self::One(span) => take(span.slice(offset..offset + length)),
            Self::List(parts) => {
                within(parts, offset, length).for_each(|(span, range)| take(span.slice(range)));
            }
        }
    }

    /// Copies `data` in, from `offset` on; the last byte is stored last ([`SharedSpan::write_in_order`]).
    ///
    /// # Panics
    /// When it does not fit, or the memory may only be read.
    #[inline]
    pub(crate) fn write_in_order(&self, offset: usize, data: &[u8]) {
        match self {
            Self::One(span) => span.write_in_order(offset, data),
            Self::List(parts) => write_in_parts(parts, offset, data),
        }
    }

    /// The word at `offset` ([`SharedSpan::word`]). `None` also if it lies across a border.
    pub(crate) fn word(&self, offset: usize) -> Option<&AtomicU64> {
        match self {
            Self::One(span) => span.word(offset),
            Self::List(parts) => {
                let (span, range) = within(parts, offset, size_of::<AtomicU64>()).next()?;
                span.word(range.start)
            }
        }
    }
}

/// The spans that have a part of `length` bytes from `offset` on, and which part.
fn within(
    parts: &[Part],
    offset: usize,
    length: usize,
) -> impl Iterator<Item = (&SharedSpan, Range<usize>)> {
    let first = parts.partition_point(|part| part.start <= offset).saturating_sub(1);
    let end = offset + length;
    parts.get(first..).unwrap_or_default().iter().map_while(move |Part { start, span }| {
        let range = offset.max(*start) - start..end.min(start + span.len()).checked_sub(*start)?;
        (!range.is_empty()).then_some((span, range))
    })
}

#[cold]
fn write_in_parts(parts: &[Part], offset: usize, mut data: &[u8]) {
    for (span, range) in within(parts, offset, data.len()) {
        let (now, later) = data.split_at(range.len());
        span.write_in_order(range.start, now);
        data = later;
    }
    assert!(data.is_empty(), "{} bytes do not fit", data.len());
}

#[cfg(test)]
mod tests;
