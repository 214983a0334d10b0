//! State of the kernel's TCP sockets that TCP_INFO does not have: pending timer, memory, owner and inode. The source of
//! `ss -e -m -o` (linux/inet_diag.h).
//!
//! Each query looks up one socket of the caller's network namespace, with one request and one reply.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use netlink_sys::{Socket, SocketAddr as Port, protocols::NETLINK_SOCK_DIAG};
use rustix::io::Errno;

use crate::message::uninterrupted;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;
const INET_DIAG_SKMEMINFO: u16 = 7;
const ALL_STATES: u32 = u32::MAX;
const NO_COOKIE: [u8; 8] = [0xff; 8];

/// Length of `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// Length of `struct inet_diag_req_v2`.
const REQUEST_BYTES: usize = 56;
/// Length of `struct inet_diag_msg`.
const REPLY_BYTES: usize = 72;
/// Offset of `idiag_expires` in `struct inet_diag_msg`.
const EXPIRES_AT: usize = 52;

/// Pending timer of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimerKind {
    /// Retransmission, or a delayed probe for loss.
    Retransmit,
    /// Keep-alive, or the handshakes of a listener.
    KeepAlive,
    /// End of TIME-WAIT.
    TimeWait,
    /// Probe of a closed window.
    Persist,
}

/// Memory of a socket in bytes, as the kernel accounts it: with the overhead of its buffers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Memory {
    /// Receive queue.
    pub receive: u32,
    /// Limit of the receive queue, SO_RCVBUF.
    pub receive_max: u32,
    /// Sent and not yet freed by the device.
    pub transmit: u32,
    /// Limit of the send queue, SO_SNDBUF.
    pub send_max: u32,
    /// Allocated and unused.
    pub forward: u32,
    /// Send queue.
    pub send: u32,
    /// Options.
    pub options: u32,
    /// Received while a call had the socket.
    pub backlog: u32,
    /// Packets dropped, a count.
    pub drops: u32,
}

/// State of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketState {
    /// Pending timer, and the time until it expires; `None`: none is pending.
    pub timer: Option<(TimerKind, Duration)>,
    /// Retransmissions or probes without a reply.
    pub retransmits: u8,
    /// User id of the owner.
    pub uid: u32,
    /// Inode; 0: no process has the socket.
    pub inode: u32,
    /// Memory; `None`: not reported.
    pub memory: Option<Memory>,
}

/// Socket for queries.
pub struct SocketDiag(Socket);

impl std::fmt::Debug for SocketDiag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SocketDiag")
    }
}

impl SocketDiag {
    /// Opens a socket in the network namespace of this thread.
    ///
    /// # Errors
    /// No descriptor is available, or the kernel does not support the protocol.
    pub fn open() -> io::Result<Self> {
        let socket = Socket::new(NETLINK_SOCK_DIAG)?;
        socket.connect(&Port::new(0, 0))?;
        Ok(Self(socket))
    }

    /// Returns the state of the TCP socket with these endpoints; `remote` of a listener is `None`. `None`: not found.
    ///
    /// # Errors
    /// The kernel refused the request, or its reply is not valid.
    pub fn query(
        &self,
        local: SocketAddr,
        remote: Option<SocketAddr>,
    ) -> io::Result<Option<SocketState>> {
        uninterrupted(|| self.0.send(&request(local, remote), 0))?;
        let (reply, _) = uninterrupted(|| self.0.recv_from_full())?;
        parse(&reply)
    }
}

fn invalid() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "reply of sock_diag is not valid")
}

