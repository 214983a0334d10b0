//! iWARP and NDK queue pairs over offloaded TCP connections.
//!
//! The protocol cores ([`mpa`], [`ddp`], [`rdmap`]) turn bytes into messages and back; they are pure
//! and build as `no_std` + `alloc` with `--no-default-features`. [`error`] has the numbers of their errors. `ndk` has the objects of NDKPI:
//! adapter, protection domain, completion queue, queue pair, memory region, connector, listener.
#![no_std]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

pub mod ddp;
pub mod error;
pub mod mpa;
#[cfg(feature = "std")]
pub mod ndk;
pub mod rdmap;
