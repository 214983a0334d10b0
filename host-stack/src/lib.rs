//! Host stack: smoltcp (ARP, neighbor discovery, ICMP, handshakes, un-offloaded TCP), sockets before and after offload,
//! and the host's half of the chimney.
//!
//! * [`host`]: the host stack as a passive object, with its offload policy.
//! * [`offload_policy`]: details of the policy, and minimum time in the host after an upload.
//! * [`socket`]: requests of its clients, and notices to them.
//! * [`dad`]: duplicate address detection.
//! * [`switch`]: order of a client's sends while its connection migrates.
//! * [`frame_log`]: a link whose frames are logged.
//! * `cookie`: initial sequence numbers, and SYN cookies.
//! * `copy`: copies of net buffer data into sockets.
//! * `handoff`: export of a live connection from an unmodified smoltcp, and import into it.
//! * `observer`: variables of a connection that only the wire shows.
//! * `retrieve`: segment parts that smoltcp does not process by itself.
//! * `window`: window scale on the wire that is larger than smoltcp's.
//!
//! The host stack needs `std`: its interfaces are channels and doorbells. `cookie`, `handoff`, `observer`, `retrieve`,
//! `switch` and `window` are pure. The private ones would be dead code in a build without `std`, so
//! `tests/tidy/modules.rs` checks that none of them uses the operating system.
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
