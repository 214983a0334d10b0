//! Node created from options: one call opens the TAP, sets up the kernel's side of it, and starts host stack, offload
//! target and clients.
//!
//! [`NodeOptions`] defines each option once, with name, default, limit and help, for programs, for configurations in
//! JSON and, with the feature `clap`, for command lines.

mod chimney;
mod detection;
mod impairment;
mod open;
mod options;

pub(crate) use self::open::start_traces;
pub use self::{
    chimney::{Capacity, ChimneyOptions, OFFLOAD_HOLDDOWN_DEFAULT_SECONDS, PORTS_MAX},
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
