//! Exported symbols: for each name a stub in assembly, which has the versions of the name and jumps to the function of
//! that name.
//!
//! A Rust function has no symbol version, and a library without versions is refused by `dlvsym`. The function itself
//! is not exported, so that each name has exactly the versions of `flue_verbs_abi::symbols`. `build.rs` writes the
//! stubs by that list: a listed function that does not exist, or is not listed, does not compile without a warning.

#[allow(clippy::wildcard_imports)] // Of each module, its exported functions.
use crate::{
    address::*,
    ah::*,
    cm::{channel::*, endpoint::*, plain::*, queues::*, *},
    cq::*,
    device::*,
    event::*,
    fork::*,
    memory::*,
    open::*,
    private::*,
    qp::*,
    rsocket::{data::*, options::*, poll::*, *},
    srq::*,
    text::*,
    unsupported::*,
};

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
