//! Links: reception and transmission of frames. Links only process Ethernet frames, except that a virtio-net header
//! specifies the offset of the checksum.
//!
//! [`open_tap`] opens a TAP ([`open_tap_queues`] opens several queues of one, each a link), with the virtio-net header
//! ([`VnetTap`]) or without ([`PlainTap`]). [`memory_link_pair`] connects two nodes of one process. [`Impaired`] and
//! [`CaptureLink`] wrap any link, in any order. An inner [`CaptureLink`] records the frames on the wire, an outer one
//! those of the engine.
//!
//! `docs/libraries/links.md` has the contract of a link, with a skeleton. A link around another link is a
//! [`wrapper::LinkWrapper`], which implements only what differs.

mod attach;
mod batch;
mod capture;
mod checksum;
mod device;
mod impair;
mod layout;
mod loan;
mod memory;
mod napi;
mod open;
mod packet;
mod plain;
mod reclaim;
mod segment;
mod synthetic;
#[cfg(test)]
mod tap_tests;
#[cfg(test)]
mod testing;
mod tun;
mod vnet;
pub mod wrapper;

use std::{io, os::fd::BorrowedFd, task::Waker};

pub use self::{
    attach::{MTU_MAX, MTU_MIN, NapiMode, TAP_QUEUES_MAX, TapError},
    batch::{RX_BUFFER_BYTES, RxBatch, RxFrame},
    capture::{
        CaptureLink, CaptureOutput, CaptureStatus, Direction, PcapngWriter, Recorder,
        unix_nanos_at_zero,
    },
    impair::{
        Impaired, ImpairmentError, Impairments, LaneStats, Lateness, QueueLimit,
        RATE_QUEUE_BYTES_MAX, REORDER_DISTANCE_MAX, REORDER_HOLD_MAX, Wire, WireEnd,
    },
    loan::{Lender, TxLoan},
    memory::{MemoryLink, MemoryLinkOptions, memory_link_pair},
    open::{OpenTap, TapOptions, VnetMode, open_tap, open_tap_descriptor, open_tap_queues},
    plain::PlainTap,
    reclaim::ReclaimMode,
    synthetic::{SyntheticEvent, SyntheticFlow},
    vnet::VnetTap,
};
use crate::{memory::Piece, time::Instant};

/// Capabilities of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkCapabilities {
    /// Largest IP packet of one frame on the wire, in bytes.
    pub mtu: usize,
    /// True if TCP checksums of transmitted frames may be left to the link ([`TxOffload::checksum`]).
    pub tx_checksum: bool,
    /// Largest IPv4 frame (including the Ethernet header) for segmentation by the link, in bytes. 0 if not supported.
    pub tso4_max: usize,
    /// Largest IPv6 frame for segmentation by the link, in bytes. 0 if not supported.
    pub tso6_max: usize,
}

/// Status of a received frame's TCP checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RxChecksum {
    /// Unknown: verify it.
    #[default]
    Unverified,
    /// Correct, or not filled in because the frame never left the machine: do not verify it.
    Valid,
}

/// Offloads of a transmitted frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TxOffload {
    /// Checksum to complete. The checksum field contains the pseudo-header sum.
    pub checksum: Option<TxChecksum>,
    /// Segmentation. Requires `checksum` too: each segment has its own, and the field contains the pseudo-header sum
    /// with the length of the whole TCP segment.
    pub segment: Option<TxSegment>,
}

/// Offsets of the checksum of a frame, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxChecksum {
    /// Offset of the first byte that is summed: the TCP header.
    pub start: u16,
    /// Offset of the checksum field, relative to `start`.
    pub offset: u16,
}

/// Segmentation of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxSegment {
    /// Payload bytes per segment.
    pub size: u16,
    /// Bytes of Ethernet, IP and TCP headers repeated in each segment.
    pub header_len: u16,
    /// True for IPv6.
    pub ipv6: bool,
}

/// Frame to transmit: headers, and payload gathered in place.
#[derive(Clone, Copy, Debug)]
pub struct TxFrame<'a> {
    /// Offloads.
    pub offload: TxOffload,
    /// Headers from Ethernet up to the payload.
    pub head: &'a [u8],
    /// Payload, which may be in shared memory; at most [`TX_PAYLOAD_SLICES_MAX`] pieces.
    pub payload: &'a [Piece<'a>],
    /// Owner of the payload, if it can be borrowed ([`TxFrame::lend`]).
    pub lender: Option<&'a dyn Lender>,
    /// Comment for captures.
    pub comment: Option<&'a str>,
}

