//! Reads and writes of frames on a TAP descriptor: one system call per frame, no allocation.
#![forbid(unsafe_code)]

use std::{
    io::{self, IoSlice},
    os::fd::BorrowedFd,
};

use bytes::BufMut;
use rustix::io::Errno;

use super::{LinkStats, RxBatch, RxChecksum, TX_PAYLOAD_SLICES_MAX, TxFrame, TxOutcome};
use crate::memory::Piece;

/// Slices before the payload: the virtio-net header and the frame's own headers.
const FRONT_SLICES: usize = 2;

/// Largest frame, in bytes with the virtio-net header, that is copied into one piece for the kernel. A gathered write
/// of several slices costs more.
const ONE_PIECE_BYTES_MAX: usize = 256;

/// Bytes of an Ethernet header. A shorter frame is a runt.
pub(super) const ETHERNET_HEADER_BYTES: usize = 14;

/// Malformed frames that one `receive` skips before it returns.
const MALFORMED_FRAMES_MAX: usize = 64;

impl TxFrame<'_> {
    /// Bytes of the whole frame.
    #[expect(clippy::len_without_is_empty, reason = "a frame has a header")]
    pub fn len(&self) -> usize {
        self.head.len() + self.payload.iter().map(Piece::len).sum::<usize>()
    }

    /// Appends head and payload to `target`, which must have room for them.
    #[inline]
    pub fn gather_into(&self, target: &mut impl BufMut) {
        target.put_slice(self.head);
        for piece in self.payload {
            piece.append_to(target);
        }
    }
}

/// Writes `vnet` (may be empty), head and payload as one frame, and counts the result.
///
/// EAGAIN is [`TxOutcome::Full`]. Any other error drops the frame. Examples are EIO while the interface is down,
/// ENOBUFS, ENOMEM, EINVAL for an invalid header, and EBADFD after the interface was removed. For TCP all of these are
/// losses.
pub(super) fn write_frame(
    fd: BorrowedFd<'_>,
    vnet: &[u8],
    frame: &TxFrame<'_>,
    stats: &mut LinkStats,
) -> TxOutcome {
    let len = frame.len();
    // The array of slices is initialized on each call, so its size is chosen by need: from 128 bytes to 16 KiB.
    let result = match frame.payload.len() + FRONT_SLICES {
        _ if vnet.len() + len <= ONE_PIECE_BYTES_MAX => write_piece(fd, vnet, frame),
        0..=8 => write_slices::<8>(fd, vnet, frame),
        9..=128 => write_slices::<128>(fd, vnet, frame),
        _ if frame.payload.len() <= TX_PAYLOAD_SLICES_MAX => {
            write_slices::<{ TX_PAYLOAD_SLICES_MAX + FRONT_SLICES }>(fd, vnet, frame)
        }
        _ => Err(Errno::INVAL),
    };
    match result {
        Ok(_) => {
            stats.tx_frames += 1;
            stats.tx_bytes += len as u64;
            if frame.offload.segment.is_some() {
                stats.tx_gso_frames += 1;
            }
            TxOutcome::Sent
        }
        Err(Errno::AGAIN) => {
            stats.tx_full += 1;
            TxOutcome::Full
        }
        Err(_) => {
            stats.tx_errors += 1;
            TxOutcome::Dropped
        }
    }
}

/// Writes a frame of at most [`ONE_PIECE_BYTES_MAX`], `vnet` included.
fn write_piece(fd: BorrowedFd<'_>, vnet: &[u8], frame: &TxFrame<'_>) -> rustix::io::Result<usize> {
    let mut piece = [0; ONE_PIECE_BYTES_MAX];
    let mut end = 0;
    let front = [vnet, frame.head].map(Piece::Private);
    for part in front.iter().chain(frame.payload) {
        part.read(&mut piece[end..end + part.len()]);
        end += part.len();
    }
    rustix::io::retry_on_intr(|| rustix::io::write(fd, &piece[..end]))
}

fn write_slices<const N: usize>(
    fd: BorrowedFd<'_>,
    vnet: &[u8],
    frame: &TxFrame<'_>,
) -> rustix::io::Result<usize> {
    let mut slices = [IoSlice::new(&[]); N];
    slices[0] = IoSlice::new(vnet);
    slices[1] = IoSlice::new(frame.head);
    let end = FRONT_SLICES + frame.payload.len();
    for (slice, piece) in slices[FRONT_SLICES..end].iter_mut().zip(frame.payload) {
        *slice = piece.io_slice();
    }
    let first = usize::from(vnet.is_empty());
    rustix::io::retry_on_intr(|| rustix::io::writev(fd, &slices[first..end]))
}

/// Well-formed frame in the buffer passed to the reader.
pub(super) struct Received {
    pub(super) len: usize,
    pub(super) checksum: RxChecksum,
    pub(super) gso_size: usize,
}

/// Reads until EAGAIN or until the batch is full. `read` reads one frame, after a header of `front` bytes, into the
/// buffer. It counts a malformed one and returns `None`. An error after some frames is reported by the next call.
pub(super) fn fill_batch(
    batch: &mut RxBatch,
    front: usize,
    stats: &mut LinkStats,
    mut read: impl FnMut(&mut [u8], &mut LinkStats) -> rustix::io::Result<Option<Received>>,
) -> io::Result<usize> {
    let (mut added, mut malformed) = (0, 0);
    while malformed < MALFORMED_FRAMES_MAX {
        let Some(space) = batch.space_behind(front) else { break };
        match read(space, stats) {
            Ok(Some(Received { len, checksum, gso_size })) => {
                batch.commit(len, checksum, gso_size);
                added += 1;
                stats.rx_frames += 1;
                stats.rx_bytes += len as u64;
                stats.rx_gso_frames += u64::from(gso_size != 0);
            }
            Ok(None) => malformed += 1,
            Err(Errno::AGAIN) => break,
            Err(Errno::INTR) => {}
            Err(error) if added == 0 => return Err(error.into()),
            Err(_) => break,
        }
    }
    Ok(added)
}

/// True if a frame of `len` bytes, read into `room` bytes, is accepted. Counts it otherwise. The driver silently
/// truncates a frame that does not fit, so one that fills the buffer may be incomplete.
pub(super) fn length_is_good(len: usize, room: usize, stats: &mut LinkStats) -> bool {
    let good = (ETHERNET_HEADER_BYTES..room).contains(&len);
    stats.rx_length_errors += u64::from(!good);
    good
}
