//! How frames enter and leave. Nothing here looks above Ethernet, except that a virtio-net header
//! has to be told where the checksum lies.
//!
//! [`open_tap`] gives a TAP ([`open_tap_queues`] several queues of one, each a link), with the virtio-net
//! header ([`VnetTap`]) or without ([`PlainTap`]); [`memory_link_pair`] joins two nodes of one process.
//! [`Impaired`] and [`Tee`] wrap any link, in any order: a [`Tee`] inside records what the wire saw, one
//! outside what the engine saw.
//!
//! `docs/libraries/links.md` has the contract of a link, with a skeleton. One around another link is a
//! [`wrapper::LinkWrapper`], which spells out only what it does itself.

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
    capture::{Direction, PcapngWriter, Recorder, Tee},
    impair::{
        Impaired, ImpairmentError, Impairments, LaneStats, Lateness, QueueLimit,
        RATE_QUEUE_BYTES_MAX, REORDER_DISTANCE_MAX, REORDER_HOLD_MAX, Wire, WireEnd,
    },
    loan::{Lender, TxLoan},
    memory::{MemoryLink, MemoryLinkOptions, memory_link_pair},
    open::{OpenTap, TapOptions, VnetMode, open_tap, open_tap_descriptor, open_tap_queues},
    plain::PlainTap,
    reclaim::ReclaimMode,
    vnet::VnetTap,
};
use crate::{memory::Piece, time::Instant};

/// What a link can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkCapabilities {
    /// Largest IP packet of one frame on the wire.
    pub mtu: usize,
    /// TCP checksums of transmitted frames may be left to the link ([`TxOffload::checksum`]).
    pub tx_checksum: bool,
    /// Largest IPv4 frame (Ethernet header included) that may be handed over for segmentation; 0: none.
    pub tso4_max: usize,
    /// The same for IPv6.
    pub tso6_max: usize,
}

/// What the link knows of a received frame's TCP checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RxChecksum {
    /// Nothing: verify it.
    #[default]
    Unverified,
    /// Correct, or not yet filled in because the frame never left the machine: do not verify.
    Valid,
}

/// What the link has to do to a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TxOffload {
    /// The checksum field holds the pseudo-header sum; finish it.
    pub checksum: Option<TxChecksum>,
    /// Cut the frame into segments. Needs `checksum` too: each piece has its own, and the field
    /// holds the pseudo-header sum with the length of the uncut TCP segment.
    pub segment: Option<TxSegment>,
}

/// Where the checksum of a frame lies, in bytes from the start of the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxChecksum {
    /// First byte that is summed: the TCP header.
    pub start: u16,
    /// The checksum field, counted from `start`.
    pub offset: u16,
}

/// How to cut a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TxSegment {
    /// Payload bytes of each piece.
    pub size: u16,
    /// Bytes of Ethernet, IP and TCP header that each piece repeats.
    pub header_len: u16,
    /// The frame is IPv6.
    pub ipv6: bool,
}

/// A frame to transmit: headers, then payload gathered from where it lies.
#[derive(Clone, Copy, Debug)]
pub struct TxFrame<'a> {
    /// Work for the link.
    pub offload: TxOffload,
    /// Ethernet header and what follows, up to the payload.
    pub head: &'a [u8],
    /// Payload, which may be shared memory; at most [`TX_PAYLOAD_SLICES_MAX`] pieces.
    pub payload: &'a [Piece<'a>],
    /// The owner of the payload, if it lends it ([`TxFrame::lend`]).
    pub lender: Option<&'a dyn Lender>,
    /// A note for captures.
    pub comment: Option<&'a str>,
}

/// Most payload pieces of one frame: below the kernel's UIO_MAXIOV (1024) with room for headers.
pub const TX_PAYLOAD_SLICES_MAX: usize = 1000;

