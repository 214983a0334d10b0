//! Receive buffers: one allocation each at start, none per frame.
//!
//! A batch may lend its buffers ([`RxBatch::lend`]). The receiver of a frame can then keep part of it
//! ([`RxFrame::buffer`]) without time limit and without a copy. A buffer without references is reused by the next read,
//! while it is cached. Of those with references, at most [`LENT_BUFFERS_MAX`] are tracked, and reused when they are
//! released. While that many are lent, no further buffer is lent.

use std::{collections::VecDeque, vec::Vec};

use bytes::{Bytes, BytesMut};

use super::RxChecksum;

/// Bytes of one receive buffer: a 64 KiB GSO packet with its headers.
pub const RX_BUFFER_BYTES: usize = 65_536 + 256;
/// Smallest frame, in bytes, whose buffer is lent. Part of a smaller frame would retain much more memory than its
/// bytes.
const LENT_FRAME_BYTES_MIN: usize = RX_BUFFER_BYTES / 2;
/// Buffers of a batch that may be lent at once: 2 MiB.
const LENT_BUFFERS_MAX: usize = 32;
/// Bytes before the frame, for a header that the link reads together with it.
const FRONT_BYTES_MAX: usize = 16;

/// Received frame.
#[derive(Clone, Copy, Debug)]
pub struct RxFrame<'a> {
    /// Frame from its Ethernet header on.
    pub data: &'a [u8],
    /// Status of its checksum.
    pub checksum: RxChecksum,
    /// Payload bytes of each segment that the kernel coalesced into the frame. 0 if it is not coalesced.
    pub gso_size: usize,
    /// Buffer of the frame, if it is lent: a slice of it may be kept.
    pub buffer: Option<&'a Bytes>,
}

/// Memory of [`FRONT_BYTES_MAX`] bytes, followed by [`RX_BUFFER_BYTES`] for the frame.
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

    /// Returns the memory if there is no other reference.
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

/// Converts memory into its shared form, with a reference to its last byte, which is split off. Lending and reclaiming
/// it then allocates nothing.
pub(super) fn shared(mut memory: BytesMut) -> BytesMut {
    drop(memory.split_off(memory.capacity() - 1));
    memory
}

#[derive(Debug)]
struct RxBuffer {
    storage: Storage,
    /// Frame in memory of the link, if any.
    link_frame: Option<Bytes>,
    len: usize,
    checksum: RxChecksum,
    gso_size: usize,
}

/// Batch of received frames, and the buffers for the next one.
#[derive(Debug, Default)]
pub struct RxBatch {
    buffers: Vec<RxBuffer>,
    filled: usize,
    /// True if a frame is large enough for its buffer to be lent.
    has_large: bool,
    /// True if buffers of frames may have other references.
    has_lent: bool,
    /// True if a frame is in memory of the link. Then `has_lent` is true too.
    has_link_frame: bool,
    /// Buffers that were lent, oldest first.
    lent: VecDeque<Storage>,
}

impl RxBatch {
    /// Creates a batch of at most `frames_max` frames.
    pub fn new(frames_max: usize) -> Self {
        let buffer = || RxBuffer {
            storage: Storage::new(),
            link_frame: None,
            len: 0,
            checksum: RxChecksum::Unverified,
            gso_size: 0,
        };
        let buffers = (0..frames_max).map(|_| buffer()).collect();
        Self { buffers, ..Self::default() }
    }

    /// Removes all frames.
    #[inline]
    pub fn clear(&mut self) {
        if self.has_lent {
            self.reclaim();
        }
        (self.filled, self.has_large) = (0, false);
    }

    /// Returns the memory that a link has lent ([`RxBatch::push_lent`]), except for kept parts. If there is any, all
    /// frames are removed.
    #[inline]
    pub fn return_lent(&mut self) {
        if self.has_link_frame {
            self.buffers[..self.filled].iter_mut().for_each(|buffer| buffer.link_frame = None);
            (self.has_link_frame, self.has_lent) = (false, self.has_lent && self.has_large);
            self.clear();
        }
    }

    fn reclaim(&mut self) {
        (self.has_lent, self.has_link_frame) = (false, false);
        for buffer in &mut self.buffers[..self.filled] {
            buffer.link_frame = None;
            if buffer.storage.bytes_mut().is_none() {
                let free = self.lent.front_mut().is_some_and(|oldest| oldest.bytes_mut().is_some());
                let next = if free { self.lent.pop_front() } else { None };
                let next = next.unwrap_or_else(Storage::new);
                self.lent.push_back(core::mem::replace(&mut buffer.storage, next));
            }
        }
    }

