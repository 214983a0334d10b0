//! Two links connected in memory: deterministic, without delay, without a descriptor. A flush on one side wakes the
//! engine of the other, and so does room in a queue that was full.
//!
//! With offloads the pair behaves like a TAP with a vnet header. A GSO packet is received unsegmented, with its segment
//! size. A TCP checksum left to the link is received unchanged, marked valid. Without offloads it behaves like a plain
//! TAP. A full queue returns [`TxOutcome::Full`]. No frame is lost; [`super::Impaired`] adds losses.
//!
//! A large frame is copied once, when it is transmitted: the receiving link lends its buffer. A consumer may keep up to
//! [`LENT_BUFFERS_MAX`] buffers. Beyond this limit frames are copied once more, as small frames always are.
#![forbid(unsafe_code)]

use std::{
    collections::VecDeque,
    io,
    os::fd::BorrowedFd,
    sync::{Arc, OnceLock},
    task::Waker,
    vec::Vec,
};

use bytes::{Bytes, BytesMut};

use super::{
    Link, LinkCapabilities, LinkStats, RX_BUFFER_BYTES, RxBatch, RxChecksum, TxFrame, TxOffload,
    TxOutcome, TxSegment, batch,
    checksum::{self, TCP_CHECKSUM_OFFSET},
    device::ETHERNET_HEADER_BYTES,
    layout::TcpLayout,
};
use crate::{sync::Mutex, time::Instant};

/// Largest GSO packet, as on a TAP.
const TSO_FRAME_BYTES_MAX: usize = 65_535;
const _: () = assert!(TSO_FRAME_BYTES_MAX <= RX_BUFFER_BYTES);
/// Smallest frame, in bytes, that is lent. Copying a smaller one costs less.
const LENT_FRAME_BYTES_MIN: usize = 1024;
/// Buffers of an end that may be lent at once, of at most 64 KiB each.
const LENT_BUFFERS_MAX: usize = 32;

/// Options of a memory link pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryLinkOptions {
    /// Largest IP packet of one frame in bytes; at most 65 521.
    pub mtu: usize,
    /// True for checksum and segmentation offload, as with a vnet header.
    pub offloads: bool,
    /// Frames queued in one direction before transmits return `Full`.
    pub queue_frames_max: usize,
}

impl Default for MemoryLinkOptions {
    /// Ethernet's MTU, offloads, and the queue length of a TAP.
    fn default() -> Self {
        Self { mtu: 1500, offloads: true, queue_frames_max: 1000 }
    }
}

/// One end of a pair.
#[derive(Debug)]
pub struct MemoryLink {
    options: MemoryLinkOptions,
    inbound: Arc<Channel>,
    outbound: Arc<Channel>,
    /// Buffers that the engine or a layer above it may hold, oldest first.
    lent: VecDeque<Bytes>,
    /// True if the queue was full for the last frame.
    was_full: bool,
    stats: LinkStats,
}

/// One direction.
#[derive(Debug, Default)]
struct Channel {
    queue: Mutex<Queue>,
    /// Wakes the engine of the receiving end. Outside the lock, because a flush takes none.
    waker: OnceLock<Waker>,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<Stored>,
    /// Buffers for reuse; at most as many as frames ever queued or lent.
    spare: Vec<BytesMut>,
    /// True if the receiving end was dropped.
    closed: bool,
    /// True if the sending end requires a wake-up when there is room.
    refused: bool,
}

#[derive(Debug)]
struct Stored {
    data: BytesMut,
    checksum: RxChecksum,
    gso_size: usize,
}

/// Creates two ends: frames transmitted by one are received by the other.
pub fn memory_link_pair(options: MemoryLinkOptions) -> (MemoryLink, MemoryLink) {
    let (one, other) = (Arc::<Channel>::default(), Arc::<Channel>::default());
    let end = |inbound: &Arc<_>, outbound: &Arc<_>| MemoryLink {
        options,
        inbound: Arc::clone(inbound),
        outbound: Arc::clone(outbound),
        lent: VecDeque::new(),
        was_full: false,
        stats: LinkStats::default(),
    };
    (end(&one, &other), end(&other, &one))
}

