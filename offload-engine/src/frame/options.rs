//! TCP options, one after the other (RFC 9293 §3.1).
//!
//! Unknown options are given as such and stepped over (MUST-6); an illegal length ends the walk
//! (MUST-7). etherparse's iterator ends at the first unknown one, which a peer's SYN may well carry.

use crate::segment::{SackBlock, SeqNum, Timestamps};

/// An option with a meaning, or its kind.
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
    /// Any other kind, or a known one of unknown length.
    Unknown(u8),
}

/// The blocks of a SACK option, 1 to 4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SackBlocks<'a>(&'a [u8]);

impl SackBlocks<'_> {
    /// The blocks, in the option's order.
    pub fn iter(&self) -> impl Iterator<Item = SackBlock> {
        self.0.chunks_exact(8).map(|block| SackBlock {
            start: SeqNum(word([block[0], block[1], block[2], block[3]])),
            end: SeqNum(word([block[4], block[5], block[6], block[7]])),
        })
    }
}

/// An option whose length is illegal: below 2, or beyond the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("TCP: option {kind} of illegal length")]
pub struct IllegalLength {
    /// The option's kind.
    pub kind: u8,
}

/// Walks the option bytes of a TCP header. Padding is left out; after an error nothing follows.
#[derive(Clone, Debug)]
pub struct TcpOptions<'a>(&'a [u8]);

impl<'a> TcpOptions<'a> {
    /// The options in `bytes`: what stands between the 20th byte of the header and its data offset.
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
