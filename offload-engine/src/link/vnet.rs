//! TAP with a virtio-net header: checksums and TCP segmentation are left to the kernel, and coalesced frames and
//! partial checksums are received as they are.
//!
//! In both directions each frame is preceded by 12 bytes (virtio 1.2 §5.1.6, `virtio_net_hdr_v1`), little endian by
//! TUNSETVNETLE. The header alone permits transmit offloads. Receive offloads are granted by TUNSETOFFLOAD, which is
//! probed from the richest set down. Only TCP offloads are requested, so the kernel segments all other traffic.
#![forbid(unsafe_code)]

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    string::String,
};

use libc::{TUN_F_CSUM, TUN_F_TSO_ECN, TUN_F_TSO4, TUN_F_TSO6, c_int, c_uint};
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, little_endian::U16};

use super::{
    Link, LinkCapabilities, LinkStats, RxBatch, RxChecksum, TapError, TxChecksum, TxFrame,
    TxOffload, TxOutcome, TxSegment,
    attach::{self, NapiMode, Queueing},
    checksum::{self, TCP_CHECKSUM_OFFSET},
    device::{self, ETHERNET_HEADER_BYTES, ReadFailures, Received},
    reclaim::{self, Reclaim, ReclaimMode},
    tun,
};
use crate::{descriptor::Guarded, time::Instant};

/// Largest GSO frame on transmission, in bytes. The kernel segments a frame of 64 KiB or more, including headers,
/// before it queues it (GSO_LEGACY_MAX_SIZE).
const TSO_FRAME_BYTES_MAX: usize = 65_535;

const HEADER_BYTES: usize = size_of::<VnetHeader>();

/// Bytes of a TCP header without options.
const TCP_HEADER_BYTES_MIN: usize = 20;
/// Offset of the flags in a TCP header. Segmentation depends on CWR.
const TCP_FLAGS_OFFSET: usize = 13;
const TCP_FLAG_CWR: u8 = 0x80;

const FLAG_NEEDS_CSUM: u8 = 1;
const FLAG_DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
/// Bit in addition to the type: the segment has CWR (RFC 3168).
const GSO_ECN: u8 = 0x80;

/// Sets of offloads to request, richest first.
const OFFLOAD_LADDER: [c_uint; 5] = [
    TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN,
    TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6,
    TUN_F_CSUM | TUN_F_TSO4,
    TUN_F_CSUM,
    0,
];

/// Offloads to request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Grant {
    /// Richest set supported.
    Richest,
    /// None: the kernel still completes transmitted checksums, and delivers complete frames of MTU size.
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

/// TAP whose frames have a virtio-net header.
#[derive(Debug)]
pub struct VnetTap {
    fd: Guarded<OwnedFd>,
    name: String,
    mtu: usize,
    offloads: c_uint,
    reclaim: Option<Reclaim>,
    stats: LinkStats,
    failures: ReadFailures,
}

/// Failure of a vnet attach: fatal, or only with this header.
#[derive(Debug)]
pub(super) enum VnetError {
    /// A plain TAP would fail too.
    Fatal(TapError),
    /// The kernel does not support a step that a plain TAP does not need.
    Unsupported { step: &'static str, source: io::Error },
}

impl VnetError {
    /// Maps the error of a step. A shortage, or a TAP that was removed, does not show that a step is not supported.
    fn of(step: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| match Errno::from_io_error(&source) {
            Some(
                Errno::NOMEM
                | Errno::NOBUFS
                | Errno::IO
                | Errno::BADFD
                | Errno::BADF
                | Errno::NODEV,
            ) => Self::Fatal(TapError::Io { step, source }),
            _ => Self::Unsupported { step, source },
        }
    }
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
    /// Attaches to the TAP `name` through the TUN node `node`, and creates it if it does not exist. `mtu` is the limit
    /// of the link; the interface's own MTU is not changed. The error distinguishes failures of the header from others.
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
        let features = tun::features(&fd).map_err(VnetError::of("TUNGETFEATURES"))?;
        if features & libc::IFF_VNET_HDR as c_uint == 0 {
            return Err(VnetError::of("IFF_VNET_HDR")(io::ErrorKind::Unsupported.into()));
        }
        queueing.check(features)?;
        let flags = queueing.flags() | napi.flags();
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | flags;
        let name = tun::attach(&fd, name, flags)
            .map_err(|source| VnetError::Fatal(queueing.attach_error(name, source)))?;
        Self::on(fd, name, mtu, grant)
    }

