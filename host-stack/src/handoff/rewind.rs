//! Rewind of data that smoltcp considers sent and that the peer will not acknowledge.
//!
//! smoltcp probes a closed window only if nothing is in flight. With data in flight its retransmission timer stops at
//! expiry and does not become the persist timer; an opening window does not stop the timer. So the timer is made to
//! expire on the stage, with a closed window.

use offload_engine::{frame::FlowKey, tcp::SeqNum};
use smoltcp::{
    socket::tcp::{Socket, State},
    time::{Duration, Instant},
};

use super::stage::Stage;

/// Longer than smoltcp's maximum retransmission timeout.
const BEYOND_RTO: Duration = Duration::from_secs(61);

/// True if a socket in this state processes the window of a segment that acknowledges nothing.
pub(crate) const fn can_rewind(state: State) -> bool {
    matches!(state, State::Established | State::CloseWait | State::FinWait1 | State::Closing)
}

/// Returns the socket with nothing in flight and a closed window. Its state satisfies [`can_rewind`], data is in
/// flight, and no acknowledgment is due: it would be lost.
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
    let slot = stage.add_socket(socket);
    let closed = stage.bare(rcv_nxt, snd_una, 0);
    stage.inject(now, &closed);
    // The first may be a fast retransmission, which has no effect with a closed window.
    for count in 1..=2 {
        stage.poll(now + BEYOND_RTO * count);
    }
    let mut socket = stage.into_socket(slot);
    socket.set_timeout(timeout);
    socket.set_keep_alive(keep_alive);
    socket
}