/// Maximum number of payload pieces of one frame: below the kernel's UIO_MAXIOV (1024) with room for headers.
pub const TX_PAYLOAD_SLICES_MAX: usize = 1000;

/// Outcome of a transmission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TxOutcome {
    /// The link accepted the frame.
    Sent,
    /// The link is full: keep the frame and retry when the descriptor is writable.
    Full,
    /// The link dropped the frame and counted it. TCP will retransmit.
    Dropped,
}

/// Counters of a link, named as in `ethtool -S`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LinkStats {
    /// Frames received.
    pub rx_frames: u64,
    /// Bytes received, including headers.
    pub rx_bytes: u64,
    /// Received frames that were coalesced by the kernel.
    pub rx_gso_frames: u64,
    /// Received frames with a malformed virtio-net header, dropped.
    pub rx_vnet_errors: u64,
    /// Received frames too short for an Ethernet header or longer than a buffer, dropped.
    pub rx_length_errors: u64,
    /// Reads of the device that failed and are repeated.
    pub rx_errors: u64,
    /// Frames transmitted.
    pub tx_frames: u64,
    /// Bytes transmitted, including headers.
    pub tx_bytes: u64,
    /// Transmitted frames left to the kernel for segmentation.
    pub tx_gso_frames: u64,
    /// Large transmitted frames whose pages were reclaimed ([`ReclaimMode`]).
    pub tx_reclaimed: u64,
    /// Transmissions refused by the device.
    pub tx_errors: u64,
    /// Transmissions not accepted because the device was full.
    pub tx_full: u64,
    /// Frames dropped by impairments, including those dropped because the queue of a rate-limited wire was full.
    pub impaired_dropped: u64,
    /// Frames duplicated by impairments.
    pub impaired_duplicated: u64,
    /// Frames reordered by impairments.
    pub impaired_reordered: u64,
    /// Frames corrupted by impairments.
    pub impaired_corrupted: u64,
    /// Number of fallbacks after a probe for the vnet header or an offload failed.
    pub vnet_fallbacks: u64,
}

/// Link that receives and transmits frames.
pub trait Link: Send {
    /// Returns the capabilities, which are constant for the lifetime of the link.
    fn capabilities(&self) -> LinkCapabilities;

    /// Receives available frames, up to the capacity of `batch`, without blocking. Returns the number of frames added.
    /// They are read or copied into the batch's buffers, or lent in the link's own ([`RxBatch::push_lent`]).
    ///
    /// # Errors
    /// The device was removed, or its reads keep failing. An empty device is not an error.
    fn receive(&mut self, now: Instant, batch: &mut RxBatch) -> io::Result<usize>;

    /// Transmits one frame, without blocking. It may be queued in the link until [`Link::flush`]. The link may access
    /// its memory during the call, and later only if it copies or borrows it ([`TxFrame::lend`]).
    fn transmit(&mut self, now: Instant, frame: &TxFrame<'_>) -> TxOutcome;

    /// Starts transmission of all frames accepted by [`Link::transmit`]. The engine calls it at the end of each batch
    /// of transmits, and so before it sleeps. No effect for a link that sends immediately.
    fn flush(&mut self, _now: Instant) {}

    /// Writes buffers that are not part of the data path, such as that of a capture.
    fn sync(&mut self) {}

    /// Returns the descriptor that becomes readable when frames are queued or a loan must be ended, if there is one.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Time at which the link must be polled again: held frames become due. A link that wakes the engine
    /// ([`Link::set_waker`]) returns a time in the past if frames are queued.
    fn poll_at(&self) -> Option<Instant>;

    /// Sets the waker of the engine. Called once, before any other call. Used by a link without a descriptor, and by
    /// one that ends loans on another thread. Wake after a frame was queued or a loan has ended; this is cheap while
    /// the engine is awake. The engine announces its sleep, then calls [`Link::poll_at`], then sleeps, so no frame is
    /// missed.
    fn set_waker(&mut self, _waker: Waker) {}

    /// Returns the counters, including those of wrapped links.
    fn stats(&self) -> LinkStats;

    /// True if [`TxFrame::comment`] is used.
    fn uses_comments(&self) -> bool {
        false
    }
}

/// Compiles the skeleton of the document.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/libraries/links.md")]
struct LinkDocumentExamples;
