//! Receive buffers: one allocation each at start, none per frame.
//!
//! A batch may lend its buffers ([`RxBatch::lend`]): who gets a frame can then keep a piece of it
//! ([`RxFrame::buffer`]) for as long as it likes, without a copy. A buffer without references at the next read
//! is read into again, while the cache holds it. Of those with references, at most
//! [`LENT_BUFFERS_MAX`] are remembered, and read into when they are free; while so many are out, nothing is lent.

use std::{collections::VecDeque, vec::Vec};

use bytes::{Bytes, BytesMut};

use super::RxChecksum;

/// Bytes of one receive buffer: a 64 KiB super-segment with its headers.
pub const RX_BUFFER_BYTES: usize = 65_536 + 256;
/// Bytes of a frame whose buffer is lent: a piece of a smaller one would hold much more memory than it has bytes.
const LENT_FRAME_BYTES_MIN: usize = RX_BUFFER_BYTES / 2;
/// Buffers of a batch that may be lent at once: 2 MiB.
const LENT_BUFFERS_MAX: usize = 32;
/// Bytes in front of a frame's place, for a header that the link reads together with it.
const FRONT_BYTES_MAX: usize = 16;

/// A received frame.
#[derive(Clone, Copy, Debug)]
pub struct RxFrame<'a> {
    /// The frame from its Ethernet header on.
    pub data: &'a [u8],
    /// What is known of its checksum.
    pub checksum: RxChecksum,
    /// Payload bytes of each segment the kernel coalesced into it; 0: not coalesced.
    pub gso_size: usize,
    /// The buffer that it lies in, if that is lent: a slice of it may be kept.
    pub buffer: Option<&'a Bytes>,
}

/// Memory of [`FRONT_BYTES_MAX`] and then [`RX_BUFFER_BYTES`] for the frame.
#[derive(Debug)]
enum Storage {
    /// No other reference exists.
    Own(BytesMut),
    /// Other references may exist.
    Lent(Bytes),
}

impl Storage {
    fn new() -> Self {
        Self::Own(shared(BytesMut::zeroed(FRONT_BYTES_MAX + RX_BUFFER_BYTES + 1)))
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(memory) => memory,
            Self::Lent(memory) => memory,
        }
    }

    /// The memory, if there is no other reference.
    fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if let Self::Lent(memory) = self {
            match core::mem::take(memory).try_into_mut() {
                Ok(own) => *self = Self::Own(own),
                Err(lent) => *memory = lent,
            }
        }
        match self {
            Self::Own(memory) => Some(memory),
            Self::Lent(_) => None,
        }
    }

    fn lend(&mut self) {
        if let Self::Own(memory) = self {
            *self = Self::Lent(core::mem::take(memory).freeze());
        }
    }
}

/// Memory that is shared from the start, by its last byte, which is split off: to lend it, and to get it back,
/// allocates nothing.
pub(super) fn shared(mut memory: BytesMut) -> BytesMut {
    drop(memory.split_off(memory.capacity() - 1));
    memory
}

#[derive(Debug)]
struct RxBuffer {
    storage: Storage,
    /// The frame, if it lies in memory of the link.
    of_link: Option<Bytes>,
    len: usize,
    checksum: RxChecksum,
    gso_size: usize,
}

/// A batch of received frames, and the buffers for the next one.
#[derive(Debug, Default)]
pub struct RxBatch {
    buffers: Vec<RxBuffer>,
    filled: usize,
    /// A frame is large enough for its buffer to be lent.
    has_large: bool,
    /// Buffers of frames may have other references.
    has_lent: bool,
    /// A frame lies in memory of the link; then `has_lent` is set too.
    has_of_link: bool,
    /// Buffers that were lent, the oldest first.
    lent: VecDeque<Storage>,
}

