//! Offload target: a TAP link, the offloaded TCP data path, and the target's half of the chimney.
//!
//! The protocol cores ([`memory`], [`checksum`], [`nbl`], [`state`], [`frame`], [`tcp`], [`chimney`]) are pure: no
//! clock, no I/O, no thread, no lock. They build as `no_std` + `alloc` with `--no-default-features`. The modules around
//! them (`link`, `engine`, `runtime`) need `std`. Only these read a device or block.
#![no_std]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

pub mod address;
pub mod checksum;
pub mod chimney;
#[cfg(feature = "std")]
pub mod descriptor;
#[cfg(feature = "std")]
pub mod engine;
#[cfg(feature = "std")]
pub mod fault;
pub mod frame;
#[cfg(feature = "std")]
pub mod link;
pub mod listing;
mod mac;
pub mod memory;
pub mod nbl;
#[cfg(feature = "std")]
pub mod runtime;
mod segment;
#[cfg(feature = "std")]
pub mod socket;
pub mod state;
pub mod status;
#[cfg(feature = "std")]
pub mod sync;
pub mod table;
pub mod tcp;
#[cfg(feature = "std")]
pub mod thread;
pub mod time;

/// Declares an enum that is an option of a node. It has serde's traits, with variants in lower case, and clap's, with
/// the variants' comments as help. The features of the declaring crate select these traits.
#[doc(hidden)]
#[macro_export]
macro_rules! option_enum {
    ($(#[$meta:meta])* pub enum $name:ident { $($variants:tt)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[cfg_attr(
            feature = "serde",
            derive(serde::Serialize, serde::Deserialize),
            serde(rename_all = "lowercase")
        )]
        #[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
        pub enum $name { $($variants)* }
    };
}
