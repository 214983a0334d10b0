//! iWARP over TCP: a codec, an RDMA adapter, and its interfaces.
//!
//! The codec converts between bytes and messages: [`mpa`], [`ddp`], [`rdmap`], and their error numbers, [`error`]; and
//! [`datagram`], of queue pairs without a connection.
//! It is pure protocol code and usable alone. With `default-features = false` it is `no_std` + `alloc` and depends on
//! no other crate of this project. The feature `std` adds a CRC by CPU instructions.
//!
//! The feature `adapter` adds four modules:
//! - [`rnic`]: the adapter, with protection domains, completion queues, queue pairs, memory regions and connections.
//! - [`transport`]: the transports of byte streams and datagrams.
//! - [`adapter`]: the handle through which an interface opens and calls an adapter.
//! - [`ndk`]: the NDKPI interface.
//!
//! Its transport is kernel sockets. The feature `node` adds the transport of a node: connections of an offload target
//! and of the host stack. Both features are on by default.
#![no_std]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

#[cfg(feature = "adapter")]
pub mod adapter;
pub mod datagram;
pub mod ddp;
pub mod error;
pub mod mpa;
#[cfg(feature = "adapter")]
pub mod ndk;
pub mod rdmap;
#[cfg(feature = "adapter")]
pub mod rnic;
#[cfg(feature = "adapter")]
pub mod transport;
