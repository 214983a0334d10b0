//! The TAP with a virtio-net header: checksums and TCP segmentation are left to the kernel, and
//! what it coalesced or did not fill in is taken as it comes.
//!
//! In front of each frame, both ways, stand 12 bytes (virtio 1.2 §5.1.6, `virtio_net_hdr_v1`),
//! little endian by TUNSETVNETLE. What *we* may send follows from the header alone; what the
//! *kernel* may send is granted by TUNSETOFFLOAD, which is probed from the richest set down. Only
//! TCP offloads are asked for, so the kernel segments everything else before we see it.
#![forbid(unsafe_code)]

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    string::String,
};

use libc::{TUN_F_CSUM, TUN_F_TSO_ECN, TUN_F_TSO4, TUN_F_TSO6, c_int, c_uint};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian::U16};

use super::{
    Link, LinkCapabilities, LinkStats, RxBatch, RxChecksum, TapError, TxChecksum, TxFrame,
    TxOffload, TxOutcome, TxSegment,
    attach::{self, NapiMode, Queueing},
    checksum::{self, TCP_CHECKSUM_OFFSET},
    device::{self, ETHERNET_HEADER_BYTES, Received},
    reclaim::{self, Reclaim, ReclaimMode},
    tun,
};
use crate::{descriptor::Guarded, time::Instant};

/// Largest frame handed over for segmentation. The kernel segments a frame of 64 KiB or more
/// itself before it queues it (GSO_LEGACY_MAX_SIZE), headers included.
const TSO_FRAME_BYTES_MAX: usize = 65_535;

const HEADER_BYTES: usize = size_of::<VnetHeader>();

/// Bytes of a TCP header without options.
const TCP_HEADER_BYTES_MIN: usize = 20;
/// Where the flags lie in a TCP header, and the one that segmentation has to know of.
const TCP_FLAGS_OFFSET: usize = 13;
const TCP_FLAG_CWR: u8 = 0x80;

const FLAG_NEEDS_CSUM: u8 = 1;
const FLAG_DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
/// A bit beside the type: the segment carries CWR (RFC 3168).
const GSO_ECN: u8 = 0x80;

/// The offloads to ask for, richest first.
const OFFLOAD_LADDER: [c_uint; 5] = [
    TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN,
    TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6,
    TUN_F_CSUM | TUN_F_TSO4,
    TUN_F_CSUM,
    0,
];

/// Which offloads are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Grant {
    /// The richest set that there is.
    Richest,
    /// None: the kernel finishes our checksums all the same, and hands over complete frames of MTU size.
    Checksum,
}

impl Grant {
    const fn ladder(self) -> &'static [c_uint] {
        match self {
            Self::Richest => &OFFLOAD_LADDER,
            Self::Checksum => &[0],
        }
    }
}

#[derive(
    Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
struct VnetHeader {
    flags: u8,
    gso_type: u8,
    hdr_len: U16,
    gso_size: U16,
    csum_start: U16,
    csum_offset: U16,
    num_buffers: U16,
}

/// A TAP whose frames carry a virtio-net header.
#[derive(Debug)]
pub struct VnetTap {
    fd: Guarded<OwnedFd>,
    name: String,
    mtu: usize,
    offloads: c_uint,
    reclaim: Option<Reclaim>,
    stats: LinkStats,
}

