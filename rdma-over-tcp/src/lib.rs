//! iWARP and NDK queue pairs over offloaded TCP connections.
//!
//! The codec ([`mpa`], [`ddp`], [`rdmap`], and below them the numbers of their errors, [`error`]) turns bytes into
//! messages and back. It is pure, and usable alone: with `default-features = false` it is `no_std` + `alloc` and
//! depends on no other crate of this project; the feature `std` adds a CRC by the CPU's instructions. `ndk`, a feature
//! of its own and the default, has the objects of NDKPI: adapter, protection domain, completion queue, queue pair,
//! memory region, connector, listener.
#![no_std]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

pub mod ddp;
pub mod error;
pub mod mpa;
#[cfg(feature = "ndk")]
pub mod ndk;
pub mod rdmap;
