//! Import of a handshake conducted by the host: a listening socket processes the SYN on a private interface, and draws
//! the initial sequence number of the SYN-ACK already sent.

use offload_engine::{frame::FlowKey, tcp::SeqNum};
use smoltcp::{socket::tcp::Socket, time::Instant, wire::TcpControl};

use super::{
    isn::{SALTS, seed_for},
    stage::Stage,
};

/// Socket in SYN-RECEIVED that has sent its SYN-ACK with sequence number `iss` at `sent_at`. `listening` creates a
/// socket in LISTEN; `syn` is the peer's SYN, an IP packet. `None`: smoltcp has rejected the SYN.
pub(crate) fn accept(
    sent_at: Instant,
    tuple: FlowKey,
    iss: SeqNum,
    syn: &[u8],
    listening: impl Fn() -> Option<Socket<'static>>,
) -> Option<Socket<'static>> {
    (0..SALTS).find_map(|salt| {
        let mut stage = Stage::new(sent_at, tuple, seed_for(iss.0, salt));
        let socket = stage.add_socket(listening()?);
        stage.inject_packet(sent_at, syn.to_vec());
        let answers = stage.poll(sent_at);
        let answer = answers.first()?;
        (answer.control == TcpControl::Syn && answer.seq == iss).then(|| stage.into_socket(socket))
    })
}
