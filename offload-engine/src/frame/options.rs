//! TCP options (RFC 9293 §3.1).
//!
//! Unknown options are returned as such and skipped (MUST-6). An illegal length ends the iteration (MUST-7). The
//! iterator of etherparse is not used, because it ends at the first unknown option, which a SYN may contain.

use crate::segment::{SackBlock, SeqNum, Timestamps};

/// Parsed option, or the kind of an unknown one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TcpOption<'a> {
    /// Maximum segment size.
    Mss(u16),
    /// Window scale, as sent (RFC 7323 §2.3: values above 14 mean 14).
    WindowScale(u8),
    /// SACK permitted.
    SackPermitted,
    /// SACK blocks.
    Sack(SackBlocks<'a>),
    /// Timestamps.
    Timestamps(Timestamps),
    /// Any other kind, or a known kind of unexpected length.
    Unknown(u8),
}

/// Blocks of a SACK option, 1 to 4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SackBlocks<'a>(&'a [u8]);

impl SackBlocks<'_> {
    /// Iterates over the blocks in the order of the option.
    pub fn iter(&self) -> impl Iterator<Item = SackBlock> {
        self.0.chunks_exact(8).map(|block| SackBlock {
            start: SeqNum(word([block[0], block[1], block[2], block[3]])),
            end: SeqNum(word([block[4], block[5], block[6], block[7]])),
        })
    }
}

/// Error: option length below 2, or beyond the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("TCP: option {kind} of illegal length")]
pub struct IllegalLength {
    /// Kind of the option.
    pub kind: u8,
}

/// Iterator over the option bytes of a TCP header. Padding is skipped. An error ends the iteration.
#[derive(Clone, Debug)]
pub struct TcpOptions<'a>(&'a [u8]);

impl<'a> TcpOptions<'a> {
    /// Creates an iterator over `bytes`: the header from its 20th byte to the data offset.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
}

const END: u8 = 0;
const NO_OPERATION: u8 = 1;

const fn word(bytes: [u8; 4]) -> u32 {
    u32::from_be_bytes(bytes)
}

impl<'a> Iterator for TcpOptions<'a> {
    type Item = Result<TcpOption<'a>, IllegalLength>;

    fn next(&mut self) -> Option<Self::Item> {
        while let [NO_OPERATION, rest @ ..] = self.0 {
            self.0 = rest;
        }
        let &[kind, ref rest @ ..] = self.0 else { return None };
        if kind == END {
            self.0 = &[];
            return None;
        }
        let length = rest.first().map_or(0, |&length| usize::from(length));
        if length < 2 || length > self.0.len() {
            self.0 = &[];
            return Some(Err(IllegalLength { kind }));
        }
        let (option, rest) = self.0.split_at(length);
        self.0 = rest;
        Some(Ok(match *option {
            [2, 4, a, b] => TcpOption::Mss(u16::from_be_bytes([a, b])),
            [3, 3, scale] => TcpOption::WindowScale(scale),
            [4, 2] => TcpOption::SackPermitted,
            [5, 10 | 18 | 26 | 34, ref blocks @ ..] => TcpOption::Sack(SackBlocks(blocks)),
            [8, 10, v0, v1, v2, v3, e0, e1, e2, e3] => TcpOption::Timestamps(Timestamps {
                value: word([v0, v1, v2, v3]),
                echo: word([e0, e1, e2, e3]),
            }),
            _ => TcpOption::Unknown(kind),
        }))
    }
}
