//! Reads and writes of frames on a TAP descriptor: one system call per frame, no allocation.
#![forbid(unsafe_code)]

use std::{
    io::{self, IoSlice},
    os::fd::BorrowedFd,
};

use bytes::BufMut;
use rustix::io::Errno;

use super::{LinkStats, RxBatch, RxChecksum, TX_PAYLOAD_SLICES_MAX, TxFrame, TxOutcome};
use crate::{
    memory::Piece,
    time::{Duration, Instant},
};

/// Slices before the payload: the virtio-net header and the frame's own headers.
const FRONT_SLICES: usize = 2;

/// Largest frame, in bytes with the virtio-net header, that is copied into one piece for the kernel. A gathered write
/// of several slices costs more.
const ONE_PIECE_BYTES_MAX: usize = 256;

/// Bytes of an Ethernet header. A shorter frame is a runt.
pub(super) const ETHERNET_HEADER_BYTES: usize = 14;

/// Time for which reads may fail for lack of memory or with EIO before the device counts as lost.
const READ_FAILURE_MAX: Duration = Duration::from_secs(1);

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

/// Errors of reads that may be temporary.
#[derive(Debug, Default)]
pub(super) struct ReadFailures {
    /// Time of the first failure since the last successful read.
    since: Option<Instant>,
}

impl ReadFailures {
    fn clear(&mut self) {
        self.since = None;
    }

    /// Records an error. Returns it if the device counts as lost: it was removed (EBADFD, EFAULT), or reads have
    /// failed for [`READ_FAILURE_MAX`].
    #[cold]
    fn record(&mut self, now: Instant, error: Errno, stats: &mut LinkStats) -> Result<(), Errno> {
        if !matches!(error, Errno::NOMEM | Errno::NOBUFS | Errno::IO) {
            return Err(error);
        }
        if stats.rx_errors == 0 {
            tracing::warn!(%error, "TAP: read failed: repeated");
        }
        stats.rx_errors += 1;
        let since = *self.since.get_or_insert(now);
        if now - since < READ_FAILURE_MAX { Ok(()) } else { Err(error) }
    }
}

/// Reads until EAGAIN or until the batch is full. `read` reads one frame, after a header of `front` bytes, into the
/// buffer. It counts a malformed one and returns `None`. An error after some frames is reported by the next call. One
/// that may be temporary ends the batch, and the next call reads again.
pub(super) fn fill_batch(
    now: Instant,
    batch: &mut RxBatch,
    front: usize,
    stats: &mut LinkStats,
    failures: &mut ReadFailures,
    mut read: impl FnMut(&mut [u8], &mut LinkStats) -> rustix::io::Result<Option<Received>>,
) -> io::Result<usize> {
    let (mut added, mut malformed) = (0, 0);
    while malformed < MALFORMED_FRAMES_MAX {
        let Some(space) = batch.space_behind(front) else { break };
        let result = read(space, stats);
        if let Ok(_) | Err(Errno::AGAIN) = result {
            failures.clear();
        }
        match result {
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
            Err(error) => match failures.record(now, error, stats) {
                Err(error) if added == 0 => return Err(error.into()),
                _ => break,
            },
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

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    /// Result of a read at `now` that fails with `error`.
    fn fails(now: Instant, error: Errno, failures: &mut ReadFailures) -> io::Result<usize> {
        let (mut batch, mut stats) = (RxBatch::new(4), LinkStats::default());
        fill_batch(now, &mut batch, 0, &mut stats, failures, |_, _| Err(error))
    }

    #[test]
    fn removed_device_is_reported_immediately() {
        for error in [Errno::BADFD, Errno::FAULT, Errno::NODEV, Errno::BADF] {
            let failed = fails(Instant::ZERO, error, &mut ReadFailures::default()).unwrap_err();
            assert_eq!(failed.raw_os_error(), Some(error.raw_os_error()));
        }
    }

    #[test]
    fn temporary_error_is_counted_and_repeated() {
        for error in [Errno::NOMEM, Errno::NOBUFS, Errno::IO] {
            let (mut batch, mut stats) = (RxBatch::new(4), LinkStats::default());
            let mut failures = ReadFailures::default();
            let mut results = Vec::from([Err(Errno::AGAIN), Ok(()), Err(Errno::INTR), Err(error)]);
            let mut read = |_: &mut [u8], _: &mut LinkStats| {
                let received = Received { len: 60, checksum: RxChecksum::Unverified, gso_size: 0 };
                results.pop().expect("no read after EAGAIN").map(|()| Some(received))
            };
            let mut added =
                || fill_batch(Instant::ZERO, &mut batch, 0, &mut stats, &mut failures, &mut read);
            assert_eq!([added().unwrap(), added().unwrap()], [0, 1], "{error}");
            assert_eq!((stats.rx_errors, stats.rx_frames), (1, 1));
        }
    }

    #[test]
    fn device_whose_reads_keep_failing_is_lost() {
        let mut failures = ReadFailures::default();
        let begin = Instant::from_micros(7);
        assert_eq!(fails(begin, Errno::IO, &mut failures).unwrap(), 0);
        let last = begin + (READ_FAILURE_MAX - Duration::from_micros(1));
        assert_eq!(fails(last, Errno::NOMEM, &mut failures).unwrap(), 0);
        let failed = fails(begin + READ_FAILURE_MAX, Errno::IO, &mut failures).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(Errno::IO.raw_os_error()));
        // A successful read in between ends the series.
        assert_eq!(fails(begin + READ_FAILURE_MAX, Errno::AGAIN, &mut failures).unwrap(), 0);
        assert_eq!(fails(begin + READ_FAILURE_MAX, Errno::IO, &mut failures).unwrap(), 0);
    }
}
