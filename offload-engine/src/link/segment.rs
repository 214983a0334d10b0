//! Software segmentation: one GSO packet is split into frames as on the wire.
//!
//! Each segment repeats the headers with its own length, IPv4 identification (incremented, as RFC 6864 §4.1 permits for
//! an atomic datagram), sequence number and checksums. PSH and FIN are set only in the last segment, CWR only in the
//! first (RFC 3168 §6.1.2: it responds to one ECE once).
#![forbid(unsafe_code)]

use std::vec::Vec;

use super::{
    TxChecksum,
    checksum::{self, TCP_CHECKSUM_OFFSET},
    layout::TcpLayout,
};

const FLAG_FIN: u8 = 0x01;
const FLAG_PSH: u8 = 0x08;
const FLAG_CWR: u8 = 0x80;

/// Segments of a GSO packet, in sequence order.
#[derive(Debug)]
pub(super) struct Segments<'a> {
    frame: &'a [u8],
    layout: TcpLayout,
    size: usize,
    /// Payload bytes already returned.
    done: usize,
    pieces: u16,
    /// True if TCP checksums are left to a device.
    partial: bool,
}

impl<'a> Segments<'a> {
    /// Segments `frame` into `size` payload bytes each. A frame without payload yields one segment. `None` if it is not
    /// TCP or `size` is zero.
    pub(super) fn new(frame: &'a [u8], size: usize) -> Option<Self> {
        let layout = TcpLayout::of(frame)?;
        (size > 0).then_some(Self { frame, layout, size, done: 0, pieces: 0, partial: false })
    }

    /// Leaves TCP checksums to a device: segments have the pseudo-header sum. Returns its offset.
    pub(super) fn offload_checksums(&mut self) -> TxChecksum {
        self.partial = true;
        // The offset fits: a frame has at most 64 KiB.
        TxChecksum { start: self.layout.tcp as u16, offset: TCP_CHECKSUM_OFFSET }
    }

    /// Writes the next segment, complete with checksums, to `piece`. Returns false if there is none left.
    pub(super) fn next_into(&mut self, piece: &mut Vec<u8>) -> bool {
        let TcpLayout { ip, ipv6, tcp, payload, end } = self.layout;
        let payload_len = end - payload;
        let first = self.pieces == 0;
        if !first && self.done == payload_len {
            return false;
        }
        let len = self.size.min(payload_len - self.done);
        let last = self.done + len == payload_len;
        let from = payload + self.done;

        piece.clear();
        piece.extend_from_slice(&self.frame[..payload]);
        piece.extend_from_slice(&self.frame[from..from + len]);

        let mine = TcpLayout { ip, ipv6, tcp, payload, end: payload + len };
        if ipv6 {
            // No segment is longer than the frame, whose length fits into the field.
            put_word(piece, ip + 4, (mine.end - ip - 40) as u16);
        } else {
            put_word(piece, ip + 2, (mine.end - ip) as u16);
            let identification = u16::from_be_bytes([piece[ip + 4], piece[ip + 5]]);
            put_word(piece, ip + 4, identification.wrapping_add(self.pieces));
        }
        let seq = [piece[tcp + 4], piece[tcp + 5], piece[tcp + 6], piece[tcp + 7]];
        let seq = u32::from_be_bytes(seq).wrapping_add(self.done as u32);
        piece[tcp + 4..tcp + 8].copy_from_slice(&seq.to_be_bytes());
        if !last {
            piece[tcp + 13] &= !(FLAG_FIN | FLAG_PSH);
        }
        if !first {
            piece[tcp + 13] &= !FLAG_CWR;
        }
        checksum::fill_ipv4(piece, &mine);
        if self.partial {
            checksum::store_pseudo_header_sum(piece, &mine);
        } else {
            checksum::fill_tcp(piece, &mine);
        }

        self.done += len;
        self.pieces += 1;
        true
    }
}

fn put_word(frame: &mut [u8], at: usize, word: u16) {
    frame[at..at + 2].copy_from_slice(&word.to_be_bytes());
}

#[cfg(test)]
mod tests;