    /// Variant of [`VnetTap::open_node`] with an attached descriptor.
    pub(super) fn on(
        fd: OwnedFd,
        name: String,
        mtu: usize,
        grant: Grant,
    ) -> Result<Self, VnetError> {
        tun::set_vnet_little_endian(&fd).map_err(VnetError::of("TUNSETVNETLE"))?;
        tun::set_vnet_header_len(&fd, HEADER_BYTES as c_int)
            .map_err(VnetError::of("TUNSETVNETHDRSZ"))?;

        let mut stats = LinkStats::default();
        let mut refused = VnetError::of("TUNSETOFFLOAD")(io::ErrorKind::Unsupported.into());
        for &offloads in grant.ladder() {
            match tun::set_offload(&fd, offloads) {
                Ok(()) => {
                    let (fd, failures) = (fd.into(), ReadFailures::default());
                    return Ok(Self { fd, name, mtu, offloads, reclaim: None, stats, failures });
                }
                Err(error) => {
                    stats.vnet_fallbacks += 1;
                    refused = VnetError::of("TUNSETOFFLOAD")(error);
                    if let VnetError::Fatal(_) = refused {
                        break;
                    }
                }
            }
        }
        Err(refused)
    }

    /// Enables recycling of transmitted pages according to `mode`. Only supported with a single queue, because a socket
    /// receives the frames of all queues of an interface.
    pub(super) fn set_reclaim(
        &mut self,
        mode: ReclaimMode,
        queueing: Queueing,
    ) -> Result<(), TapError> {
        let alone = queueing == Queueing::Single;
        let gso_packets = self.offloads & (TUN_F_TSO4 | TUN_F_TSO6) != 0;
        let wanted = match mode {
            ReclaimMode::Auto => alone && gso_packets && reclaim::is_useful(),
            ReclaimMode::On => true,
            ReclaimMode::Off => false,
        };
        if !wanted {
            return Ok(());
        }
        let opened = if !alone {
            Err(io::Error::other("frames of several queues cannot be distinguished: use one queue"))
        } else if !gso_packets {
            Err(attach::no_gso_packets())
        } else {
            Reclaim::open(&self.name)
        };
        match (opened, mode) {
            (Ok(reclaim), _) => self.reclaim = Some(reclaim),
            (Err(source), ReclaimMode::On) => {
                return Err(TapError::NoReclaim { name: self.name.clone(), source });
            }
            (Err(error), _) => {
                tracing::debug!(interface = %self.name, %error, "transmitted pages not reclaimed");
            }
        }
        Ok(())
    }

    /// True if transmitted pages are reclaimed.
    pub(super) fn reclaims(&self) -> bool {
        self.reclaim.is_some()
    }

    /// Returns the actual name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Link for VnetTap {
    fn capabilities(&self) -> LinkCapabilities {
        // A kernel that supports a TSO_ flag also accepts such frames on transmission; the grant is the probe.
        let tso = |flag| if self.offloads & flag != 0 { TSO_FRAME_BYTES_MAX } else { 0 };
        LinkCapabilities {
            mtu: self.mtu,
            tx_checksum: true,
            tso4_max: tso(TUN_F_TSO4),
            tso6_max: tso(TUN_F_TSO6),
        }
    }

    fn receive(&mut self, now: Instant, batch: &mut RxBatch) -> io::Result<usize> {
        let Self { fd, stats, failures, .. } = self;
        let fd = fd.as_fd();
        device::fill_batch(now, batch, HEADER_BYTES, stats, failures, |space, stats| {
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
            debug_assert!(false, "segmentation without a checksum offset");
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
    /// Returns the header of a transmitted frame. `None` if segmentation is requested without a checksum.
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
            // Without the bit the kernel would repeat CWR in every segment.
            if frame.head.get(tcp + TCP_FLAGS_OFFSET).is_some_and(|flags| flags & TCP_FLAG_CWR != 0)
            {
                header.gso_type |= GSO_ECN;
            }
            header.hdr_len = header_len.into();
            header.gso_size = size.into();
        }
        Some(header)
    }

    /// Returns a received frame, or `None` if its header is malformed.
    ///
    /// `hdr_len` is a hint (the kernel sets it to the length of its linear part), so it is only compared with the
    /// frame's length. A checksum of another protocol than TCP is completed here: layers above handle partial checksums
    /// of TCP only.
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
