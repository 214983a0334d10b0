//! Out-of-order data of an uploaded connection that do not fit into smoltcp.
//!
//! The target stores 2,048 blocks right of RCV.NXT, smoltcp 32. SACK has reported all of them, so the peer does not
//! retransmit them, and dropping them would be reneging (RFC 2018 §8). The host stores the highest. When a segment
//! advances RCV.NXT to one of them, that block is passed to smoltcp too, and only then is the segment acknowledged.
//!
//! Bound: the advertised window. Each block is passed once.

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
    wire::{self, Acknowledgment, Frame, Segment},
};

impl Host {
    /// Passes a data segment to smoltcp, then the stored blocks that follow it. Returns false, and does nothing, if
    /// none are stored. `window` replaces the segment's window.
    pub(super) fn process_with_kept(
        &mut self,
        now: Instant,
        handle: OffloadHandle,
        segment: &Segment<'_>,
        window: Option<u16>,
    ) -> bool {
        let has = |flag| segment.flags.contains(flag);
        let is_plain = has(Flags::ACK) && !has(Flags::SYN) && !has(Flags::RST);
        let keeps = self.connections.get(&handle).is_some_and(Connection::keeps_blocks);
        if !keeps || !is_plain || segment.payload_len == 0 {
            return false;
        }
        let &Segment { seq, ack, timestamps, .. } = segment;
        let window = window.unwrap_or(segment.window);
        let ack = Acknowledgment { seq, ack, window, timestamps, ece: false, fin: has(Flags::FIN) };
        let way = segment.way();
        self.ingress(now, wire::data_frame(way, u8::MAX, &ack, segment.frame.payload()));
        while let Some((seq, data)) = self.take_next(handle) {
            for (index, piece) in data.chunks(PIECE_MAX).enumerate() {
                let seq = seq + (index * PIECE_MAX) as u32;
                let ack = Acknowledgment { seq, fin: false, ..ack };
                self.ingress(now, wire::data_frame(way, u8::MAX, &ack, piece));
            }
        }
        // Sends only the last answer, if it acknowledges everything; otherwise a delayed ACK follows.
        let next = self.next_expected(handle);
        self.device.sent.retain(|frame| match wire::parse(frame) {
            Frame::Tcp(answer) => answer.is_reset() || Some(answer.ack) == next,
            _ => true,
        });
        let answers = self.device.sent.len();
        self.device.sent.drain(..answers.saturating_sub(1));
        self.pass_sent_frames(now);
        true
    }

    /// RCV.NXT.
    fn next_expected(&self, handle: OffloadHandle) -> Option<SeqNum> {
        let connection = self.connections.get(&handle)?;
        Some(connection.rcv_nxt(self.sockets.get::<tcp::Socket<'_>>(connection.socket)))
    }

    /// Removes the lowest block if RCV.NXT has reached it.
    fn take_next(&mut self, handle: OffloadHandle) -> Option<(SeqNum, Bytes)> {
        let next = self.next_expected(handle)?;
        let beyond = &mut self.connections.get_mut(&handle)?.receive.beyond;
        while beyond.front()?.0.is_at_or_before(next) {
            let (seq, data) = beyond.pop_front()?;
            let known = usize::try_from(next.distance(seq)).unwrap_or(0);
            if known < data.len() {
                return Some((next, data.slice(known..)));
            }
        }
        None
    }
}

impl Connection {
    fn keeps_blocks(&self) -> bool {
        !self.receive.beyond.is_empty()
    }
}