impl MemoryLink {
    /// Wakes the engine of the other end.
    fn wake_other(&self) {
        if let Some(waker) = self.outbound.waker.get() {
            waker.wake_by_ref();
        }
    }

    /// True if a TAP with these options would accept the frame.
    fn is_acceptable(&self, frame: &TxFrame<'_>) -> bool {
        let TxOffload { checksum, segment } = frame.offload;
        let offload_ok = match (checksum, segment) {
            (None, None) => true,
            (Some(_), _) => self.options.offloads,
            (None, Some(_)) => false,
        };
        let len_max = match segment {
            Some(_) => TSO_FRAME_BYTES_MAX,
            None => self.options.mtu + ETHERNET_HEADER_BYTES,
        };
        offload_ok && (ETHERNET_HEADER_BYTES..=len_max).contains(&frame.len())
    }
}

impl Link for MemoryLink {
    fn capabilities(&self) -> LinkCapabilities {
        let tso_max = if self.options.offloads { TSO_FRAME_BYTES_MAX } else { 0 };
        LinkCapabilities {
            mtu: self.options.mtu,
            tx_checksum: self.options.offloads,
            tso4_max: tso_max,
            tso6_max: tso_max,
        }
    }

    fn receive(&mut self, _now: Instant, batch: &mut RxBatch) -> io::Result<usize> {
        let Self { inbound, lent, stats, .. } = self;
        let mut queue = inbound.queue.lock();
        let mut added = 0;
        while !batch.is_full() {
            let Some(Stored { data, checksum, gso_size }) = queue.frames.pop_front() else { break };
            let len = data.len();
            let is_large = len >= LENT_FRAME_BYTES_MIN;
            if is_large {
                reclaim(lent, &mut queue.spare);
            }
            let is_added = if is_large && lent.len() < LENT_BUFFERS_MAX {
                lent.push_back(data.freeze());
                lent.back().is_some_and(|frame| batch.push_lent(frame.clone(), checksum, gso_size))
            } else {
                let is_added = batch.push(&data, checksum, gso_size);
                queue.spare.push(data);
                is_added
            };
            if is_added {
                added += 1;
                stats.rx_frames += 1;
                stats.rx_bytes += len as u64;
                stats.rx_gso_frames += u64::from(gso_size != 0);
            } else {
                stats.rx_length_errors += 1;
            }
        }
        let made_room = core::mem::take(&mut queue.refused);
        drop(queue);
        if made_room {
            self.wake_other();
        }
        Ok(added)
    }

    /// Refuses a frame that a TAP with these options would not deliver, and panics in a debug build. Such frames exceed
    /// the MTU without segmentation, or have an offload that the link does not support or that contradicts the frame.
    fn transmit(&mut self, _now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        let acceptable = self.is_acceptable(frame);
        debug_assert!(acceptable, "a frame of {} bytes, {:?}", frame.len(), frame.offload);
        let mut queue = self.outbound.queue.lock();
        self.was_full = false;
        if !acceptable || queue.closed {
            self.stats.tx_errors += 1;
            return TxOutcome::Dropped;
        }
        if queue.frames.len() >= self.options.queue_frames_max {
            self.stats.tx_full += 1;
            (self.was_full, queue.refused) = (true, true);
            return TxOutcome::Full;
        }
        let mut data = queue.spare.pop().unwrap_or_else(|| {
            // Room for most frames. The buffer grows with the first larger frame.
            batch::shared(BytesMut::with_capacity(self.options.mtu + ETHERNET_HEADER_BYTES + 1))
        });
        data.clear();
        frame.gather_into(&mut data);
        let consistent = is_consistent(&data, frame.offload);
        debug_assert!(consistent, "{:?} contradicts the frame", frame.offload);
        if !consistent {
            self.stats.tx_errors += 1;
            queue.spare.push(data);
            return TxOutcome::Dropped;
        }
        self.stats.tx_frames += 1;
        self.stats.tx_bytes += data.len() as u64;
        queue.frames.push_back(into_received(data, frame.offload));
        self.stats.tx_gso_frames += u64::from(frame.offload.segment.is_some());
        TxOutcome::Sent
    }

