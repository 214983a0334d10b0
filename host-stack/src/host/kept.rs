//! Out-of-order data that a connection has brought from the target, and smoltcp has no room for.
//!
//! The target keeps 2,048 blocks right of RCV.NXT, smoltcp 32. SACK has reported all of them, so the peer does not send
//! them again, and dropping them would be reneging (RFC 2018 s8). The host keeps the highest. A segment that touches
//! one goes to smoltcp together with it, at once: so whatever fills the gap before a block, RCV.NXT never stands inside
//! of the block. If smoltcp has no room for the segment, it has none for the block either, and the peer sends the
//! segment again.
//!
//! Bound: what the target has promised, a window.

use alloc::vec::Vec;

use bytes::Bytes;
use offload_engine::{
    chimney::client::OffloadHandle,
    tcp::{Flags, SeqNum},
    time::Instant,
};
use smoltcp::socket::tcp;

use super::{Host, connection::Connection};
use crate::{
    handoff::PIECE_MAX,
    wire::{self, Acknowledgement, Frame, TcpFrame, Way},
};

impl Host {
    /// Has smoltcp process the segment, and what the host keeps of the blocks that it touches. False if there is
    /// none, and nothing is done. `window`: shown to smoltcp instead of the segment's.
    pub(super) fn process_with_kept(
        &mut self,
        now: Instant,
        handle: OffloadHandle,
        segment: &TcpFrame<'_>,
        window: Option<u16>,
    ) -> bool {
        let touched = self.connections.get(&handle).map(|connection| connection.touched(segment));
        let Some(touched) = touched.filter(|touched| !touched.is_empty()) else { return false };
        let said = Acknowledgement {
            seq: segment.seq,
            ack: segment.ack,
            window: window.unwrap_or(segment.window),
            timestamps: segment.timestamps,
            ece: false,
            fin: segment.flags.contains(Flags::FIN),
        };
        let macs = (segment.source_mac, segment.destination_mac);
        let way = Way { macs, from: segment.source, to: segment.destination };
        self.ingress(now, wire::data_frame(way, u8::MAX, &said, segment.payload()));
        for (seq, data) in &touched {
            for (index, piece) in data.chunks(PIECE_MAX).enumerate() {
                let seq = *seq + (index * PIECE_MAX) as u32;
                // smoltcp would answer what is old at once.
                if self.next_expected(handle).is_none_or(|next| ends(seq, piece).is_after(next)) {
                    let said = Acknowledgement { seq, fin: false, ..said };
                    self.ingress(now, wire::data_frame(way, u8::MAX, &said, piece));
                }
            }
        }
        let next = self.next_expected(handle);
        self.device.sent.retain(|frame| match wire::parse(frame) {
            // The last one says the same, or a delayed one will.
            Frame::Tcp(answer) => answer.is_reset() || Some(answer.ack) == next,
            _ => true,
        });
        let answers = self.device.sent.len();
        self.device.sent.drain(..answers.saturating_sub(1));
        self.send_down(now);
        if let (Some(connection), Some(next)) = (self.connections.get_mut(&handle), next) {
            connection.receive.beyond.retain(|(seq, data)| ends(*seq, data).is_after(next));
        }
        true
    }

    /// RCV.NXT.
    fn next_expected(&self, handle: OffloadHandle) -> Option<SeqNum> {
        let connection = self.connections.get(&handle)?;
        Some(connection.rcv_nxt(self.sockets.get::<tcp::Socket<'_>>(connection.socket)))
    }
}

fn ends(seq: SeqNum, data: &[u8]) -> SeqNum {
    seq + data.len() as u32
}

impl Connection {
    /// The kept blocks that data of the segment overlap or adjoin on the left.
    fn touched(&self, segment: &TcpFrame<'_>) -> Vec<(SeqNum, Bytes)> {
        let has = |flag| segment.flags.contains(flag);
        if !has(Flags::ACK) || has(Flags::SYN) || has(Flags::RST) || segment.payload_len == 0 {
            return Vec::new();
        }
        let mut end = segment.seq + segment.payload_len;
        let mut touched = Vec::new();
        for (seq, data) in &self.receive.beyond {
            let data_end = ends(*seq, data);
            // A block may be in several pieces.
            if seq.is_at_or_before(end) && segment.seq.is_before(data_end) {
                end = end.later(data_end);
                touched.push((*seq, data.clone()));
            }
        }
        touched
    }
}
