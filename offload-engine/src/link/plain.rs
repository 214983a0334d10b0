//! Plain TAP: complete Ethernet frames of at most MTU size.
//!
//! Opened by the `tun_tap` crate. One of several queues, or a TAP with NAPI, is opened by this module, because that
//! crate does not support them. A persistent TAP keeps the offloads set by an earlier user. If they were enabled
//! without a header to describe them, the kernel would deliver 64 KiB frames with partial checksums. So they are
//! disabled after each attach.
#![forbid(unsafe_code)]

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    string::String,
};

use tun_tap::{Iface, Mode};

use super::{
    Link, LinkCapabilities, LinkStats, RxBatch, RxChecksum, TapError, TxFrame, TxOutcome,
    attach::{self, NODE, NapiMode, Queueing},
    device::{self, ReadFailures, Received},
    tun,
};
use crate::{descriptor::Guarded, time::Instant};

/// TAP without offloads.
#[derive(Debug)]
pub struct PlainTap {
    interface: Interface,
    mtu: usize,
    stats: LinkStats,
    failures: ReadFailures,
}

#[derive(Debug)]
enum Interface {
    Whole(Iface),
    Queue { fd: Guarded<OwnedFd>, name: String },
}

impl Interface {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Whole(interface) => tun::borrow(interface),
            Self::Queue { fd, .. } => fd.as_fd(),
        }
    }

    /// Opens the TAP `name`, or one of its queues.
    fn queue(name: &str, queueing: Queueing, napi: NapiMode) -> Result<Self, TapError> {
        let fd = attach::open_node(NODE.as_ref())?;
        let features =
            tun::features(&fd).map_err(|source| TapError::Io { step: "TUNGETFEATURES", source })?;
        queueing.check(features)?;
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | queueing.flags() | napi.flags();
        let name =
            tun::attach(&fd, name, flags).map_err(|source| queueing.attach_error(name, source))?;
        Ok(Self::Queue { fd: fd.into(), name })
    }

    /// Opens the TAP `name` with `tun_tap`.
    fn whole(name: &str) -> Result<Self, TapError> {
        // `tun_tap` returns one error for two steps. Opening the node first distinguishes them.
        drop(attach::open_node(NODE.as_ref())?);
        let interface = Iface::without_packet_info(name, Mode::Tap)
            .map_err(|source| attach::attach_error(name, source))?;
        interface.set_non_blocking().map_err(|source| TapError::Io { step: "FIONBIO", source })?;
        Ok(Self::Whole(interface))
    }
}

impl PlainTap {
    /// Attaches to the TAP `name`, or to one queue of it, and creates it if it does not exist. `mtu` is the limit of
    /// the link; the interface's own MTU is not changed.
    ///
    /// # Errors
    /// [`TapError`].
    pub(super) fn open_queue(
        name: &str,
        mtu: usize,
        queueing: Queueing,
        napi: NapiMode,
    ) -> Result<Self, TapError> {
        attach::check_name(name)?;
        attach::check_mtu(mtu)?;
        let interface = match (queueing, napi) {
            (Queueing::Single, NapiMode::Off) => Interface::whole(name)?,
            _ => Interface::queue(name, queueing, napi)?,
        };
        Self::complete(interface, mtu)
    }

    /// Creates a link on an attached descriptor of the TAP `name`.
    pub(super) fn on(fd: OwnedFd, name: String, mtu: usize) -> Result<Self, TapError> {
        Self::complete(Interface::Queue { fd: fd.into(), name }, mtu)
    }

    fn complete(interface: Interface, mtu: usize) -> Result<Self, TapError> {
        tun::set_offload(interface.fd(), 0)
            .map_err(|source| TapError::Io { step: "TUNSETOFFLOAD", source })?;
        let (stats, failures) = (LinkStats::default(), ReadFailures::default());
        Ok(Self { interface, mtu, stats, failures })
    }

    /// Returns the actual name of the interface.
    pub fn name(&self) -> &str {
        match &self.interface {
            Interface::Whole(interface) => interface.name(),
            Interface::Queue { name, .. } => name,
        }
    }

    /// Counts a fallback from a link with a vnet header.
    pub(super) fn count_fallback(&mut self) {
        self.stats.vnet_fallbacks += 1;
    }
}

impl Link for PlainTap {
    fn capabilities(&self) -> LinkCapabilities {
        LinkCapabilities { mtu: self.mtu, tx_checksum: false, tso4_max: 0, tso6_max: 0 }
    }

    fn receive(&mut self, now: Instant, batch: &mut RxBatch) -> io::Result<usize> {
        let Self { interface, stats, failures, mtu: _ } = self;
        let fd = interface.fd();
        device::fill_batch(now, batch, 0, stats, failures, |space, stats| {
            let room = space.len();
            let len = rustix::io::read(fd, space)?;
            Ok(device::length_is_good(len, room, stats).then_some(Received {
                len,
                checksum: RxChecksum::Unverified,
                gso_size: 0,
            }))
        })
    }

    /// Refuses a frame that requires offloads, which are not supported.
    fn transmit(&mut self, _now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        if frame.offload != super::TxOffload::default() {
            debug_assert!(false, "offload on a link without offloads");
            self.stats.tx_errors += 1;
            return TxOutcome::Dropped;
        }
        device::write_frame(self.interface.fd(), &[], frame, &mut self.stats)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.interface.fd())
    }

    fn poll_at(&self) -> Option<Instant> {
        None
    }

    fn stats(&self) -> LinkStats {
        self.stats
    }
}
