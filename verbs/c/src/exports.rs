//! Exported symbols: for each name a stub in assembly, which has the versions of the name and jumps to the function of
//! that name.
//!
//! Rust functions have no symbol versions, without which dlvsym(3) finds nothing and the loader warns. The functions
//! themselves are not exported: each name has exactly the versions of `flue_verbs_abi::symbols`. `build.rs` writes the
//! stubs by that list. A listed function that does not exist is an error of the compiler, and one that is not listed a
//! warning.

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