/// What became of a transmission.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TxOutcome {
    /// The link has it.
    Sent,
    /// The link has no room: keep the frame, try again when the descriptor is writable.
    Full,
    /// The link refused this frame for good; counted. TCP will retransmit.
    Dropped,
}

/// Counters of a link. Names as `ethtool -S` would have them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LinkStats {
    /// Frames received.
    pub rx_frames: u64,
    /// Bytes received, headers included.
    pub rx_bytes: u64,
    /// Received frames that the kernel had coalesced.
    pub rx_gso_frames: u64,
    /// Received frames with a malformed virtio-net header, dropped.
    pub rx_vnet_errors: u64,
    /// Received frames too short for an Ethernet header or longer than a buffer, dropped.
    pub rx_length_errors: u64,
    /// Frames transmitted.
    pub tx_frames: u64,
    /// Bytes transmitted, headers included.
    pub tx_bytes: u64,
    /// Transmitted frames left to the kernel for segmentation.
    pub tx_gso_frames: u64,
    /// Large transmitted frames whose pages were brought back ([`ReclaimMode`]).
    pub tx_reclaimed: u64,
    /// Transmissions that the device refused.
    pub tx_errors: u64,
    /// Transmissions that found the device full.
    pub tx_full: u64,
    /// Frames the impairment dropped, duplicated, reordered, corrupted; dropped counts also those
    /// that found the queue before a rate-limited wire full.
    pub impaired_dropped: u64,
    /// See `impaired_dropped`.
    pub impaired_duplicated: u64,
    /// See `impaired_dropped`.
    pub impaired_reordered: u64,
    /// See `impaired_dropped`.
    pub impaired_corrupted: u64,
    /// Times a probe for the vnet header or an offload failed and the link fell back.
    pub vnet_fallbacks: u64,
}

/// A way for frames to enter and leave.
pub trait Link: Send {
    /// What it can do; constant for the link's life.
    fn capabilities(&self) -> LinkCapabilities;

    /// Receives what is there, at most what `batch` has room for, without blocking. Returns the
    /// number of frames added. They are read or copied into the batch's buffers, or lent in the
    /// link's own ([`RxBatch::push_lent`]).
    ///
    /// # Errors
    /// The device is gone (not: it is empty).
    fn receive(&mut self, now: Instant, batch: &mut RxBatch) -> io::Result<usize>;

    /// Takes one frame to transmit, without blocking. It may wait in a queue of the link for [`Link::flush`]. Its
    /// memory is the link's for the length of the call, and beyond it as far as the link copies or borrows it
    /// ([`TxFrame::lend`]).
    fn transmit(&mut self, now: Instant, frame: &TxFrame<'_>) -> TxOutcome;

    /// Has the device send all that [`Link::transmit`] has taken. The engine calls it at the end of each batch of
    /// transmits, and so before it sleeps. Without an effect for a link that sends at once.
    fn flush(&mut self, _now: Instant) {}

    /// Writes out what it keeps beside the wire: the buffer of a capture.
    fn sync(&mut self) {}

    /// The descriptor that becomes readable when frames wait or a loan is to be ended, if there is one.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// When the link itself wants to be polled again: frames it holds back become due. A link that wakes the engine
    /// ([`Link::set_waker`]) says so of frames that wait: a time in the past.
    fn poll_at(&self) -> Option<Instant>;

    /// Gets what wakes the engine, once, before anything else: for a link without a descriptor, and for one that ends
    /// loans on another thread. Wake after a frame has been queued or a loan has ended; it costs little while the
    /// engine is awake. The engine announces its sleep, then asks [`Link::poll_at`], then sleeps: so no frame is slept
    /// over.
    fn set_waker(&mut self, _waker: Waker) {}

    /// Counters, those of wrapped links added.
    fn stats(&self) -> LinkStats;

    /// Whether [`TxFrame::comment`] is worth making.
    fn wants_comments(&self) -> bool {
        false
    }
}

/// The skeleton of the page compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/libraries/links.md")]
struct HowToWriteALink;
