//! A node of flue by its options: one call opens the TAP, gives the machine its side of it, and starts host stack,
//! offload target and clients.
//!
//! ```no_run
//! use flue_node::NodeOptions;
//! use rdma_over_tcp::ndk::AdapterConfig;
//!
//! # fn main() -> Result<(), flue_node::Error> {
//! let options = NodeOptions {
//!     addresses: vec!["10.77.0.2/24".parse().expect("an address")],
//!     host_addresses: vec!["10.77.0.1/24".parse().expect("an address")],
//!     ..NodeOptions::default()
//! };
//! let opened = options.open_ndk(AdapterConfig::default())?;
//! let (node, adapter) = &opened[0];
//! # let _ = (node, adapter);
//! # Ok(())
//! # }
//! ```
//!
//! [`NodeOptions`] has each option once: its name, default, limit and help, for programs, for configurations in JSON,
//! and, with the feature `clap`, for command lines.
#![forbid(unsafe_code)]

mod chimney;
mod detection;
mod error;
mod format;
mod impairment;
pub mod launched;
mod open;
mod options;
pub mod output;
pub mod units;

pub use self::{
    chimney::{Capacity, ChimneyOptions, PORTS_MAX, UPLOAD_REST_DEFAULT_SECONDS},
    error::{Cause, Error},
    format::word,
    impairment::{Impairment, parse_burst, parse_nanos},
    open::{NdkNode, OpenLinks},
    options::{
        ADDRESS_DEFAULT, ADDRESSES_MAX, INTERFACE_NAME_BYTES_MAX, MAX_RETRANSMISSIONS_DEFAULT,
        MTU_DEFAULT_BYTES, MTU_RANGE_BYTES, NodeOptions, QUEUES_MAX, RECEIVE_WINDOW_DEFAULT_BYTES,
        RECEIVE_WINDOW_RANGE_BYTES, TAP_DEFAULT, TXQUEUELEN_RANGE, parse_interface, random_seed,
    },
};

#[cfg(all(test, feature = "clap"))]
mod tests;
