//! A shared object through which [packetdrill](https://github.com/google/packetdrill) drives host stack
//! and offload engine: no TAP, no root, on virtual time.
//!
//! | file | question |
//! |---|---|
//! | `abi` | what packetdrill calls: C on one side, `Result` on the other |
//! | `instance` | who may let time go by, and who waits |
//! | `sockets`, `sockopt`, `info` | system calls on streams |
//! | `client` | what of the received data goes up, and when |
//! | `machine` | the node under test and its clock |
//! | `wire`, `options` | IP packets there, Ethernet frames here |
//! | `settings` | `--so_flags` |
//! | `caller` | the same table for a caller in Rust |
//!
//! `docs/contributing/packetdrill.md` says how to run scripts with it.

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
