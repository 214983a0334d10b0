//! The host: smoltcp (ARP, neighbor discovery, ICMP, handshakes, un-offloaded TCP), sockets before and
//! after offload, and the host's half of the chimney.
//!
//! * [`host`]: the host stack as a passive object, and its policy of what is offloaded when.
//! * [`offload_policy`]: the policy's details, and how long a connection stays after an upload.
//! * [`socket`]: requests of its clients, and notices to them.
//! * [`dad`]: duplicate address detection.
//! * [`switch`]: order of what a client sends while its connection moves.
//! * [`frame_log`]: a link whose frames are logged.
//! * `cookie`: initial sequence numbers, and SYN cookies.
//! * `copy`: data of net buffers into sockets.
//! * `handoff`: how a live connection leaves an unmodified smoltcp, and re-enters it.
//! * `observer`: variables of a connection that only the wire shows.
//! * `retrieve`: makes smoltcp read the parts of a segment that it would leave unread.
//! * `window`: a larger window scale on the wire than smoltcp's.
//!
//! The host stack needs `std`: its boundaries are channels and doorbells. Below it `cookie`, `handoff`, `observer`,
//! `retrieve`, `switch` and `window` are pure; the private ones would be dead code in a build without it, so
//! `tests/tidy/modules.rs` checks that nothing of them reaches an operating system.
#![forbid(unsafe_code)]
#![no_std]

extern crate alloc;
extern crate std;

mod clock;
mod cookie;
mod copy;
pub mod dad;
mod device;
pub mod frame_log;
mod handoff;
pub mod host;
pub mod node;
mod observer;
pub mod offload_policy;
mod retrieve;
#[cfg(any(test, feature = "simulation"))]
pub mod simulation;
pub mod socket;
pub mod stream;
pub mod switch;
mod window;
mod wire;
