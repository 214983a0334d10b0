//! Copies of net buffer data into the send buffers of sockets.

use offload_engine::memory::Piece;
use smoltcp::socket::tcp::Socket;

/// Copies the front of `piece` into the socket, as far as there is room. Returns the number of bytes: 0 if the socket
/// cannot send.
pub(crate) fn send_piece(socket: &mut Socket<'_>, piece: Piece<'_>) -> usize {
    let mut sent = 0;
    loop {
        let rest = piece.split_at(sent).1;
        // The free space may be in two parts: the buffer is a ring.
        let copy = |room: &mut [u8]| {
            let front = rest.truncated(room.len());
            front.read(&mut room[..front.len()]);
            (front.len(), front.len())
        };
        let count = socket.send(copy).unwrap_or(0);
        sent += count;
        if count == 0 || sent == piece.len() {
            return sent;
        }
    }
}