fn request(local: SocketAddr, remote: Option<SocketAddr>) -> Vec<u8> {
    let octets = |address: IpAddr| {
        let mut octets = [0; 16];
        match address.to_canonical() {
            IpAddr::V4(address) => octets[..4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => octets = address.octets(),
        }
        octets
    };
    let is_v4 = local.ip().to_canonical().is_ipv4();
    let remote = remote.map_or(([0; 16], 0), |it| (octets(it.ip()), it.port()));
    let length = (HEADER_BYTES + REQUEST_BYTES) as u32;
    let mut bytes = Vec::with_capacity(length as usize);
    // Header: length, type, flags, sequence number and port.
    bytes.extend(length.to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(NLM_F_REQUEST.to_ne_bytes());
    bytes.extend([0; 8]);
    let family = if is_v4 { AF_INET } else { AF_INET6 };
    bytes.extend([family, IPPROTO_TCP, 1 << (INET_DIAG_SKMEMINFO - 1), 0]);
    bytes.extend(ALL_STATES.to_ne_bytes());
    bytes.extend(local.port().to_be_bytes());
    bytes.extend(remote.1.to_be_bytes());
    bytes.extend(octets(local.ip()));
    bytes.extend(remote.0);
    // Any interface.
    bytes.extend([0; 4]);
    bytes.extend(NO_COOKIE);
    bytes
}

fn parse(reply: &[u8]) -> io::Result<Option<SocketState>> {
    let header = reply.get(..HEADER_BYTES).ok_or_else(invalid)?;
    let body = &reply[HEADER_BYTES..];
    if u16_at(header, 4) == Some(NLMSG_ERROR) {
        let number = u32_at(body, 0).ok_or_else(invalid)?.cast_signed();
        return match io::Error::from_raw_os_error(number.wrapping_neg()) {
            error if error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => Ok(None),
            error => Err(error),
        };
    }
    let message = body.get(..REPLY_BYTES).ok_or_else(invalid)?;
    let word = |at| u32_at(message, at).ok_or_else(invalid);
    let kind = match message[2] {
        1 => Some(TimerKind::Retransmit),
        2 => Some(TimerKind::KeepAlive),
        3 => Some(TimerKind::TimeWait),
        4 => Some(TimerKind::Persist),
        _ => None,
    };
    let left = Duration::from_millis(word(EXPIRES_AT)?.into());
    Ok(Some(SocketState {
        timer: kind.map(|kind| (kind, left)),
        retransmits: message[3],
        uid: word(EXPIRES_AT + 12)?,
        inode: word(EXPIRES_AT + 16)?,
        memory: memory(&body[REPLY_BYTES..]),
    }))
}

/// Returns the memory in the attributes of a reply.
fn memory(mut attributes: &[u8]) -> Option<Memory> {
    loop {
        let length = usize::from(u16_at(attributes, 0)?);
        let value = attributes.get(4..length)?;
        if u16_at(attributes, 2)? == INET_DIAG_SKMEMINFO {
            let word = |index: usize| u32_at(value, 4 * index);
            return Some(Memory {
                receive: word(0)?,
                receive_max: word(1)?,
                transmit: word(2)?,
                send_max: word(3)?,
                forward: word(4)?,
                send: word(5)?,
                options: word(6)?,
                backlog: word(7)?,
                drops: word(8)?,
            });
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|it| u16::from_ne_bytes(*it))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|it| u32::from_ne_bytes(*it))
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        net::{Ipv4Addr, TcpListener, TcpStream},
        os::fd::AsFd,
    };

    use rustix::net::sockopt;

    use super::*;

    #[test]
    fn connection_has_owner_memory_and_timer() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        near.write_all(&[7; 1000]).unwrap();
        sockopt::set_socket_keepalive(&near, true).unwrap();
        let diag = SocketDiag::open().unwrap();
        let state = |socket: &TcpStream| {
            let (local, remote) = (socket.local_addr().unwrap(), socket.peer_addr().unwrap());
            diag.query(local, Some(remote)).unwrap().unwrap()
        };
        let found = state(&near);
        assert_eq!(found.uid, rustix::process::getuid().as_raw());
        let inode = rustix::fs::fstat(near.as_fd()).unwrap().st_ino;
        assert_eq!(u64::from(found.inode), inode);
        let (kind, left) = found.timer.unwrap();
        assert_eq!(kind, TimerKind::KeepAlive);
        assert!(left > Duration::ZERO, "{left:?}");
        let memory = state(&far).memory.unwrap();
        assert!(memory.receive >= 1000 && memory.receive_max >= memory.receive, "{memory:?}");
        // A mapped address is the same socket; a listener has no peer.
        let mapped = |address: SocketAddr| match address.ip() {
            IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
            IpAddr::V6(_) => address,
        };
        let (local, remote) = (near.local_addr().unwrap(), near.peer_addr().unwrap());
        let same = diag.query(mapped(local), Some(mapped(remote))).unwrap().unwrap();
        assert_eq!(same.inode, found.inode);
        assert!(diag.query(listener.local_addr().unwrap(), None).unwrap().is_some());
        drop((near, far, listener));
        assert_eq!(diag.query("127.0.0.9:1".parse().unwrap(), None).unwrap(), None);
    }

    #[test]
    fn invalid_reply_is_an_error() {
        let header = |kind: u16| {
            let mut bytes = vec![0; HEADER_BYTES];
            bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
            bytes
        };
        for length in [0, HEADER_BYTES - 1] {
            assert!(parse(&vec![0; length]).is_err(), "{length}");
        }
        assert!(parse(&header(NLMSG_ERROR)).is_err());
        let mut short = header(SOCK_DIAG_BY_FAMILY);
        short.extend([0; REPLY_BYTES - 1]);
        assert!(parse(&short).is_err());
        short.push(0);
        // An attribute that is shorter than its header, or longer than the reply, ends the list.
        for length in [0u16, 3, 400] {
            let mut reply = short.clone();
            reply.extend(length.to_ne_bytes());
            reply.extend(INET_DIAG_SKMEMINFO.to_ne_bytes());
            assert_eq!(parse(&reply).unwrap().unwrap().memory, None, "{length}");
        }
    }
}
