//! Makes smoltcp read the parts of a segment that it would leave unread.
//!
//! RFC 9293 §3.10.7.4 lets a receiver trim a segment to what begins at RCV.NXT. smoltcp trims data, but leaves
//! some things unread:
//!
//! * The acknowledgement of a segment outside its window. It answers such a segment and drops it. But its own
//!   retransmission time-out rewinds SND.NXT, from which its acknowledgements take their sequence number. After losses
//!   both ways everything that either of two such ends sends lies before the other's RCV.NXT, and neither
//!   ever learns that its data have arrived.
//! * A FIN behind data that it has already. A FIN does not count in its test of the window.
//! * A sign of life: a keep-alive probe, or the answer to one from the right edge of the window. Two ends that probe
//!   each other answer, and by that put off their own probes, until either takes the other for dead.
//! * That a FIN alone is in flight: the third duplicate acknowledgement then stops the retransmission timer, and
//!   fast retransmission, which only knows data, sends nothing. The FIN is never sent again.
//!
//! So of a segment outside the window the acknowledgement and the FIN go ahead, in an empty segment at RCV.NXT, as in
//! 4.4BSD, which answers an old segment and yet takes its acknowledgement. The segment follows for its answer. A
//! duplicate acknowledgement is kept from smoltcp if it can only stop the timer.

use alloc::vec::Vec;

use offload_engine::tcp::{Flags, SeqNum};
use smoltcp::socket::tcp::{Socket, State};

use crate::{
    observer::Flow,
    wire::{Segment, empty_frame},
};

/// Largest value of the window field.
const WINDOW_FIELD_MAX: u32 = 0xffff;

/// The frames that smoltcp is given for a segment.
#[derive(Debug)]
pub(crate) struct Given {
    /// First this frame.
    pub(crate) ahead: Option<Vec<u8>>,
    /// Then the segment itself.
    pub(crate) whole: bool,
}

/// Sequence variables of a connection of smoltcp's, by counting; `fin_heard`: RCV.NXT is behind the peer's FIN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SeqState {
    pub(crate) snd_una: SeqNum,
    pub(crate) rcv_nxt: SeqNum,
    pub(crate) fin_heard: bool,
}

/// Looks at a segment of a connection before `flow` and `socket` see it.
pub(crate) fn retrieve(
    segment: &Segment<'_>,
    flow: &Flow,
    socket: &Socket<'_>,
    standing: SeqState,
) -> Given {
    let as_it_is = Given { ahead: None, whole: true };
    let Some(scale) = flow.receive_scale().filter(|_| is_synchronized(socket.state())) else {
        return as_it_is;
    };
    let controls = [Flags::SYN, Flags::RST].map(|flag| segment.flags.contains(flag));
    if !segment.flags.contains(Flags::ACK) || controls != [false; 2] {
        return as_it_is;
    }
    let SeqState { snd_una, rcv_nxt, fin_heard } = standing;
    let is_new = segment.ack.is_after(snd_una);
    // RFC 5961 §5.2: nothing that was not sent. What is old lies within a window, and with its FIN, of RCV.NXT; a
    // peer that has filled the window sends from its right edge.
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
    // Nothing is in flight, so it cannot be counted as a duplicate. Once its FIN is due, smoltcp waits for that alone.
    let may_idle =
        matches!(socket.state(), State::Established | State::CloseWait | State::FinWait2);
    let is_sign_of_life = flow.stack_max == snd_una && may_idle;
    if is_empty && !has_fin && !is_new && !is_sign_of_life && segment.seq.is_at_or_after(rcv_nxt) {
        let waits_for_fin = matches!(socket.state(), State::FinWait1 | State::Closing);
        return Given { ahead: None, whole: !waits_for_fin || socket.send_queue() > 0 };
    }
    // smoltcp's window ends less than a unit of the scale before the right edge.
    let room = flow.right_edge.distance(rcv_nxt) >= 1 << scale;
    let is_read = segment.seq == rcv_nxt && (is_empty || room);
    let brings_fin = has_fin && !fin_heard && segment.seq + segment.payload_len == rcv_nxt;
    if is_read || !(is_new || brings_fin || is_sign_of_life) {
        return as_it_is;
    }
    // It holds nothing more, and read twice it would count as a duplicate.
    let is_spent = is_new && is_empty && segment.seq.is_after(rcv_nxt);
    Given { ahead: empty_frame(segment, rcv_nxt, brings_fin), whole: !is_spent }
}

/// Both SYNs are acknowledged, and the connection is not over (RFC 9293 §3.3.2).
const fn is_synchronized(state: State) -> bool {
    !matches!(state, State::Closed | State::Listen | State::SynSent | State::SynReceived)
}
