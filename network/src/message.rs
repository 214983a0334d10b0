//! Requests and replies on an rtnetlink socket.
//!
//! One request is outstanding at a time. Replies are matched by sequence number until the kernel's acknowledgment,
//! error, or end of a dump. Other messages are stale and skipped. At most [`REPLIES_MAX`] messages are read per
//! request, or [`OBJECTS_MAX`] for a list.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// Maximum number of messages read per request. A request has one reply and one acknowledgment; the rest allows for
/// stale messages.
const REPLIES_MAX: usize = 256;

/// Maximum number of messages read for a list of objects.
const OBJECTS_MAX: usize = 65_536;

/// Kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    /// Reads one object.
    Get,
    /// Reads all objects.
    List,
    /// Changes or deletes an object that exists.
    Change,
    /// Creates an object that must not exist.
    Create,
}

impl Mode {
    const fn flags(self) -> u16 {
        NLM_F_REQUEST
            | match self {
                Self::Get | Self::Change => NLM_F_ACK,
                // The kernel ends a list with a message of its own.
                Self::List => NLM_F_DUMP,
                Self::Create => NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL,
            }
    }
}

/// Repeats a system call that a signal of the program has interrupted: its handlers may be installed without
/// `SA_RESTART`.
pub(super) fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// An rtnetlink socket.
pub(super) struct Connection {
    socket: Socket,
    sequence: u32,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let descriptor = self.socket.as_raw_fd();
        f.debug_struct("Connection").field("descriptor", &descriptor).finish_non_exhaustive()
    }
}

impl Connection {
    /// Opens a socket and joins the multicast `groups`.
    pub(super) fn open(groups: &[u32]) -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        for &group in groups {
            socket.add_membership(group)?;
        }
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends a request; returns the kernel's replies, without the acknowledgment.
    pub(super) fn request(
        &mut self,
        mode: Mode,
        message: RouteNetlinkMessage,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = mode.flags();
        header.sequence_number = self.sequence;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        uninterrupted(|| self.socket.send(&bytes, 0))?;
        self.replies(if mode == Mode::List { OBJECTS_MAX } else { REPLIES_MAX })
    }

    fn replies(&self, messages_max: usize) -> io::Result<Vec<RouteNetlinkMessage>> {
        let mut replies = Vec::new();
        let mut seen = 0;
        while seen < messages_max {
            let (datagram, _) = uninterrupted(|| self.socket.recv_from_full())?;
            let mut rest = datagram.as_slice();
            while !rest.is_empty() && seen < messages_max {
                seen += 1;
                let packet = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                    .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                let (header, payload) = packet.into_parts();
                let length = (header.length as usize).next_multiple_of(4).max(1);
                rest = rest.get(length..).unwrap_or_default();
                if header.sequence_number != self.sequence {
                    continue;
                }
                match payload {
                    NetlinkPayload::Error(error) if error.code.is_none() => return Ok(replies),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    NetlinkPayload::Done(_) => return Ok(replies),
                    NetlinkPayload::InnerMessage(reply) => replies.push(reply),
                    _ => {}
                }
            }
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "no acknowledgment from rtnetlink"))
    }

    /// Reads one datagram of notifications without blocking. Returns true if there was one.
    pub(super) fn take_notification(&self) -> io::Result<bool> {
        self.socket.set_non_blocking(true)?;
        match uninterrupted(|| self.socket.recv_from_full()) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            // Notifications were dropped: the caller has to check the link as after a notification.
            Err(error)
                if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) =>
            {
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    /// Descriptor that is readable when a notification is available.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupted_call_is_repeated() {
        let mut errors = vec![io::ErrorKind::NotFound, io::ErrorKind::Interrupted];
        let mut call = || errors.pop().map_or(Ok(()), |kind| Err(kind.into()));
        assert_eq!(uninterrupted(&mut call).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(uninterrupted(&mut call).is_ok());
    }
}
