//! Kernel TCP sockets: gathered sends from memory that may be shared, and the kernel's state of a connection.
#![allow(unsafe_code)]

use core::{
    mem::{MaybeUninit, offset_of, size_of},
    time::Duration,
};
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

/// Queries TCP_INFO. Returns it with the number of bytes that this kernel has written; the others are 0.
fn query(socket: BorrowedFd<'_>) -> Option<(libc::tcp_info, usize)> {
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
    (outcome == 0).then_some((info, len as usize))
}

/// Kernel statistics of a TCP connection, for monitoring: the part of TCP_INFO that all supported kernels have, and
/// the windows of recent ones.
#[allow(missing_docs, reason = "the names are those of TCP_INFO, with the unit")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpStatistics {
    /// Options of the handshake: TCPI_OPT_TIMESTAMPS and so on.
    pub options: u8,
    /// Congestion state, as numbered by the kernel: Open, Disorder, CWR, Recovery, Loss.
    pub ca_state: u8,
    /// Window scales of the peer and of this end.
    pub wscale: (u8, u8),
    pub rto: Duration,
    pub rtt: Duration,
    pub rttvar: Duration,
    /// Largest duration: no sample.
    pub min_rtt: Duration,
    pub rcv_rtt: Duration,
    pub snd_mss: u32,
    pub rcv_mss: u32,
    pub advmss: u32,
    pub pmtu: u32,
    /// Congestion window, segments.
    pub snd_cwnd: u32,
    /// Slow start threshold, segments.
    pub snd_ssthresh: u32,
    /// Send window, bytes; `None`: kernel before 5.4.
    pub snd_wnd: Option<u32>,
    /// Receive window, bytes; `None`: kernel before 6.2.
    pub rcv_wnd: Option<u32>,
    pub rcv_space: u32,
    pub bytes_sent: u64,
    pub bytes_retrans: u64,
    pub bytes_acked: u64,
    pub bytes_received: u64,
    pub segs_out: u32,
    pub segs_in: u32,
    pub unacked: u32,
    pub sacked: u32,
    pub lost: u32,
    pub retrans: u32,
    pub total_retrans: u32,
    pub dsack_dups: u32,
    pub reord_seen: u32,
    pub delivered_ce: u32,
    /// Pacing rate, bytes per second; the largest number: unlimited.
    pub pacing_rate: u64,
    pub last_data_sent: Duration,
    pub last_data_recv: Duration,
    pub last_ack_recv: Duration,
    pub busy_time: Duration,
    pub rwnd_limited: Duration,
}

impl TcpStatistics {
    /// Queries the statistics. `None` if it is not a TCP socket.
    pub fn of(socket: BorrowedFd<'_>) -> Option<Self> {
        let (info, len) = query(socket)?;
        let micros = |time: u32| Duration::from_micros(time.into());
        let millis = |time: u32| Duration::from_millis(time.into());
        let known = |end: usize, value: u32| (len >= end).then_some(value);
        // Two bit fields of four bits, in the order of the C ABI.
        let scales = info.tcpi_snd_rcv_wscale;
        let (first, second) = (scales & 0xf, scales >> 4);
        let wscale = if cfg!(target_endian = "little") { (first, second) } else { (second, first) };
        Some(Self {
            options: info.tcpi_options,
            ca_state: info.tcpi_ca_state,
            wscale,
            rto: micros(info.tcpi_rto),
            rtt: micros(info.tcpi_rtt),
            rttvar: micros(info.tcpi_rttvar),
            min_rtt: micros(info.tcpi_min_rtt),
            rcv_rtt: micros(info.tcpi_rcv_rtt),
            snd_mss: info.tcpi_snd_mss,
            rcv_mss: info.tcpi_rcv_mss,
            advmss: info.tcpi_advmss,
            pmtu: info.tcpi_pmtu,
            snd_cwnd: info.tcpi_snd_cwnd,
            snd_ssthresh: info.tcpi_snd_ssthresh,
            snd_wnd: known(offset_of!(libc::tcp_info, tcpi_rcv_wnd), info.tcpi_snd_wnd),
            rcv_wnd: known(offset_of!(libc::tcp_info, tcpi_rehash), info.tcpi_rcv_wnd),
            rcv_space: info.tcpi_rcv_space,
            bytes_sent: info.tcpi_bytes_sent,
            bytes_retrans: info.tcpi_bytes_retrans,
            bytes_acked: info.tcpi_bytes_acked,
            bytes_received: info.tcpi_bytes_received,
            segs_out: info.tcpi_segs_out,
            segs_in: info.tcpi_segs_in,
            unacked: info.tcpi_unacked,
            sacked: info.tcpi_sacked,
            lost: info.tcpi_lost,
            retrans: info.tcpi_retrans,
            total_retrans: info.tcpi_total_retrans,
            dsack_dups: info.tcpi_dsack_dups,
            reord_seen: info.tcpi_reord_seen,
            delivered_ce: info.tcpi_delivered_ce,
            pacing_rate: info.tcpi_pacing_rate,
            last_data_sent: millis(info.tcpi_last_data_sent),
            last_data_recv: millis(info.tcpi_last_data_recv),
            last_ack_recv: millis(info.tcpi_last_ack_recv),
            busy_time: Duration::from_micros(info.tcpi_busy_time),
            rwnd_limited: Duration::from_micros(info.tcpi_rwnd_limited),
        })
    }
}

/// States in which the peer has acknowledged the local FIN: FIN-WAIT-2, TIME-WAIT and CLOSED.
const SHUT_DOWN: [u8; 3] = [5, 6, 7];

/// States in which the peer's FIN was received: TIME-WAIT, CLOSE-WAIT, LAST-ACK and CLOSING.
const PEER_CLOSED: [u8; 4] = [6, 8, 9, 11];

impl TcpInfo {
    /// Queries the state. `None` if it is not a TCP socket.
    pub fn of(socket: BorrowedFd<'_>) -> Option<Self> {
        let (info, _) = query(socket)?;
        Some(Self {
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

    #[test]
    fn statistics_count_bytes_of_both_directions() {
        let (mut near, mut far) = pair();
        near.write_all(&[7; 1000]).unwrap();
        far.read_exact(&mut [0; 1000]).unwrap();
        far.write_all(&[7; 10]).unwrap();
        near.read_exact(&mut [0; 10]).unwrap();
        let statistics = TcpStatistics::of(near.as_fd()).unwrap();
        // The answer of the peer has acknowledged the data, and is in the receive queue.
        assert_eq!((statistics.bytes_sent, statistics.bytes_received), (1000, 10));
        assert_eq!((statistics.total_retrans, statistics.bytes_retrans), (0, 0));
        assert!(statistics.rtt > Duration::ZERO && statistics.snd_mss > 500, "{statistics:?}");
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(TcpStatistics::of(file.as_fd()), None);
    }
}
