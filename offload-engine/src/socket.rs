//! Kernel TCP sockets: gathered sends from memory that may be shared, and the kernel's state of a connection.
#![allow(unsafe_code)]

use core::mem::{MaybeUninit, size_of};
use std::{
    io::IoSlice,
    os::fd::{AsRawFd, BorrowedFd},
};

use rustix::{
    io::Errno,
    net::{SendAncillaryBuffer, SendFlags, sendmsg},
};

use crate::memory::Piece;

/// Maximum number of pieces of memory in one send.
pub const PIECES_MAX: usize = 64;

/// Sends the first [`PIECES_MAX`] pieces in one call, up to the room in the kernel. With `ends_record` later data does
/// not share a segment with them, if all of them are sent (MSG_EOR).
///
/// # Errors
/// Errors of sendmsg(2). [`Errno::AGAIN`] if there is no room.
pub fn send<'a>(
    socket: BorrowedFd<'_>,
    mut pieces: impl Iterator<Item = Piece<'a>>,
    ends_record: bool,
) -> Result<usize, Errno> {
    let end = if ends_record { SendFlags::EOR } else { SendFlags::empty() };
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let Some(first) = pieces.next() else { return Ok(0) };
    let Some(second) = pieces.next() else {
        // Most small messages have one piece, for which the kernel need not copy a list of slices.
        return match first {
            Piece::Private(memory) => rustix::net::send(socket, memory, flags | end),
            Piece::Shared(_) => gather(socket, &[first.io_slice()], flags | end),
        };
    };
    let mut slices = [IoSlice::new(&[]); PIECES_MAX];
    (slices[0], slices[1]) = (first.io_slice(), second.io_slice());
    let mut count = 2;
    for (slice, piece) in slices[2..].iter_mut().zip(&mut pieces) {
        *slice = piece.io_slice();
        count += 1;
    }
    // Remaining pieces would start the next record.
    let end = if pieces.next().is_none() { end } else { SendFlags::empty() };
    gather(socket, &slices[..count], flags | end)
}

fn gather(
    socket: BorrowedFd<'_>,
    slices: &[IoSlice<'_>],
    flags: SendFlags,
) -> Result<usize, Errno> {
    sendmsg(socket, slices, &mut SendAncillaryBuffer::default(), flags)
}

/// Bytes accepted by the kernel and not acknowledged by the peer (SIOCOUTQ). 0 if it is not a TCP socket.
pub fn unacknowledged(socket: BorrowedFd<'_>) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the call writes an integer.
    let outcome = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if outcome == 0 { usize::try_from(bytes).unwrap_or(0) } else { 0 }
}

/// Makes the next bind without a port select an address only (IP_BIND_ADDRESS_NO_PORT). The connect selects the port,
/// which is then free for connections to other peers.
///
/// # Errors
/// Errors of setsockopt(2).
pub fn bind_without_port(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    let on: libc::c_int = 1;
    // SAFETY: the call reads an integer. The option also applies to sockets of IPv6.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if outcome == 0 { Ok(()) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

/// Kernel state of a TCP connection (TCP_INFO).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpInfo {
    /// TCP state, as numbered by the kernel.
    pub state: u8,
    /// Payload bytes of the largest segment sent.
    pub mss: usize,
    /// Segments not acknowledged by the peer.
    pub unacked: u32,
}

/// States in which the peer has acknowledged the local FIN: FIN-WAIT-2, TIME-WAIT and CLOSED.
const SHUT_DOWN: [u8; 3] = [5, 6, 7];

/// States in which the peer's FIN was received: TIME-WAIT, CLOSE-WAIT, LAST-ACK and CLOSING.
const PEER_CLOSED: [u8; 4] = [6, 8, 9, 11];

impl TcpInfo {
    /// Queries the state. `None` if it is not a TCP socket.
    pub fn of(socket: BorrowedFd<'_>) -> Option<Self> {
        let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
        let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
        // SAFETY: `info` has `len` bytes for the kernel to write.
        let outcome = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        // SAFETY: it was zeroed, and consists of integers.
        let info = unsafe { info.assume_init() };
        (outcome == 0).then_some(Self {
            state: info.tcpi_state,
            mss: info.tcpi_snd_mss as usize,
            unacked: info.tcpi_unacked,
        })
    }

    /// True if the peer has acknowledged the local FIN.
    pub fn is_shut_down(&self) -> bool {
        SHUT_DOWN.contains(&self.state)
    }

    /// True if the peer's FIN was received, even if data before it is not yet read.
    pub fn has_peer_closed(&self) -> bool {
        PEER_CLOSED.contains(&self.state)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{Shutdown, TcpListener, TcpStream},
        os::fd::AsFd,
        thread::yield_now,
        time::{Duration, Instant},
        vec,
    };

    use super::*;
    use crate::memory::SharedSpan;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    // With more pieces than one call accepts, the first ones are sent, in order, from shared and private memory.
    #[test]
    fn pieces_are_gathered() {
        let (near, mut far) = pair();
        let memory = SharedSpan::allocate(PIECES_MAX + 1, 1).unwrap();
        let shared = memory.slice(0..PIECES_MAX);
        shared.write(0, &[7; PIECES_MAX]);
        let all = (0..=PIECES_MAX).map(|at| match at % 2 {
            0 => Piece::Shared(memory.view().slice(at, 1)),
            _ => Piece::Private(b"x"),
        });
        assert_eq!(send(near.as_fd(), all, true), Ok(PIECES_MAX));
        let mut received = [0; PIECES_MAX];
        far.read_exact(&mut received).unwrap();
        assert!(received.chunks(2).all(|pair| pair == [7, b'x']));
    }

    // Data without room in the peer's kernel remains unacknowledged until the peer reads.
    #[test]
    fn unacknowledged_bytes_are_counted() {
        let (mut near, mut far) = pair();
        let left = |near: &TcpStream| unacknowledged(near.as_fd());
        assert_eq!(left(&near), 0);
        near.set_nonblocking(true).unwrap();
        let data = [0; 65_536];
        let written: usize = core::iter::from_fn(|| near.write(&data).ok()).sum();
        assert!((1..=written).contains(&left(&near)), "{} of {written}", left(&near));
        let mut rest = vec![0; written];
        far.read_exact(&mut rest).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while left(&near) > 0 {
            assert!(Instant::now() < deadline);
            yield_now();
        }
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(unacknowledged(file.as_fd()), 0);
    }

    #[test]
    fn acknowledged_shutdown_is_reported() {
        let (near, mut far) = pair();
        let info = || TcpInfo::of(near.as_fd()).unwrap();
        assert!(!info().is_shut_down() && info().mss > 500);
        near.shutdown(Shutdown::Write).unwrap();
        assert_eq!(far.read(&mut [0]).unwrap(), 0);
        // The acknowledgment may be delayed.
        let deadline = Instant::now() + Duration::from_secs(60);
        while !info().is_shut_down() {
            assert!(Instant::now() < deadline, "{:?}", info());
            yield_now();
        }
        drop(far);
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(TcpInfo::of(file.as_fd()), None);
    }
}
