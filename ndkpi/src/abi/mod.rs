//! Binary interface: types, structures, tables and numbers of `include/ndkpi.h`, under its names.
//!
//! The test `layout` compares every structure, member and constant with the header, by a C compiler.
#![expect(non_camel_case_types, non_snake_case, reason = "names of ndkpi.h")]

#[macro_use]
mod layout;
pub mod dispatch;
pub mod functions;
pub mod types;
pub mod values;

pub use flue_verbs_abi::{Layout, Member};

/// Returns every structure of the interface.
pub fn layouts() -> impl Iterator<Item = &'static Layout> {
    types::LAYOUTS.iter().chain(dispatch::LAYOUTS)
}

/// Returns every constant of the interface.
pub fn constants() -> impl Iterator<Item = &'static (&'static str, i64)> {
    values::CONSTANTS.iter()
}
