//! One connection of the offloaded TCP against an adversary, judged by a model; and iWARP against arbitrary octets
//! ([`iwarp`]).
//!
//! A *run* is a [`script::Setup`] and a list of [`script::Op`]: segments that a peer, a forger or a broken
//! network could send at any moment, mixed with requests, refusals of the consumer, timers and time. The
//! model knows the true byte at every place of both streams and what has been advertised, sent and
//! acknowledged; after each step it checks what it was given:
//!
//! - nothing panics; bytes reach the consumer in order, each of them the true one, none from beyond the
//!   advertised window, none from a segment that had to be dropped (RFC 9293 §3.10.7.4);
//! - what is sent is legal: within the peer's window but for a probe of one byte, never more than was
//!   posted, exactly what was posted; the acknowledgement is RCV.NXT; the right edge never moves left
//!   (RFC 9293 §3.8.6) but for the scale's rounding, and what was told is honoured (RFC 7323 §2.4); SACK
//!   blocks tell of bytes that are held, and that stay held (RFC 2018 §8);
//! - completions come once and in order; only a RST at exactly RCV.NXT resets (RFC 5961 §3.2);
//! - what is unacknowledged has a timer, at most the largest RTO away;
//! - at the end the peer turns honest, and resends nothing that a SACK block ever covered: both streams
//!   arrive whole and the connection closes.
//!
//! Forged data inside the window cannot be told from the peer's (RFC 5961 §1.1), so it carries true bytes;
//! wherever a segment or a part of it must not count, its bytes are false.
//!
//! Runs come from seeds ([`random`]), from captures ([`capture`]) and from libFuzzer; all three are written
//! as fixed records of bytes, so that every input is a run and mutations keep their neighbours' meaning.

pub mod capture;
pub mod frames;
pub mod iwarp;
mod model;
pub mod random;
pub mod script;
pub mod shrink;
pub mod verbs;

pub use model::{Summary, run};
