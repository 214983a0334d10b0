//! RDMA adapter created from options, on a node with a TAP or on kernel sockets, and its control socket.
//!
//! [`AdapterOptions`] has the transport, MPA, and the control socket; [`AdapterOptions::open`] returns a running
//! adapter. The commands and the libraries for verbs and NDKPI programs open their adapters with it.
//!
//! [`NodeOptions`] has the options of a node. Each is defined once, with name, default, limit and help, for programs,
//! for configurations in JSON and, with the feature `clap`, for command lines. One call opens the TAP, sets up the
//! kernel's side of it, and starts host stack, offload target and clients.
//!
//! ```no_run
//! use flue_adapter::NodeOptions;
//! use rdma_over_tcp::ndk::AdapterConfig;
//!
//! # fn main() -> Result<(), flue_adapter::Error> {
//! let options = NodeOptions {
//!     addresses: vec!["10.77.0.2/24".parse().expect("an address")],
//!     host_addresses: vec!["10.77.0.1/24".parse().expect("an address")],
//!     ..NodeOptions::default()
//! };
//! let (node, adapter) = options.open_one_ndk(AdapterConfig::default())?;
//! # let _ = (node, adapter);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod address_map;
pub mod control;
mod error;
mod format;
pub mod launched;
mod mpa;
mod node;
mod options;
pub mod output;
mod port_range;
pub mod seed;
pub mod units;

pub use self::{
    error::{Cause, Error},
    format::{parse_word, word},
    mpa::{Crc, MpaAcceptOptions, MpaOptions, MpaRevision, Rtr, Switch},
    node::{
        ADDRESS_DEFAULT, ADDRESSES_MAX, Capacity, ChimneyOptions, INTERFACE_NAME_BYTES_MAX,
        Impairment, MAX_RETRANSMISSIONS_DEFAULT, MTU_DEFAULT_BYTES, MTU_RANGE_BYTES, NdkNode,
        NodeOptions, OFFLOAD_HOLDDOWN_DEFAULT_SECONDS, OpenLinks, PORTS_MAX, QUEUES_MAX,
        RECEIVE_WINDOW_DEFAULT_BYTES, RECEIVE_WINDOW_RANGE_BYTES, TAP_DEFAULT, TXQUEUELEN_RANGE,
        parse_burst, parse_interface, parse_nanos, random_seed,
    },
    options::{
        AdapterOptions, DeviceKind, OPTIONS_VARIABLE, OpenAdapter, PreparedAdapter,
        RECEIVE_WAIT_MAX_SECONDS, SocketsOptions, Transport, TransportOptions, parse_receive_wait,
    },
    port_range::PortRange,
};
