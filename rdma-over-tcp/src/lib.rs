//! iWARP over TCP: a codec, an RDMA adapter, and its interfaces.
//!
//! The codec ([`mpa`], [`ddp`], [`rdmap`], and below them the numbers of their errors, [`error`]) turns bytes into
//! messages and back. It is pure, and usable alone: with `default-features = false` it is `no_std` + `alloc` and
//! depends on no other crate of this project; the feature `std` adds a CRC by the CPU's instructions.
//!
//! The feature `adapter` adds [`rnic`], the adapter with its protection domains, completion queues, queue pairs, memory
//! regions and connections; [`transport`], the carriers of its byte streams; [`adapter`], the handle through which an
//! interface opens and calls one; [`ndk`], the interface NDKPI. Its transport is kernel sockets. The feature `node`
//! adds the transport of a node: connections of an offload target and of the host stack. Both are on by default.
#![no_std]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

#[cfg(feature = "adapter")]
pub mod adapter;
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
