//! Data that smoltcp takes for sent, and that nothing will acknowledge.
//!
//! smoltcp probes a closed window only if nothing is in flight. Over data in flight its retransmission timer stops when
//! it expires, and does not become the persist timer; and a window that opens does not stop the timer. So the timer
//! expires on the stage, behind a closed window.

use offload_engine::{frame::FlowKey, tcp::SeqNum};
use smoltcp::{
    socket::tcp::{Socket, State},
    time::{Duration, Instant},
};

use super::stage::Stage;

/// Longer than any retransmission time-out of smoltcp's.
const BEYOND_RTO: Duration = Duration::from_secs(61);

/// True if a socket in this state reads the window of a segment that acknowledges nothing.
pub(crate) const fn can_rewind(state: State) -> bool {
    matches!(state, State::Established | State::CloseWait | State::FinWait1 | State::Closing)
}

/// The socket, with nothing in flight and a closed window. Its state is one of [`can_rewind`], data are in flight, and
/// no acknowledgement is due: it would be lost.
pub(crate) fn rewind(
    now: Instant,
    tuple: FlowKey,
    mut socket: Socket<'static>,
    (snd_una, rcv_nxt): (SeqNum, SeqNum),
) -> Socket<'static> {
    let (timeout, keep_alive) = (socket.timeout(), socket.keep_alive());
    socket.set_timeout(None);
    socket.set_keep_alive(None);
    let mut stage = Stage::new(now, tuple, 0);
    let slot = stage.enter(socket);
    let closed = stage.bare(rcv_nxt, snd_una, 0);
    stage.inject(now, &closed);
    // The first may be a fast retransmission, which a closed window has no use for.
    for count in 1..=2 {
        stage.listen(now + BEYOND_RTO * count);
    }
    let mut socket = stage.leave(slot);
    socket.set_timeout(timeout);
    socket.set_keep_alive(keep_alive);
    socket
}
