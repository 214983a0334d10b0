//! Shared object that connects [packetdrill](https://github.com/google/packetdrill) with host stack and offload
//! engine: no TAP, no root, on virtual time.
//!
//! | file | content |
//! |---|---|
//! | `abi` | functions that packetdrill calls: C on one side, `Result` on the other |
//! | `instance` | driver of the virtual clock, and blocking calls |
//! | `sockets`, `sockopt`, `info` | system calls on streams |
//! | `client` | delivery of received data |
//! | `machine` | the node under test and its clock |
//! | `wire`, `options` | conversion between IP packets and Ethernet frames |
//! | `settings` | `--so_flags` |
//! | `caller` | the same table for a caller in Rust |
//!
//! See `docs/contributing/packetdrill.md` to run scripts with it.

mod abi;
mod caller;
mod client;
mod info;
mod instance;
mod machine;
mod options;
mod settings;
mod sockets;
mod sockopt;
mod wire;

pub use abi::{getsockopt, mlockall, packetdrill_interface_init};
pub use caller::{Adapter, PollDescriptor};
