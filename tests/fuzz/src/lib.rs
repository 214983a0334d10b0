//! One connection of the offload engine against an adversary, checked by a model; and iWARP with arbitrary
//! octets ([`iwarp`]).
//!
//! A *run* is a [`script::Setup`] and a list of [`script::Op`]. Segments that a peer, an attacker or
//! a broken network could send at any time are mixed with requests, refusals by the consumer, timers and time.
//! The model has the true byte of every offset of both streams, and the state that was advertised,
//! sent and acknowledged. After each step it checks these rules:
//!
//! - No panic. Bytes are delivered to the consumer in order and unmodified. No byte is from beyond the
//!   advertised window, or from a segment that must be dropped (RFC 9293 §3.10.7.4).
//! - Sent segments are legal. They are within the peer's window except for a probe of one byte, and carry
//!   exactly the posted bytes. The acknowledgment is RCV.NXT. The right edge never moves left (RFC 9293 §3.8.6)
//!   except for the scale's rounding, and advertised windows are honored (RFC 7323 §2.4). SACK blocks cover
//!   bytes that are held, and that stay held (RFC 2018 §8).
//! - Completions occur once and in order. Only an RST at exactly RCV.NXT resets (RFC 5961 §3.2).
//! - Unacknowledged data has a timer, which expires within the maximum RTO.
//! - At the end the peer conforms to the RFCs, and retransmits nothing that a SACK block ever covered. Both streams
//!   complete and the connection closes.
//!
//! Forged data inside the window cannot be distinguished from the peer's (RFC 5961 §1.1), so it carries true
//! bytes. If a segment or a part of it must be ignored, its bytes are false.
//!
//! Runs are generated from seeds ([`random`]), from captures ([`capture`]) and by libFuzzer. All three are
//! encoded as fixed-size records, so that every input is a run, and a mutation keeps the meaning of the other
//! records.

pub mod capture;
pub mod frames;
pub mod iwarp;
mod model;
pub mod modify;
pub mod random;
pub mod script;
pub mod shrink;
pub mod verbs;

pub use model::{Summary, run};
