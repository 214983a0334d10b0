//! How a live connection leaves an unmodified smoltcp, and re-enters it.
//!
//! A `tcp::Socket` holds no reference to an interface, and taking it out of its set sends nothing: no RST,
//! no FIN. So both directions hold a synthetic conversation with the socket in a private, in-memory
//! interface ([`stage`]) with a clock of its own; nothing of it reaches the wire.
//!
//! * [`export`](mod@export): interrogation. A challenge ACK shows SND.NXT, RCV.NXT and the window; SACK blocks show
//!   the bytes beyond RCV.NXT. About 1 us for an idle connection.
//! * [`import`](mod@import): replay. A fresh socket is led through a handshake, with an ISN chosen so that its
//!   sequence numbers continue the connection's ([`isn`]), and through what is in flight.
//! * [`rewind`](mod@rewind): what was sent into a window that has closed counts as unsent.
//! * [`accept`](mod@accept): a listening socket takes a SYN that the host has already answered.
//!
//! What smoltcp does not reveal, the [`observer`](crate::observer) has recorded.
//!
//! P1 to P14 in comments are pitfalls of the hand-over; `docs/conformance/chimney.md` lists them.

pub(crate) mod accept;
pub(crate) mod export;
pub(crate) mod import;
mod isn;
pub(crate) mod rewind;
mod stage;

pub(crate) use self::stage::take;

/// Most bytes injected at once: below the largest IP packet (65 535) with its headers.
pub(crate) const PIECE_MAX: usize = 32 * 1024;

/// Out-of-order blocks that smoltcp's assembler holds (`assembler-max-segment-count-32`).
const BLOCKS_MAX: usize = 32;

#[cfg(test)]
mod tests;
