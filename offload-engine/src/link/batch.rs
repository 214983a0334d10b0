//! Receive buffers: one allocation each at start, none per frame.

use std::{boxed::Box, vec::Vec};

use super::RxChecksum;

/// Bytes of one receive buffer: a 64 KiB super-segment with its headers.
pub const RX_BUFFER_BYTES: usize = 65_536 + 256;

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
}

#[derive(Debug)]
struct RxBuffer {
    /// [`FRONT_BYTES_MAX`], then the frame.
    storage: Box<[u8]>,
    len: usize,
    checksum: RxChecksum,
    gso_size: usize,
}

/// A batch of received frames, and the buffers for the next one.
#[derive(Debug, Default)]
pub struct RxBatch {
    buffers: Vec<RxBuffer>,
    filled: usize,
}

impl RxBatch {
    /// A batch of at most `frames_max` frames.
    pub fn new(frames_max: usize) -> Self {
        let buffer = || RxBuffer {
            storage: std::vec![0; FRONT_BYTES_MAX + RX_BUFFER_BYTES].into_boxed_slice(),
            len: 0,
            checksum: RxChecksum::Unverified,
            gso_size: 0,
        };
        Self { buffers: (0..frames_max).map(|_| buffer()).collect(), filled: 0 }
    }

    /// Forgets all frames.
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// Whether no further frame fits.
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
        let buffer = self.buffers.get_mut(self.filled)?;
        Some(&mut buffer.storage[FRONT_BYTES_MAX - front..])
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

    /// The frames, in order of arrival.
    pub fn frames(&self) -> impl Iterator<Item = RxFrame<'_>> {
        self.buffers[..self.filled].iter().map(|buffer| {
            let RxBuffer { storage, len, checksum, gso_size } = buffer;
            RxFrame {
                data: &storage[FRONT_BYTES_MAX..][..*len],
                checksum: *checksum,
                gso_size: *gso_size,
            }
        })
    }

    /// The same, to be changed where they lie: data, checksum, segment size.
    pub(super) fn frames_mut(&mut self) -> impl Iterator<Item = (&mut [u8], RxChecksum, usize)> {
        self.buffers[..self.filled].iter_mut().map(|buffer| {
            let RxBuffer { storage, len, checksum, gso_size } = buffer;
            (&mut storage[FRONT_BYTES_MAX..][..*len], *checksum, *gso_size)
        })
    }
}
