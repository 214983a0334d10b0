//! Commands of peers: in the private data of a Request, and in Sends.
//!
//! ```text
//! private data                     receives to post; default: 8 of 1,024 bytes, posted again
//!   'N' u8 count, u16 bytes, u8 posted again
//!   'A'                            as by default, with atomics and immediate data (RFC 7306)
//!   'R'                            reject, with the private data "no"
//!   'H'                            do not respond to the Request
//! Send                             operation, and a reply: a Send with the same first byte
//!   'E' any                        the same bytes
//!   'F'                            fast registration of page 5 for remote reads and writes: u32 STag, u64 address
//!   'D' u8 page                    deregister the page's region; the reply follows the completion
//!   'R' u32 stag, u64 to, u32 n    RDMA Read of n bytes (at most 4,096) from the peer into page 6
//!   'W' u32 stag, u64 to, u32 n    RDMA Write of the first n bytes of page 0
//!   'B' u32 n                      reply, then a Send of n bytes (at most 16,384) of the memory
//!   'V' u32 stag                   reply, then a Send with Solicited Event and Invalidate of the STag
//!   'O' ip4, u16 port              connect to this address: u32 number of the new connection
//!   'Q' u32 number                 report of this connection, JSON
//!   'X'                            disconnect; no reply
//! ```
//! Integers are big-endian. Any other Send is ignored.

use std::net::SocketAddr;

/// Receives of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receives {
    /// Number posted before the Accept: 0..=8.
    pub count: u8,
    /// Bytes of each receive: 0..=1024.
    pub bytes: u16,
    /// True if a receive is posted again after it completes.
    pub again: bool,
    /// True if the peer may use atomics and immediate data.
    pub extensions: bool,
}

impl Receives {
    /// Receives of a connection without private data.
    pub const DEFAULT: Self = Self { count: 8, bytes: 1024, again: true, extensions: false };
}

/// Response to a Request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opening {
    /// Accept.
    Accept(Receives),
    /// Reject.
    Reject,
    /// Do not respond.
    Hold,
}

impl Opening {
    /// Decodes private data; invalid data selects the defaults.
    #[must_use]
    pub fn decode(octets: &[u8]) -> Self {
        match *octets {
            [b'R', ..] => Self::Reject,
            [b'H', ..] => Self::Hold,
            [b'N', count, high, low, again, ..] => Self::Accept(Receives {
                count: count.min(8),
                bytes: u16::from_be_bytes([high, low]).min(1024),
                again: again != 0,
                extensions: false,
            }),
            [b'A'] => Self::Accept(Receives { extensions: true, ..Receives::DEFAULT }),
            _ => Self::Accept(Receives::DEFAULT),
        }
    }
}

/// Memory of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remote {
    /// STag.
    pub stag: u32,
    /// Tagged offset.
    pub to: u64,
    /// Bytes, at most a page.
    pub bytes: u32,
}

/// Command of a Send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Reply with the same bytes.
    Echo,
    /// Fast-register a page.
    FastRegister,
    /// Deregister the region of this page.
    Deregister(u8),
    /// Read from the peer by RDMA Read.
    Read(Remote),
    /// Write to the peer by RDMA Write.
    Write(Remote),
    /// Send this many bytes.
    Big(u32),
    /// Send with Invalidate of this STag.
    Invalidate(u32),
    /// Connect to this address.
    Connect(SocketAddr),
    /// Reply with the report of this connection.
    Report(u32),
    /// Disconnect.
    Disconnect,
    /// Do nothing.
    None,
}

impl Command {
    /// Decodes a Send.
    #[must_use]
    pub fn decode(octets: &[u8]) -> Self {
        let word = |rest: &[u8]| rest.first_chunk().map(|word| u32::from_be_bytes(*word));
        let remote = |rest: &[u8]| {
            let to = u64::from_be_bytes(*rest.get(4..)?.first_chunk()?);
            Some(Remote { stag: word(rest)?, to, bytes: word(rest.get(12..)?)?.min(4096) })
        };
        let command = match octets {
            [b'E', ..] => Some(Self::Echo),
            [b'F', ..] => Some(Self::FastRegister),
            [b'D', page, ..] => Some(Self::Deregister(*page)),
            [b'R', rest @ ..] => remote(rest).map(Self::Read),
            [b'W', rest @ ..] => remote(rest).map(Self::Write),
            [b'B', rest @ ..] => word(rest).map(|bytes| Self::Big(bytes.min(16_384))),
            [b'V', rest @ ..] => word(rest).map(Self::Invalidate),
            [b'O', a, b, c, d, high, low] => {
                let port = u16::from_be_bytes([*high, *low]);
                Some(Self::Connect(SocketAddr::from(([*a, *b, *c, *d], port))))
            }
            [b'Q', rest @ ..] => word(rest).map(Self::Report),
            [b'X', ..] => Some(Self::Disconnect),
            _ => None,
        };
        command.unwrap_or(Self::None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_commands_are_ignored() {
        for octets in [&b""[..], b"R\0\0\0\x01", b"W", b"B\0", b"Q\0\0\0", b"O\x0a\0\0\x01\0", b"?"]
        {
            assert_eq!(Command::decode(octets), Command::None, "{octets:?}");
        }
        let read = b"R\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\xff\xff";
        let remote = Remote { stag: 1, to: 2, bytes: 4096 };
        assert_eq!(Command::decode(read), Command::Read(remote));
        assert_eq!(Opening::decode(b"N\x01"), Opening::Accept(Receives::DEFAULT));
        let extended = Receives { extensions: true, ..Receives::DEFAULT };
        assert_eq!(Opening::decode(b"A"), Opening::Accept(extended));
        let few = Receives { count: 1, bytes: 16, again: false, extensions: false };
        assert_eq!(Opening::decode(b"N\x01\0\x10\0"), Opening::Accept(few));
    }
}
