//! Binary interface of libibverbs and librdmacm on LP64 Linux, as data.
//!
//! [`enums`], [`attributes`] and [`objects`] have the memory layout of `infiniband/verbs.h`, [`cm`] that of
//! `rdma/rdma_cma.h`, [`symbols`] the list of exported functions with their versions. Names are those of the C headers
//! and their manual pages. Enumerations are newtypes, because a program may pass any value.
//!
//! [`settings`] has the environment variables by which `flue run` configures the library.
//!
//! Sizes and offsets are asserted at compile time (x86-64), and a test compares every structure and constant with the
//! installed headers. Callers allocate these structures on their stacks, so a structure that is too long overwrites
//! other variables.
#![no_std]
#![allow(non_camel_case_types, reason = "names of the C headers")]

#[macro_use]
mod layout;

pub mod attributes;
pub mod cm;
pub mod enums;
pub mod objects;
pub mod settings;
pub mod symbols;

pub use layout::{Layout, Member};

/// Every structure, for comparison with the headers.
pub fn layouts() -> impl Iterator<Item = &'static Layout> {
    [attributes::LAYOUTS, objects::LAYOUTS, cm::LAYOUTS].into_iter().flatten()
}

/// Every constant by name, for comparison with the headers.
pub fn constants() -> impl Iterator<Item = (&'static str, i64)> {
    [enums::VALUES, cm::VALUES].into_iter().flatten().flat_map(|list| list.iter().copied())
}
