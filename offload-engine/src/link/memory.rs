//! Two links joined in memory: deterministic, without delay, without a descriptor: a flush on one side wakes the
//! engine of the other, and so does room in a queue that was full.
//!
//! With offloads the pair behaves like a TAP with a vnet header: a super-segment arrives whole,
//! with its segment size, and a TCP checksum that was left to the link arrives as it is, marked
//! valid. Without, it behaves like a plain TAP. A full queue gives [`TxOutcome::Full`]; nothing is
//! lost, which is what [`super::Impaired`] is for.
//!
//! A large frame is copied once, when it is transmitted: the receiving link lends the buffer that it waits in. Of those
//! that a consumer keeps, [`LENT_BUFFERS_MAX`] may be out; while so many are, frames are copied once more, as small
//! ones always are.
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

/// Largest super-segment, as on a TAP.
const TSO_FRAME_BYTES_MAX: usize = 65_535;
const _: () = assert!(TSO_FRAME_BYTES_MAX <= RX_BUFFER_BYTES);
/// Bytes of a frame that is lent: to copy a smaller one costs less.
const LENT_FRAME_BYTES_MIN: usize = 1024;
/// Buffers of an end that may be lent at once, of at most 64 KiB each.
const LENT_BUFFERS_MAX: usize = 32;

/// What a memory link pair is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryLinkOptions {
    /// Largest IP packet of one frame, bytes; at most 65 521.
    pub mtu: usize,
    /// Checksum and segmentation offload, as with a vnet header.
    pub offloads: bool,
    /// Frames that wait in one direction before transmits return `Full`.
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
    inbound: Arc<Way>,
    outbound: Arc<Way>,
    /// Buffers that the engine or a layer above it may hold, the oldest first.
    lent: VecDeque<Bytes>,
    /// The last frame found the queue full.
    was_full: bool,
    stats: LinkStats,
}

/// One direction.
#[derive(Debug, Default)]
struct Way {
    queue: Mutex<Queue>,
    /// Wakes the engine of the receiving end. Not behind the lock: a flush takes none.
    waker: OnceLock<Waker>,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<Stored>,
    /// Buffers to use again; at most as many as frames ever waited or were lent.
    spare: Vec<BytesMut>,
    /// The receiving end is gone.
    closed: bool,
    /// The sending end waits for room.
    refused: bool,
}

#[derive(Debug)]
struct Stored {
    data: BytesMut,
    checksum: RxChecksum,
    gso_size: usize,
}

/// Two ends: what one transmits, the other receives.
pub fn memory_link_pair(options: MemoryLinkOptions) -> (MemoryLink, MemoryLink) {
    let (one, other) = (Arc::<Way>::default(), Arc::<Way>::default());
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

    /// Whether a TAP of these options would take the frame.
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
                take_back(lent, &mut queue.spare);
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

    /// Refuses, and panics in a debug build on, what a TAP of these options would not deliver: a
    /// frame beyond the MTU that is not to be segmented, an offload of a link that has none, an
    /// offload that contradicts the frame.
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
            // Room for what most frames are; it grows with the first that is larger.
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
        queue.frames.push_back(arrive(data, frame.offload));
        self.stats.tx_gso_frames += u64::from(frame.offload.segment.is_some());
        TxOutcome::Sent
    }

    /// Wakes the other end. Frames can be received from the moment they are transmitted.
    fn flush(&mut self, _now: Instant) {
        self.wake_other();
    }

    fn set_waker(&mut self, waker: Waker) {
        // It has one engine.
        let _ = self.inbound.waker.set(waker);
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn poll_at(&self) -> Option<Instant> {
        // One lock at a time: the other end takes them the other way round.
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

/// Buffers without other references go to `spare`.
fn take_back(lent: &mut VecDeque<Bytes>, spare: &mut Vec<BytesMut>) {
    while let Some(oldest) = lent.pop_front() {
        match oldest.try_into_mut() {
            Ok(own) => spare.push(own),
            Err(oldest) => {
                // The next look is at another: one that is kept for good does not block the
                // others.
                lent.push_back(oldest);
                return;
            }
        }
    }
}

/// Whether the offloads name the places where the frame has its TCP header and payload, and its
/// checksum field holds the pseudo-header sum. A kernel does not check it and sends
/// garbage; here it shows at once. Not TCP: only that the checksum lies within the frame.
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

/// How a frame of these offloads looks at the other end.
fn arrive(mut data: BytesMut, offload: TxOffload) -> Stored {
    let TxOffload { checksum, segment } = offload;
    if let Some(place) = checksum
        && place.offset != TCP_CHECKSUM_OFFSET
    {
        // As the vnet TAP: no layer above handles partial checksums other than TCP's.
        checksum::finish(&mut data, place);
    }
    let gso_size = match segment {
        // A frame that needs no cutting is no super-segment; neither is it for the kernel.
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
