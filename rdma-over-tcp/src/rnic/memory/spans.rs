//! Memory of a registration: one span, or a sequence of spans.
//!
//! Most registrations have one span, with the shortest access path. A chain of MDLs or a list of pages has several,
//! except that spans adjacent in memory are joined. Offsets count through all spans, so peers and requests are not
//! affected by span boundaries.

use alloc::{sync::Arc, vec::Vec};
use core::{ops::Range, sync::atomic::AtomicU64};

use offload_engine::memory::{SharedSlice, SharedSpan};

use super::buffer::RegisteredBuffer;

/// Memory as a sequence of bytes. Clones share the memory.
#[derive(Clone, Debug)]
pub(crate) enum Spans {
    One(SharedSpan),
    /// Spans in order, none of them empty.
    List(Arc<[Part]>),
}

/// Span of a list, and the offset of its first byte in the sequence.
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
    /// Concatenates all `spans`, in order; `None`: they are empty, or exceed the address space.
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

    /// Returns the first `length` bytes of a chain; `None`: `length` is 0, the chain is too short, or the addresses of
    /// its buffers are not consecutive (NDK-MEM-1).
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

    /// Length in bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::One(span) => span.len(),
            Self::List(parts) => parts.last().map_or(0, |last| last.start + last.span.len()),
        }
    }

    /// Returns true if all of the memory is writable.
    pub(crate) fn is_writable(&self) -> bool {
        self.spans().all(SharedSpan::is_writable)
    }

    /// Withdraws the memory from all users ([`SharedSpan::withdraw`]).
    pub(crate) fn withdraw(&self) {
        self.spans().for_each(SharedSpan::withdraw);
    }

    /// Returns the same memory with its own owner ([`SharedSpan::under`]).
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

    /// Returns the bytes in `range`, in place; `None`: the range is empty.
    ///
    /// # Panics
    /// If `range` exceeds the memory.
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

    /// Calls `take` with each slice of the `length` bytes from `offset` on, which must exist.
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

    /// As [`Spans::each_slice`], with spans that keep the memory alive.
    #[inline]
    pub(crate) fn each_span(&self, offset: usize, length: usize, mut take: impl FnMut(SharedSpan)) {
        match self {
            Self::One(span) => take(span.slice(offset..offset + length)),
            Self::List(parts) => {
                within(parts, offset, length).for_each(|(span, range)| take(span.slice(range)));
            }
        }
    }

    /// Copies `data` to `offset`. The last byte is stored last ([`SharedSpan::write_in_order`]).
    ///
    /// # Panics
    /// If `data` exceeds the memory, or the memory is read-only.
    #[inline]
    pub(crate) fn write_in_order(&self, offset: usize, data: &[u8]) {
        match self {
            Self::One(span) => span.write_in_order(offset, data),
            Self::List(parts) => write_in_parts(parts, offset, data),
        }
    }

    /// Returns the word at `offset` ([`SharedSpan::word`]). `None` also if it crosses a span boundary.
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

/// Returns the spans that contain parts of the `length` bytes from `offset` on, with the range of each part.
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
