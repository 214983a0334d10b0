//! The host: smoltcp (ARP, neighbor discovery, ICMP, handshakes, un-offloaded TCP), sockets before and
//! after offload, and the host's half of the chimney.
//!
//! * [`host`]: the host stack as a passive object, and its policy of what is offloaded when.
//! * [`offload_policy`]: the policy's details, and how long what came back stays.
//! * [`socket`]: what its clients ask and are told.
//! * `copy`: data of net buffers into sockets.
//! * `handoff`: how a live connection leaves an unmodified smoltcp, and re-enters it.
//! * `observer`: what only the wire can tell of a connection.
//! * `retrieve`: makes smoltcp read the parts of a segment that it would leave unread.
//! * `window`: a larger window scale on the wire than smoltcp's.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

#[cfg(feature = "std")]
mod clock;
#[cfg(feature = "std")]
mod copy;
#[cfg(feature = "std")]
mod device;
#[cfg(feature = "std")]
mod handoff;
#[cfg(feature = "std")]
pub mod host;
#[cfg(feature = "std")]
pub mod node;
#[cfg(feature = "std")]
mod observer;
pub mod offload_policy;
#[cfg(feature = "std")]
mod retrieve;
#[cfg(feature = "std")]
pub mod simulation;
pub mod socket;
#[cfg(feature = "std")]
pub mod stream;
#[cfg(feature = "std")]
mod window;
#[cfg(feature = "std")]
mod wire;