/// Why a vnet attach failed: for good, or only with this header.
#[derive(Debug)]
pub(super) enum VnetError {
    /// A plain TAP would fail likewise.
    Fatal(TapError),
    /// The kernel lacks a step; a plain TAP does not need it.
    Unsupported { step: &'static str, source: io::Error },
}

impl From<TapError> for VnetError {
    fn from(error: TapError) -> Self {
        Self::Fatal(error)
    }
}

impl From<VnetError> for TapError {
    fn from(error: VnetError) -> Self {
        match error {
            VnetError::Fatal(error) => error,
            VnetError::Unsupported { step, source } => Self::NoVnetHeader { step, source },
        }
    }
}

impl VnetTap {
    /// Attaches to the TAP `name` through the TUN node `node`, creating it if it does not exist. `mtu` is what the
    /// link promises; the interface's own MTU is left alone. The error separates failures of the header from others.
    pub(super) fn open_node(
        node: &Path,
        name: &str,
        mtu: usize,
        queueing: Queueing,
        napi: NapiMode,
        grant: Grant,
    ) -> Result<Self, VnetError> {
        attach::check_name(name)?;
        attach::check_mtu(mtu)?;
        let fd = attach::open_node(node)?;
        let unsupported = |step| move |source| VnetError::Unsupported { step, source };

        let features = tun::features(&fd).map_err(unsupported("TUNGETFEATURES"))?;
        if features & libc::IFF_VNET_HDR as c_uint == 0 {
            return Err(unsupported("IFF_VNET_HDR")(io::ErrorKind::Unsupported.into()));
        }
        queueing.check(features)?;
        let flags = queueing.flags() | napi.flags();
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | flags;
        let name = tun::attach(&fd, name, flags)
            .map_err(|source| VnetError::Fatal(queueing.attach_error(name, source)))?;
        Self::on(fd, name, mtu, grant)
    }

    /// [`VnetTap::open_node`] with an attached descriptor.
    pub(super) fn on(
        fd: OwnedFd,
        name: String,
        mtu: usize,
        grant: Grant,
    ) -> Result<Self, VnetError> {
        let unsupported = |step| move |source| VnetError::Unsupported { step, source };
        tun::set_vnet_little_endian(&fd).map_err(unsupported("TUNSETVNETLE"))?;
        tun::set_vnet_header_len(&fd, HEADER_BYTES as c_int)
            .map_err(unsupported("TUNSETVNETHDRSZ"))?;

        let mut stats = LinkStats::default();
        let mut refused = io::Error::from(io::ErrorKind::Unsupported);
        for &offloads in grant.ladder() {
            match tun::set_offload(&fd, offloads) {
                Ok(()) => {
                    return Ok(Self { fd: fd.into(), name, mtu, offloads, reclaim: None, stats });
                }
                Err(error) => {
                    stats.vnet_fallbacks += 1;
                    refused = error;
                }
            }
        }
        Err(unsupported("TUNSETOFFLOAD")(refused))
    }

    /// Brings transmitted pages back, as `mode` has it. A socket sees the frames of all queues of an interface, so
    /// only one with a single queue can.
    pub(super) fn set_reclaim(
        &mut self,
        mode: ReclaimMode,
        queueing: Queueing,
    ) -> Result<(), TapError> {
        let alone = queueing == Queueing::Single;
        let super_segments = self.offloads & (TUN_F_TSO4 | TUN_F_TSO6) != 0;
        let wanted = match mode {
            ReclaimMode::Auto => alone && super_segments && reclaim::helps(),
            ReclaimMode::On => true,
            ReclaimMode::Off => false,
        };
        if !wanted {
            return Ok(());
        }
        let opened = if !alone {
            Err(io::Error::other("frames of several queues cannot be distinguished"))
        } else if !super_segments {
            Err(attach::no_super_segments())
        } else {
            Reclaim::open(&self.name)
        };
        match (opened, mode) {
            (Ok(reclaim), _) => self.reclaim = Some(reclaim),
            (Err(source), ReclaimMode::On) => {
                return Err(TapError::NoReclaim { name: self.name.clone(), source });
            }
            (Err(error), _) => {
                tracing::debug!(interface = %self.name, %error, "transmitted pages are not brought back");
            }
        }
        Ok(())
    }

    /// Whether transmitted pages are brought back.
    pub(super) fn reclaims(&self) -> bool {
        self.reclaim.is_some()
    }

    /// The interface's actual name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Link for VnetTap {
    fn capabilities(&self) -> LinkCapabilities {
        // A kernel that knows a TSO_ flag also takes such frames from us; the grant is the probe.
        let tso = |flag| if self.offloads & flag != 0 { TSO_FRAME_BYTES_MAX } else { 0 };
        LinkCapabilities {
            mtu: self.mtu,
            tx_checksum: true,
            tso4_max: tso(TUN_F_TSO4),
            tso6_max: tso(TUN_F_TSO6),
        }
    }

