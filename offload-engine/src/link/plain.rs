//! The plain TAP: complete Ethernet frames of at most MTU size, nothing else.
//!
//! Opened by the `tun_tap` crate. One trap needs care: a persistent TAP remembers the offloads
//! that an earlier user asked for. With them on and no header to say so, the kernel would hand
//! over 64 KiB frames with unfinished checksums; so they are switched off after each attach.
#![forbid(unsafe_code)]

use std::{io, os::fd::BorrowedFd};

use tun_tap::{Iface, Mode};

use super::{
    Link, LinkCapabilities, LinkStats, RxBatch, RxChecksum, TapError, TxFrame, TxOutcome,
    device::{self, Received},
    open::{self, NODE},
    tun,
};
use crate::time::Instant;

/// A TAP without offloads.
#[derive(Debug)]
pub struct PlainTap {
    interface: Iface,
    mtu: usize,
    stats: LinkStats,
}

impl PlainTap {
    /// Attaches to the TAP `name`, creating it if it does not exist. `mtu` is what the link
    /// promises; the interface's own MTU is left alone.
    ///
    /// # Errors
    /// See [`TapError`].
    pub fn open(name: &str, mtu: usize) -> Result<Self, TapError> {
        open::check_name(name)?;
        open::check_mtu(mtu)?;
        // `tun_tap` gives one error for two steps; opening the node first tells them apart.
        drop(open::open_node(NODE.as_ref())?);
        let interface = Iface::without_packet_info(name, Mode::Tap)
            .map_err(|source| open::attach_error(name, source))?;
        interface.set_non_blocking().map_err(|source| TapError::Io { step: "FIONBIO", source })?;
        tun::set_offload(tun::borrow(&interface), 0)
            .map_err(|source| TapError::Io { step: "TUNSETOFFLOAD", source })?;
        Ok(Self { interface, mtu, stats: LinkStats::default() })
    }

    /// The interface's actual name.
    pub fn name(&self) -> &str {
        self.interface.name()
    }

    /// Records that this link stands in for one with a vnet header.
    pub(super) fn count_fallback(&mut self) {
        self.stats.vnet_fallbacks += 1;
    }
}

impl Link for PlainTap {
    fn capabilities(&self) -> LinkCapabilities {
        LinkCapabilities { mtu: self.mtu, tx_checksum: false, tso4_max: 0, tso6_max: 0 }
    }

    fn receive(&mut self, _now: Instant, batch: &mut RxBatch) -> io::Result<usize> {
        let fd = tun::borrow(&self.interface);
        device::fill_batch(batch, &mut self.stats, |space, stats| {
            let room = space.len();
            let len = rustix::io::read(fd, space)?;
            Ok(device::length_is_good(len, room, stats).then_some(Received {
                len,
                checksum: RxChecksum::Unverified,
                gso_size: 0,
            }))
        })
    }

    /// A frame that asks for offloads is refused: there is nobody to do them.
    fn transmit(&mut self, _now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        if frame.offload != super::TxOffload::default() {
            debug_assert!(false, "offload asked of a link that has none");
            self.stats.tx_errors += 1;
            return TxOutcome::Dropped;
        }
        device::write_frame(tun::borrow(&self.interface), &[], frame, &mut self.stats)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(tun::borrow(&self.interface))
    }

    fn poll_at(&self) -> Option<Instant> {
        None
    }

    fn stats(&self) -> LinkStats {
        self.stats
    }
}
