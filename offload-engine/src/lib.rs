//! The offload target: a TAP link, the offloaded TCP data path, and the target's half of the chimney.
//!
//! The protocol cores ([`memory`], [`nbl`], [`state`], [`frame`], [`tcp`], [`chimney`]) are pure: no clock, no I/O, no
//! thread, no lock. They build as `no_std` + `alloc` with `--no-default-features`. The shell around
//! them (`link`, `engine`) needs `std` and is the only place that reads a device or waits.
#![no_std]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

pub mod chimney;
#[cfg(feature = "std")]
pub mod engine;
pub mod frame;
#[cfg(feature = "std")]
pub mod link;
pub mod memory;
pub mod nbl;
mod segment;
pub mod state;
pub mod status;
#[cfg(feature = "std")]
pub mod sync;
pub mod tcp;
pub mod time;
