//! The host: smoltcp (ARP, neighbor discovery, ICMP, handshakes, un-offloaded TCP), sockets before and
//! after offload, and the host's half of the chimney.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

pub mod socket;
#[cfg(feature = "std")]
pub mod stream;