    /// Wakes the other end. Frames can be received as soon as they are transmitted.
    fn flush(&mut self, _now: Instant) {
        self.wake_other();
    }

    fn set_waker(&mut self, waker: Waker) {
        // Only one engine uses the link.
        let _ = self.inbound.waker.set(waker);
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn poll_at(&self) -> Option<Instant> {
        // One lock at a time: the other end takes them in reverse order.
        let has_frames = !self.inbound.queue.lock().frames.is_empty();
        let has_room = || {
            let queue = self.outbound.queue.lock();
            queue.closed || queue.frames.len() < self.options.queue_frames_max
        };
        let is_due = has_frames || self.was_full && has_room();
        is_due.then_some(Instant::ZERO)
    }

    fn stats(&self) -> LinkStats {
        self.stats
    }
}

impl Drop for MemoryLink {
    fn drop(&mut self) {
        self.inbound.queue.lock().closed = true;
    }
}

/// Moves buffers without other references to `spare`.
fn reclaim(lent: &mut VecDeque<Bytes>, spare: &mut Vec<BytesMut>) {
    while let Some(oldest) = lent.pop_front() {
        match oldest.try_into_mut() {
            Ok(own) => spare.push(own),
            Err(oldest) => {
                // The next check is of another buffer, so that one kept for a long time does not block the rest.
                lent.push_back(oldest);
                return;
            }
        }
    }
}

/// True if the offloads match the offsets of the TCP header and payload, and the checksum field contains the
/// pseudo-header sum. A kernel does not check this and sends corrupt frames. For other protocols than TCP only the
/// offset of the checksum is checked.
fn is_consistent(data: &[u8], offload: TxOffload) -> bool {
    let TxOffload { checksum, segment } = offload;
    let Some(place) = checksum else { return true };
    if place.offset != TCP_CHECKSUM_OFFSET {
        let end = usize::from(place.start) + usize::from(place.offset) + 2;
        return segment.is_none() && end <= data.len();
    }
    let Some(layout) = TcpLayout::of(data) else { return false };
    let field = layout.tcp + usize::from(TCP_CHECKSUM_OFFSET);
    let partial = checksum::partial(data, &layout).to_be_bytes();
    let segment_ok = segment.is_none_or(|TxSegment { size, header_len, ipv6 }| {
        size > 0 && usize::from(header_len) == layout.payload && ipv6 == layout.ipv6
    });
    usize::from(place.start) == layout.tcp
        && layout.end == data.len()
        && data[field..field + 2] == partial
        && segment_ok
}

/// Converts a frame with these offloads to its received form.
fn into_received(mut data: BytesMut, offload: TxOffload) -> Stored {
    let TxOffload { checksum, segment } = offload;
    if let Some(place) = checksum
        && place.offset != TCP_CHECKSUM_OFFSET
    {
        // As on the vnet TAP: layers above handle partial checksums of TCP only.
        checksum::finish(&mut data, place);
    }
    let gso_size = match segment {
        // A frame that fits into one segment is not a GSO packet, here as in the kernel.
        Some(TxSegment { size, header_len, ipv6: _ })
            if data.len() > usize::from(header_len) + usize::from(size) =>
        {
            usize::from(size)
        }
        _ => 0,
    };
    let checksum = if checksum.is_some() { RxChecksum::Valid } else { RxChecksum::Unverified };
    Stored { data, checksum, gso_size }
}

#[cfg(test)]
mod tests;
