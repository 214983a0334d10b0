//! Segment parts that smoltcp does not process by itself.
//!
//! RFC 9293 §3.10.7.4 lets a receiver trim a segment to the part that begins at RCV.NXT. smoltcp trims data, but does
//! not process the following:
//!
//! * The acknowledgment of a segment outside its window. It answers such a segment and drops it. But its own
//!   retransmission timeout rewinds SND.NXT, which is the sequence number of its acknowledgments. After losses in both
//!   directions all segments of two such peers precede the other's RCV.NXT, so neither processes the other's
//!   acknowledgments.
//! * A FIN after data that it already has. A FIN does not count in its window test.
//! * A sign of liveness: a keep-alive probe, or the answer to one from the right edge of the window. Two peers that
//!   probe each other answer, and thereby postpone their own probes, until one declares the other dead.
//! * A FIN alone in flight: the third duplicate acknowledgment stops the retransmission timer, and fast
//!   retransmission, which covers only data, sends nothing. The FIN is never retransmitted.
//!
//! So the acknowledgment and the FIN of a segment outside the window are processed first, in an empty segment at
//! RCV.NXT. 4.4BSD does the same: it answers an old segment and processes its acknowledgment. The segment itself
//! follows and is answered. A duplicate acknowledgment is withheld from smoltcp if its only effect would be to stop
//! the timer.

use alloc::vec::Vec;

use offload_engine::tcp::{Flags, SeqNum};
use smoltcp::socket::tcp::{Socket, State};

use crate::{
    observer::Flow,
    wire::{Segment, empty_frame},
};

/// Largest value of the window field.
const WINDOW_FIELD_MAX: u32 = 0xffff;

/// Frames passed to smoltcp for one segment.
#[derive(Debug)]
pub(crate) struct SegmentFrames {
    /// Frame passed first.
    pub(crate) ahead: Option<Vec<u8>>,
    /// True if the segment itself follows.
    pub(crate) whole: bool,
}

/// Sequence variables of a connection in smoltcp, by byte count; `fin_received`: RCV.NXT is after the peer's FIN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeqState {
    pub(crate) snd_una: SeqNum,
    pub(crate) rcv_nxt: SeqNum,
    pub(crate) fin_received: bool,
}

/// Selects the frames for a segment, before `flow` and `socket` process it.
pub(crate) fn retrieve(
    segment: &Segment<'_>,
    flow: &Flow,
    socket: &Socket<'_>,
    seq_state: SeqState,
) -> SegmentFrames {
    let as_it_is = SegmentFrames { ahead: None, whole: true };
    let Some(scale) = flow.receive_scale().filter(|_| is_synchronized(socket.state())) else {
        return as_it_is;
    };
    let controls = [Flags::SYN, Flags::RST].map(|flag| segment.flags.contains(flag));
    if !segment.flags.contains(Flags::ACK) || controls != [false; 2] {
        return as_it_is;
    }
    let SeqState { snd_una, rcv_nxt, fin_received } = seq_state;
    let is_new = segment.ack.is_after(snd_una);
    // RFC 5961 §5.2: acknowledgments of unsent data are ignored. Old segments, FIN included, are within a window of
    // RCV.NXT; a peer that has filled the window sends from its right edge.
    let oldest = rcv_nxt - (WINDOW_FIELD_MAX << scale) - 1;
    if segment.ack.is_before(snd_una)
        || segment.ack.is_after(flow.snd_max)
        || segment.seq.is_before(oldest)
        || segment.seq.is_after(flow.right_edge)
    {
        return as_it_is;
    }
    let has_fin = segment.flags.contains(Flags::FIN);
    let is_empty = segment.payload_len == 0;
    // Nothing is in flight, so it cannot count as a duplicate. Once its FIN is due, smoltcp waits only for its
    // acknowledgment.
    let may_idle =
        matches!(socket.state(), State::Established | State::CloseWait | State::FinWait2);
    let is_keep_alive = flow.stack_max == snd_una && may_idle;
    if is_empty && !has_fin && !is_new && !is_keep_alive && segment.seq.is_at_or_after(rcv_nxt) {
        let waits_for_fin = matches!(socket.state(), State::FinWait1 | State::Closing);
        return SegmentFrames { ahead: None, whole: !waits_for_fin || socket.send_queue() > 0 };
    }
    // smoltcp's window ends less than one unit of the scale before the right edge.
    let room = flow.right_edge.distance(rcv_nxt) >= 1 << scale;
    let is_read = segment.seq == rcv_nxt && (is_empty || room);
    let brings_fin = has_fin && !fin_received && segment.seq + segment.payload_len == rcv_nxt;
    if is_read || !(is_new || brings_fin || is_keep_alive) {
        return as_it_is;
    }
    // The segment has no further content, and processed twice it would count as a duplicate.
    let is_spent = is_new && is_empty && segment.seq.is_after(rcv_nxt);
    SegmentFrames { ahead: empty_frame(segment, rcv_nxt, brings_fin), whole: !is_spent }
}

/// True if both SYNs are acknowledged, and the connection is not closed (RFC 9293 §3.3.2).
const fn is_synchronized(state: State) -> bool {
    !matches!(state, State::Closed | State::Listen | State::SynSent | State::SynReceived)
}