    fn receive(&mut self, _now: Instant, batch: &mut RxBatch) -> io::Result<usize> {
        let fd = self.fd.as_fd();
        device::fill_batch(batch, HEADER_BYTES, &mut self.stats, |space, stats| {
            let read = rustix::io::read(fd, &mut *space)?;
            let Ok((header, frame)) = VnetHeader::read_from_prefix(&space[..read]) else {
                stats.rx_vnet_errors += 1;
                return Ok(None);
            };
            let len = frame.len();
            if !device::length_is_good(len, space.len() - HEADER_BYTES, stats) {
                return Ok(None);
            }
            let received = header.accept(&mut space[HEADER_BYTES..][..len]);
            stats.rx_vnet_errors += u64::from(received.is_none());
            Ok(received)
        })
    }

    fn transmit(&mut self, _now: Instant, frame: &TxFrame<'_>) -> TxOutcome {
        let Some(header) = VnetHeader::for_frame(frame) else {
            debug_assert!(false, "segmentation asked for without telling where the checksum lies");
            self.stats.tx_errors += 1;
            return TxOutcome::Dropped;
        };
        let outcome =
            device::write_frame(self.fd.as_fd(), header.as_bytes(), frame, &mut self.stats);
        if let Some(reclaim) = &mut self.reclaim
            && outcome == TxOutcome::Sent
            && frame.len() >= reclaim::FRAME_BYTES_MIN
        {
            self.stats.tx_reclaimed += u64::from(reclaim.written());
        }
        outcome
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn poll_at(&self) -> Option<Instant> {
        None
    }

    fn stats(&self) -> LinkStats {
        self.stats
    }
}

impl VnetHeader {
    /// The header for a frame of ours; `None` when segmentation is asked for without a checksum.
    fn for_frame(frame: &TxFrame<'_>) -> Option<Self> {
        let TxOffload { checksum, segment } = frame.offload;
        let mut header = Self::default();
        if let Some(TxChecksum { start, offset }) = checksum {
            header.flags = FLAG_NEEDS_CSUM;
            header.csum_start = start.into();
            header.csum_offset = offset.into();
        }
        if let Some(TxSegment { size, header_len, ipv6 }) = segment {
            let tcp = usize::from(checksum?.start);
            header.gso_type = if ipv6 { GSO_TCPV6 } else { GSO_TCPV4 };
            // Without the bit the kernel would repeat CWR on every piece.
            if frame.head.get(tcp + TCP_FLAGS_OFFSET).is_some_and(|flags| flags & TCP_FLAG_CWR != 0)
            {
                header.gso_type |= GSO_ECN;
            }
            header.hdr_len = header_len.into();
            header.gso_size = size.into();
        }
        Some(header)
    }

    /// What a received frame is, or `None` when its header is malformed.
    ///
    /// `hdr_len` is a hint (the kernel gives the length of its linear part), so it is only held
    /// against the frame's length. A checksum that is not TCP's is finished here: no layer above
    /// knows of partial checksums other than TCP's.
    fn accept(&self, frame: &mut [u8]) -> Option<Received> {
        let len = frame.len();
        let needs_csum = self.flags & FLAG_NEEDS_CSUM != 0;
        let known = needs_csum || self.flags & FLAG_DATA_VALID != 0;
        let place = TxChecksum { start: self.csum_start.get(), offset: self.csum_offset.get() };
        let start = usize::from(place.start);
        if needs_csum
            && (start < ETHERNET_HEADER_BYTES || start + usize::from(place.offset) + 2 > len)
        {
            return None;
        }
        let gso_size = match self.gso_type & !GSO_ECN {
            GSO_NONE if self.gso_type == GSO_NONE => 0,
            GSO_TCPV4 | GSO_TCPV6 => {
                let is_tcp = !needs_csum
                    || place.offset == TCP_CHECKSUM_OFFSET && start + TCP_HEADER_BYTES_MIN <= len;
                let well_formed = known
                    && is_tcp
                    && self.gso_size.get() != 0
                    && usize::from(self.hdr_len.get()) <= len;
                if !well_formed {
                    return None;
                }
                usize::from(self.gso_size.get())
            }
            _ => return None,
        };
        if needs_csum && place.offset != TCP_CHECKSUM_OFFSET {
            checksum::finish(frame, place);
        }
        let checksum = if known { RxChecksum::Valid } else { RxChecksum::Unverified };
        Some(Received { len, checksum, gso_size })
    }
}

#[cfg(test)]
mod tests;
