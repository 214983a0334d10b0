//! Exported symbols: for each name, an assembly stub that has the versions of the name and jumps to the function of
//! that name.
//!
//! Rust functions have no symbol versions; without versions dlvsym(3) fails and the loader warns. The functions
//! themselves are not exported: each name has exactly the versions of `flue_verbs_abi::symbols`, from which `build.rs`
//! writes the stubs. A listed function that does not exist is a compile error, and one that is not listed a warning.

use crate::{
    address::*,
    ah::*,
    async_event::*,
    cm::{
        connect::*,
        endpoint::*,
        id::{channel::*, *},
        queues::*,
        unsupported::*,
    },
    cq::*,
    device::*,
    enum_str::*,
    fork::*,
    mr::*,
    open::*,
    pd::*,
    provider::*,
    qp::*,
    rate::*,
    rsocket::{connect::*, data::*, options::*, poll::*, socket::*},
    srq::*,
    unsupported::*,
};

include!(concat!(env!("OUT_DIR"), "/exports.rs"));