impl RxBatch {
    /// A batch of at most `frames_max` frames.
    pub fn new(frames_max: usize) -> Self {
        let buffer = || RxBuffer {
            storage: Storage::new(),
            of_link: None,
            len: 0,
            checksum: RxChecksum::Unverified,
            gso_size: 0,
        };
        let buffers = (0..frames_max).map(|_| buffer()).collect();
        Self { buffers, ..Self::default() }
    }

    /// Forgets all frames.
    #[inline]
    pub fn clear(&mut self) {
        if self.has_lent {
            self.take_back();
        }
        (self.filled, self.has_large) = (0, false);
    }

    /// Gives the memory back that a link has lent ([`RxBatch::push_lent`]), except for kept pieces. If there is
    /// any, all frames are forgotten.
    #[inline]
    pub fn give_back(&mut self) {
        if self.has_of_link {
            self.buffers[..self.filled].iter_mut().for_each(|buffer| buffer.of_link = None);
            (self.has_of_link, self.has_lent) = (false, self.has_lent && self.has_large);
            self.clear();
        }
    }

    fn take_back(&mut self) {
        (self.has_lent, self.has_of_link) = (false, false);
        for buffer in &mut self.buffers[..self.filled] {
            buffer.of_link = None;
            if buffer.storage.bytes_mut().is_none() {
                let free = self.lent.front_mut().is_some_and(|oldest| oldest.bytes_mut().is_some());
                let next = if free { self.lent.pop_front() } else { None };
                let next = next.unwrap_or_else(Storage::new);
                self.lent.push_back(core::mem::replace(&mut buffer.storage, next));
            }
        }
    }

    /// Lends the buffers of large frames until [`RxBatch::clear`], if so many may still be lent.
    #[inline]
    pub fn lend(&mut self) {
        if self.has_large {
            self.lend_large();
        }
    }

    fn lend_large(&mut self) {
        let filled = &mut self.buffers[..self.filled];
        let free = self.lent.front_mut().is_some_and(|oldest| oldest.bytes_mut().is_some());
        if free || self.lent.len() < LENT_BUFFERS_MAX {
            let large = filled.iter_mut().filter(|buffer| buffer.len >= LENT_FRAME_BYTES_MIN);
            large.for_each(|buffer| buffer.storage.lend());
            self.has_lent = true;
        } else {
            // The next look is at another: one that is kept for good does not block the others.
            self.lent.rotate_left(1);
        }
    }

