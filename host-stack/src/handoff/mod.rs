//! Export of a live connection from an unmodified smoltcp, and import into it.
//!
//! A `tcp::Socket` holds no reference to an interface, and removing it from its set sends neither RST nor FIN. So both
//! directions exchange synthetic segments with the socket on a private, in-memory interface ([`stage`]) with its own
//! clock. No segment of this exchange reaches the wire.
//!
//! * [`export`](mod@export): reads the state. A challenge ACK reports SND.NXT, RCV.NXT and the window; SACK blocks
//!   report the data beyond RCV.NXT. About 1 us for an idle connection.
//! * [`import`](mod@import): replays the state. A fresh socket performs a handshake, with an ISN that continues the
//!   connection's sequence numbers ([`isn`]), and then receives and sends the data in flight.
//! * [`rewind`](mod@rewind): marks data sent into a closed window as unsent.
//! * [`accept`](mod@accept): a listening socket processes a SYN that the host has already answered.
//!
//! State that smoltcp does not expose is recorded by the [`observer`](crate::observer).
//!
//! P1 to P14 in comments are pitfalls of the handoff; `docs/conformance/chimney.md` lists them.

pub(crate) mod accept;
pub(crate) mod export;
pub(crate) mod import;
mod isn;
pub(crate) mod rewind;
mod stage;

pub(crate) use self::stage::take;

/// Maximum bytes injected at once: below the largest IP packet (65 535) with its headers.
pub(crate) const PIECE_MAX: usize = 32 * 1024;

/// Maximum out-of-order blocks of smoltcp's assembler (`assembler-max-segment-count-32`).
const BLOCKS_MAX: usize = 32;

#[cfg(test)]
mod tests;