    /// Lends the buffers of large frames until [`RxBatch::clear`], within the limit of lent buffers.
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
            // The next check is of another buffer, so that one kept for a long time does not block the rest.
            self.lent.rotate_left(1);
        }
    }

    /// True if no further frame fits.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.filled == self.buffers.len()
    }

    /// Number of frames in the batch.
    pub fn len(&self) -> usize {
        self.filled
    }

    /// True if the batch has no frame.
    pub fn is_empty(&self) -> bool {
        self.filled == 0
    }

    /// Returns the next free buffer, or `None` when full. [`RxBatch::commit`] makes it a frame.
    pub fn space(&mut self) -> Option<&mut [u8]> {
        self.space_behind(0)
    }

    /// Variant of [`RxBatch::space`] with `front` bytes before the buffer, at most 16, which are not part of the frame.
    pub(super) fn space_behind(&mut self, front: usize) -> Option<&mut [u8]> {
        let memory = self.buffers.get_mut(self.filled)?.storage.bytes_mut()?;
        Some(&mut memory[FRONT_BYTES_MAX - front..])
    }

    /// Turns the first `len` bytes of the buffer returned by [`RxBatch::space`] into a frame.
    ///
    /// # Panics
    /// The batch is full or `len` exceeds the buffer: an error of the caller.
    pub fn commit(&mut self, len: usize, checksum: RxChecksum, gso_size: usize) {
        let buffer = &mut self.buffers[self.filled];
        assert!(len <= RX_BUFFER_BYTES);
        buffer.len = len;
        buffer.checksum = checksum;
        buffer.gso_size = gso_size;
        self.has_large |= len >= LENT_FRAME_BYTES_MIN;
        self.filled += 1;
    }

    /// Appends a copy of a frame. Returns false if the batch is full or the frame too long.
    pub fn push(&mut self, frame: &[u8], checksum: RxChecksum, gso_size: usize) -> bool {
        let Some(space) = self.space() else { return false };
        let Some(target) = space.get_mut(..frame.len()) else { return false };
        target.copy_from_slice(frame);
        self.commit(frame.len(), checksum, gso_size);
        true
    }

    /// Appends a frame in a buffer of the link, without a copy. The link gets the buffer back when all clones of
    /// `frame` are dropped. The batch drops its own before the next [`Link::receive`](super::Link::receive). A consumer
    /// may keep parts of a frame of 32 KiB or more without time limit. A link that could run out of buffers copies the
    /// frame instead ([`RxBatch::push`]). Returns false if the batch is full or the frame too long.
    #[inline]
    pub fn push_lent(&mut self, frame: Bytes, checksum: RxChecksum, gso_size: usize) -> bool {
        if self.is_full() || frame.len() > RX_BUFFER_BYTES {
            return false;
        }
        let buffer = &mut self.buffers[self.filled];
        (buffer.len, buffer.checksum, buffer.gso_size) = (frame.len(), checksum, gso_size);
        buffer.link_frame = Some(frame);
        self.filled += 1;
        (self.has_lent, self.has_link_frame) = (true, true);
        true
    }

    /// Returns the frames, in order of arrival.
    pub fn frames(&self) -> impl Iterator<Item = RxFrame<'_>> {
        self.buffers[..self.filled].iter().map(|buffer| {
            let RxBuffer { storage, link_frame, len, checksum, gso_size } = buffer;
            if let Some(memory) = link_frame {
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

    /// Mutable variant of [`RxBatch::frames`]: data, checksum, segment size.
    pub(super) fn frames_mut(&mut self) -> impl Iterator<Item = (&mut [u8], RxChecksum, usize)> {
        // Lent buffers must not change. Frames in memory of the link are changed in a copy.
        self.buffers[..self.filled].iter_mut().filter_map(|buffer| {
            let RxBuffer { storage, link_frame, len, checksum, gso_size } = buffer;
            let data = &mut storage.bytes_mut()?[FRONT_BYTES_MAX..][..*len];
            if let Some(memory) = link_frame.take() {
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
        let space = batch.space().expect("a cleared batch has room");
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

    // Dropping all references before the next read keeps a single buffer in use, which is cached.
    #[test]
    fn released_buffer_is_reused() {
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

    // Kept data is unchanged by later reads. The number of kept buffers is limited, and they are reused after release.
    #[test]
    fn kept_data_is_unchanged_until_dropped() {
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
        // All but one are released: they are lent again, without new memory, and that one is unchanged.
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

    // A frame lent by a link uses no buffer of the batch, and is returned with the other frames or immediately. Only
    // part of a large frame may be kept. The frame is changed in a copy.
    #[test]
    fn lent_frames_are_returned_to_link() {
        let mut batch = RxBatch::new(2);
        let small = Bytes::from(std::vec![1; 60]);
        let large = Bytes::from(std::vec![2; LENT_FRAME_BYTES_MIN]);
        assert!(!batch.push_lent(std::vec![0; RX_BUFFER_BYTES + 1].into(), RxChecksum::Valid, 0));
        assert!(batch.push_lent(small.clone(), RxChecksum::Valid, 0));
        assert!(batch.push_lent(large.clone(), RxChecksum::Unverified, 1448));
        assert!(!batch.push_lent(small.clone(), RxChecksum::Valid, 0), "the batch is full");
        let frames: Vec<_> = batch.frames().collect();
        assert_eq!(frames[0].data.as_ptr(), small.as_ptr());
        assert!(frames[0].buffer.is_none());
        assert_eq!(frames[1].buffer, Some(&large));
        assert_eq!((frames[1].checksum, frames[1].gso_size), (RxChecksum::Unverified, 1448));
        let frames = batch.frames_mut().map(|(data, ..)| data.len()).collect::<Vec<_>>();
        assert_eq!(frames, [60, LENT_FRAME_BYTES_MIN]);
        batch.frames_mut().for_each(|(data, ..)| data.fill(7));
        assert!(batch.frames().all(|frame| frame.data.iter().all(|byte| *byte == 7)));
        assert!(small.is_unique() && small[..] == [1; 60], "it is returned unchanged");
        batch.return_lent();
        assert!(batch.is_empty());

        assert!(batch.push(&[3; 60], RxChecksum::Valid, 0));
        batch.return_lent();
        assert_eq!(batch.len(), 1, "a frame in the batch's own buffer remains");
        assert!(batch.push_lent(small.clone(), RxChecksum::Valid, 0));
        assert!(!small.is_unique());
        batch.return_lent();
        assert!(batch.is_empty() && small.is_unique());
    }
}
