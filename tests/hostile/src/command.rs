//! What peers ask for: in the private data of a Request, and in Sends.
//!
//! ```text
//! private data                     the receives posted; without it 8 of 1,024 bytes, posted again
//!   'N' u8 count, u16 bytes, u8 post again
//!   'R'                            reject, with the private data "no"
//!   'H'                            never answer the Request
//! Send                             answer, a Send of the same first byte
//!   'E' any                        the same bytes
//!   'F'                            fast registration of page 5 for remote reads and writes: u32 STag, u64 address
//!   'D' u8 page                    deregister the page's region, answered when that is complete
//!   'R' u32 stag, u64 to, u32 n    RDMA Read of n bytes (at most 4,096) of the peer's into page 6
//!   'W' u32 stag, u64 to, u32 n    RDMA Write of the first n bytes of page 0
//!   'B' u32 n                      first the answer, then a Send of n bytes (at most 16,384) of the memory
//!   'V' u32 stag                   first the answer, then a Send with Solicited Event and Invalidate of it
//!   'O' ip4, u16 port              connect to there: u32 number of the new connection
//!   'Q' u32 number                 the report of that connection, JSON
//!   'X'                            disconnect; no answer
//! ```
//! Integers are big-endian. Anything else is received and not answered.

use std::net::SocketAddr;

/// Receives of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receives {
    /// Posted before the Accept: 0..=8.
    pub count: u8,
    /// Bytes of each: 0..=1024.
    pub bytes: u16,
    /// Posted again when it is complete.
    pub again: bool,
}

/// What is done with a Request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opening {
    /// Accept.
    Accept(Receives),
    /// Reject.
    Reject,
    /// Nothing.
    Hold,
}

impl Opening {
    /// From private data; what is not understood asks for the defaults.
    #[must_use]
    pub fn decode(octets: &[u8]) -> Self {
        match *octets {
            [b'R', ..] => Self::Reject,
            [b'H', ..] => Self::Hold,
            [b'N', count, high, low, again, ..] => Self::Accept(Receives {
                count: count.min(8),
                bytes: u16::from_be_bytes([high, low]).min(1024),
                again: again != 0,
            }),
            _ => Self::Accept(Receives { count: 8, bytes: 1024, again: true }),
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

/// What a Send asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// The same bytes.
    Echo,
    /// Fast registration.
    FastRegister,
    /// Deregistration of this page's region.
    Deregister(u8),
    /// RDMA Read.
    Read(Remote),
    /// RDMA Write.
    Write(Remote),
    /// A Send of so many bytes.
    Big(u32),
    /// A Send with Invalidate.
    Invalidate(u32),
    /// A connection to there.
    Connect(SocketAddr),
    /// The report of that connection.
    Report(u32),
    /// A disconnect.
    Disconnect,
    /// Nothing.
    None,
}

impl Command {
    /// From a Send.
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
    fn what_is_cut_short_asks_for_nothing() {
        for octets in [&b""[..], b"R\0\0\0\x01", b"W", b"B\0", b"Q\0\0\0", b"O\x0a\0\0\x01\0", b"?"]
        {
            assert_eq!(Command::decode(octets), Command::None, "{octets:?}");
        }
        let read = b"R\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\xff\xff";
        let remote = Remote { stag: 1, to: 2, bytes: 4096 };
        assert_eq!(Command::decode(read), Command::Read(remote));
        let defaults = Receives { count: 8, bytes: 1024, again: true };
        assert_eq!(Opening::decode(b"N\x01"), Opening::Accept(defaults));
        let few = Receives { count: 1, bytes: 16, again: false };
        assert_eq!(Opening::decode(b"N\x01\0\x10\0"), Opening::Accept(few));
    }
}