    /// Whether no further frame fits.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.filled == self.buffers.len()
    }

    /// Frames in the batch.
    pub fn len(&self) -> usize {
        self.filled
    }

    /// Whether there is no frame.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// The next free buffer, or `None` when full. [`RxBatch::commit`] makes it a frame.
    pub fn space(&mut self) -> Option<&mut [u8]> {
        self.space_behind(0)
    }

    /// The same with `front` bytes before it, at most 16, which will not be part of the frame.
    pub(super) fn space_behind(&mut self, front: usize) -> Option<&mut [u8]> {
        let memory = self.buffers.get_mut(self.filled)?.storage.bytes_mut()?;
        Some(&mut memory[FRONT_BYTES_MAX - front..])
    }

    /// Turns the first `len` bytes of the buffer that [`RxBatch::space`] gave into a frame.
    ///
    /// # Panics
    /// When the batch is full or `len` exceeds the buffer: a caller's bug.
    pub fn commit(&mut self, len: usize, checksum: RxChecksum, gso_size: usize) {
        let buffer = &mut self.buffers[self.filled];
        assert!(len <= RX_BUFFER_BYTES);
        buffer.len = len;
        buffer.checksum = checksum;
        buffer.gso_size = gso_size;
        self.has_large |= len >= LENT_FRAME_BYTES_MIN;
        self.filled += 1;
    }

    /// Copies a whole frame in. Returns false when full or too long.
    pub fn push(&mut self, frame: &[u8], checksum: RxChecksum, gso_size: usize) -> bool {
        let Some(space) = self.space() else { return false };
        let Some(target) = space.get_mut(..frame.len()) else { return false };
        target.copy_from_slice(frame);
        self.commit(frame.len(), checksum, gso_size);
        true
    }

    /// Adds a frame where it lies: in a buffer of the link, which gets it back when all clones of `frame` are dropped.
    /// The batch drops its own before the next [`Link::receive`](super::Link::receive). Pieces of a frame of 32 KiB or
    /// more may be kept for as long as the consumer likes: a link that could run out of buffers copies the frame
    /// instead ([`RxBatch::push`]). Returns false when full or too long.
    #[inline]
    pub fn push_lent(&mut self, frame: Bytes, checksum: RxChecksum, gso_size: usize) -> bool {
        if self.is_full() || frame.len() > RX_BUFFER_BYTES {
            return false;
        }
        let buffer = &mut self.buffers[self.filled];
        (buffer.len, buffer.checksum, buffer.gso_size) = (frame.len(), checksum, gso_size);
        buffer.of_link = Some(frame);
        self.filled += 1;
        (self.has_lent, self.has_of_link) = (true, true);
        true
    }

    /// The frames, in order of arrival.
    pub fn frames(&self) -> impl Iterator<Item = RxFrame<'_>> {
        self.buffers[..self.filled].iter().map(|buffer| {
            let RxBuffer { storage, of_link, len, checksum, gso_size } = buffer;
            if let Some(memory) = of_link {
                let buffer = (*len >= LENT_FRAME_BYTES_MIN).then_some(memory);
                let (checksum, gso_size) = (*checksum, *gso_size);
                return RxFrame { data: memory, checksum, gso_size, buffer };
            }
            let lent = match storage {
                Storage::Own(_) => None,
                Storage::Lent(memory) => Some(memory),
            };
            let data = &storage.bytes()[FRONT_BYTES_MAX..][..*len];
            RxFrame { data, checksum: *checksum, gso_size: *gso_size, buffer: lent }
        })
    }

    /// The same, to be changed where they lie: data, checksum, segment size.
    pub(super) fn frames_mut(&mut self) -> impl Iterator<Item = (&mut [u8], RxChecksum, usize)> {
        // Those that are lent must not change; those in memory of the link are changed in a copy.
        self.buffers[..self.filled].iter_mut().filter_map(|buffer| {
            let RxBuffer { storage, of_link, len, checksum, gso_size } = buffer;
            let data = &mut storage.bytes_mut()?[FRONT_BYTES_MAX..][..*len];
            if let Some(memory) = of_link.take() {
                data.copy_from_slice(&memory);
            }
            Some((data, *checksum, *gso_size))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(batch: &mut RxBatch, len: usize, fill: u8) -> usize {
        batch.clear();
        let space = batch.space().expect("a batch that was cleared has room");
        space[..len].fill(fill);
        let place = space.as_ptr() as usize;
        batch.commit(len, RxChecksum::Valid, 0);
        batch.lend();
        place
    }

    fn kept(batch: &RxBatch) -> Option<Bytes> {
        let frame = batch.frames().next().expect("a frame");
        frame.buffer.map(|buffer| buffer.slice_ref(&frame.data[1..]))
    }

    // What is dropped before the next read costs nothing: one buffer, which the cache holds.
    #[test]
    fn a_buffer_that_nobody_kept_is_read_into_again() {
        let mut batch = RxBatch::new(1);
        let places: std::collections::BTreeSet<usize> = (0..100)
            .map(|round| {
                let place = receive(&mut batch, RX_BUFFER_BYTES, round);
                assert!(kept(&batch).is_some_and(|piece| piece.iter().all(|byte| *byte == round)));
                place
            })
            .collect();
        assert_eq!((places.len(), batch.lent.len()), (1, 0));
    }

    // What is kept stays as it was, whatever is read meanwhile; no more than so many are out, and they come back.
    #[test]
    fn what_is_kept_stays_until_it_is_dropped() {
        let mut batch = RxBatch::new(1);
        let mut pieces = Vec::new();
        for round in 0..100 {
            receive(&mut batch, LENT_FRAME_BYTES_MIN, round);
            pieces.extend(kept(&batch));
        }
        assert_eq!((pieces.len(), batch.lent.len()), (LENT_BUFFERS_MAX, LENT_BUFFERS_MAX));
        for (round, piece) in (0..).zip(&pieces) {
            assert_eq!(piece.len(), LENT_FRAME_BYTES_MIN - 1);
            assert!(piece.iter().all(|byte| *byte == round), "{round}");
        }
        // All but one are free again: they are lent anew, without new memory, and that one is still as it was.
        let last = pieces.pop();
        pieces.clear();
        let mut places = std::collections::BTreeSet::new();
        let mut anew = 0;
        for round in 100..250 {
            places.insert(receive(&mut batch, LENT_FRAME_BYTES_MIN, round));
            pieces.extend(kept(&batch));
            if pieces.len() == LENT_BUFFERS_MAX / 2 {
                anew += pieces.len();
                pieces.clear();
            }
        }
        assert!(anew >= 2 * LENT_BUFFERS_MAX, "{anew}");
        assert!(places.len() <= LENT_BUFFERS_MAX + 1, "{places:?}");
        assert!(batch.lent.len() <= LENT_BUFFERS_MAX);
        let fill = LENT_BUFFERS_MAX as u8 - 1;
        assert!(last.is_some_and(|piece| piece.iter().all(|byte| *byte == fill)));
    }

    #[test]
    fn small_frames_are_not_lent() {
        let mut batch = RxBatch::new(1);
        receive(&mut batch, LENT_FRAME_BYTES_MIN - 1, 7);
        assert!(kept(&batch).is_none());
    }

    // What a link lends takes no buffer of the batch, and goes back with the other frames or at once; only of a large
    // frame a piece may be kept. It is changed in a copy.
    #[test]
    fn frames_in_memory_of_the_link() {
        let mut batch = RxBatch::new(2);
        let small = Bytes::from(std::vec![1; 60]);
        let large = Bytes::from(std::vec![2; LENT_FRAME_BYTES_MIN]);
        assert!(!batch.push_lent(std::vec![0; RX_BUFFER_BYTES + 1].into(), RxChecksum::Valid, 0));
        assert!(batch.push_lent(small.clone(), RxChecksum::Valid, 0));
        assert!(batch.push_lent(large.clone(), RxChecksum::Unverified, 1448));
        assert!(!batch.push_lent(small.clone(), RxChecksum::Valid, 0), "it is full");
        let frames: Vec<_> = batch.frames().collect();
        assert_eq!(frames[0].data.as_ptr(), small.as_ptr());
        assert!(frames[0].buffer.is_none());
        assert_eq!(frames[1].buffer, Some(&large));
        assert_eq!((frames[1].checksum, frames[1].gso_size), (RxChecksum::Unverified, 1448));
        let frames = batch.frames_mut().map(|(data, ..)| data.len()).collect::<Vec<_>>();
        assert_eq!(frames, [60, LENT_FRAME_BYTES_MIN]);
        batch.frames_mut().for_each(|(data, ..)| data.fill(7));
        assert!(batch.frames().all(|frame| frame.data.iter().all(|byte| *byte == 7)));
        assert!(small.is_unique() && small[..] == [1; 60], "it was given back unchanged");
        batch.give_back();
        assert!(batch.is_empty());

        assert!(batch.push(&[3; 60], RxChecksum::Valid, 0));
        batch.give_back();
        assert_eq!(batch.len(), 1, "what the batch has itself stays");
        assert!(batch.push_lent(small.clone(), RxChecksum::Valid, 0));
        assert!(!small.is_unique());
        batch.give_back();
        assert!(batch.is_empty() && small.is_unique());
    }
}
