//! Reset of connections whose local process has died.
//!
//! An RST must carry the peer's RCV.NXT (RFC 5961 §3.2), which is unknown after the process died. So each peer is sent
//! a probe: an acknowledgment outside its window. The peer replies with an acknowledgment (RFC 9293 §3.10.7.4), whose
//! number the RST needs (RFC 9293 §3.10.7.1). A peer without the connection replies to a probe with an RST, which
//! confirms that an earlier reset has arrived. Any other segment of a peer for one of the connections is also answered
//! by an RST. Queries for the node's link-layer address are answered with that address.
//!
//! Timers: an unanswered probe is repeated after [`PAUSES`]; then the connection is abandoned.

use std::{collections::HashMap, io, net::SocketAddr, time::Duration};

use host_stack::dad;
use offload_engine::{
    link::{Link, RxBatch, TxFrame, TxOffload},
    state::MacAddress,
    time::Instant,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    segment::{ACK, FIN, Octets, RST, SYN, Segment},
    table::Connection,
};
use crate::NodeOptions;

/// Pause after each probe. Kernels reply to such segments of one connection at most twice a second
/// (tcp_invalid_ratelimit).
const PAUSES: [Duration; 5] = [
    Duration::from_millis(20),
    Duration::from_millis(80),
    Duration::from_millis(400),
    Duration::from_millis(500),
    Duration::from_millis(500),
];
/// Maximum number of frames received per call.
const FRAMES_MAX: usize = 64;
/// Half of the sequence space: of two numbers this far apart, at most one is in a window.
const HALF: u32 = 1 << 31;

type Left = HashMap<(SocketAddr, SocketAddr), Connection>;

/// Resets the connections `left` of the node with the Ethernet address `own`. Returns when each peer has confirmed the
/// reset, or has not replied to any probe.
///
/// # Errors
/// The device was removed.
pub(super) fn reset(
    link: &mut dyn Link,
    own: Octets,
    options: &NodeOptions,
    left: &[Connection],
) -> io::Result<()> {
    let mut left: Left = left.iter().map(|it| ((it.local, it.remote), *it)).collect();
    let mut batch = RxBatch::new(FRAMES_MAX);
    let is_own = |ip| options.addresses.iter().any(|prefix| prefix.address() == ip);
    for (round, pause) in (0..).zip(PAUSES) {
        for connection in left.values() {
            send(link, probe(own, connection, round).frame());
        }
        link.flush(Instant::ZERO);
        let deadline = std::time::Instant::now() + pause;
        while !left.is_empty() && wait(link, deadline)? {
            batch.clear();
            link.receive(Instant::ZERO, &mut batch)?;
            for frame in batch.frames() {
                if let Some(reply) = dad::answer(frame.data, MacAddress(own), is_own) {
                    send(link, Some(reply));
                } else if let Some(segment) = Segment::of(frame.data) {
                    for reply in replies_to(&mut left, own, &segment, round) {
                        send(link, reply.frame());
                    }
                }
            }
            link.flush(Instant::ZERO);
        }
        if left.is_empty() {
            break;
        }
    }
    Ok(())
}

/// Creates a probe: an acknowledgment that no peer accepts. In one of two rounds both numbers are outside of any
/// window.
fn probe(own: Octets, connection: &Connection, round: u32) -> Segment {
    let Connection { hop, local, remote, iss } = *connection;
    let seq = iss.wrapping_add(HALF.wrapping_mul(round));
    let (source, destination) = (local, remote);
    Segment { to: hop, from: own, source, destination, seq, ack: seq, flags: ACK, len: 0 }
}

/// Returns the replies to a peer's segment: an RST, and a probe to confirm its arrival.
fn replies_to(left: &mut Left, own: Octets, segment: &Segment, round: u32) -> Vec<Segment> {
    let ends = (segment.destination, segment.source);
    if segment.flags & RST != 0 {
        left.remove(&ends);
        return Vec::new();
    }
    let Some(connection) = left.get_mut(&ends) else { return Vec::new() };
    connection.hop = segment.from;
    // RFC 9293 §3.10.7.1
    let consumed = u32::from(segment.flags & SYN != 0) + u32::from(segment.flags & FIN != 0);
    let (seq, ack, flags) = match segment.flags & ACK {
        0 => (0, segment.seq.wrapping_add(segment.len).wrapping_add(consumed), RST | ACK),
        _ => (segment.ack, 0, RST),
    };
    let reset = Segment { seq, ack, flags, ..probe(own, connection, round) };
    vec![reset, probe(own, connection, round)]
}

fn send(link: &mut dyn Link, frame: Option<Vec<u8>>) {
    let Some(frame) = frame else { return };
    let frame = TxFrame {
        offload: TxOffload::default(),
        head: &frame,
        payload: &[],
        lender: None,
        comment: None,
    };
    // A dropped frame needs no handling: the probe is repeated.
    link.transmit(Instant::ZERO, &frame);
}

/// Waits for frames. Returns false when the deadline has passed.
fn wait(link: &dyn Link, deadline: std::time::Instant) -> io::Result<bool> {
    let Some(descriptor) = link.descriptor() else { return Ok(false) };
    let left = deadline.saturating_duration_since(std::time::Instant::now());
    let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
    let mut ready = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    match poll(&mut ready, Some(&timeout)) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection() -> Connection {
        let [local, remote] = ["10.0.0.1:5000", "10.0.0.2:6000"].map(|end| end.parse().unwrap());
        Connection { hop: [2, 0, 0, 0, 0, 2], local, remote, iss: 77 }
    }

    fn of_peer(flags: u8, seq: u32, ack: u32) -> Segment {
        let Connection { hop, local, remote, .. } = connection();
        let (to, source, destination) = ([2, 0, 0, 0, 0, 1], remote, local);
        Segment { to, from: hop, source, destination, seq, ack, flags, len: 0 }
    }

    // RFC 9293 §3.10.7.1: the RST has the number that the peer acknowledges, and so its RCV.NXT.
    #[test]
    fn segment_is_answered_by_a_reset_with_the_expected_number() {
        let own = [2, 0, 0, 0, 0, 1];
        let one = connection();
        let mut left = Left::from([((one.local, one.remote), one)]);
        let replies = replies_to(&mut left, own, &of_peer(ACK, 500, 9000), 0);
        assert_eq!((replies[0].flags, replies[0].seq), (RST, 9000));
        assert_eq!((replies[0].destination, replies[0].to), (one.remote, one.hop));
        assert_eq!((replies[1].flags, replies[1].seq), (ACK, 77));
        let replies = replies_to(&mut left, own, &of_peer(SYN, 500, 0), 0);
        assert_eq!((replies[0].flags, replies[0].seq, replies[0].ack), (RST | ACK, 0, 501));
        let stranger = Segment { source: "10.0.0.3:6000".parse().unwrap(), ..of_peer(ACK, 1, 1) };
        assert_eq!(replies_to(&mut left, own, &stranger, 0), []);
        assert_eq!(replies_to(&mut left, own, &of_peer(RST, 77, 0), 0), []);
        assert!(left.is_empty(), "the peer has closed the connection");
    }

    #[test]
    fn one_of_two_probes_is_outside_of_any_window() {
        let [even, odd] = [0, 1].map(|round| probe([0; 6], &connection(), round).seq);
        assert_eq!(odd.wrapping_sub(even), HALF);
        assert_eq!(probe([0; 6], &connection(), 2).seq, even);
    }
}
