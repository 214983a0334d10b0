//! NDKPI for C programs: `include/ndkpi.h` as a mapping of [`rdma_over_tcp::ndk`].
//!
//! The Rust interface has the semantics; here are names, pointers and callbacks. Files by area: [`abi`] is the binary
//! interface, `open` opens and closes adapters by what `config` reads; `adapter`, `pd`, `cq`, `qp`, `mr`, `srq`,
//! `connector`, `listener` and `endpoint` have the functions of one dispatch table each, `lam` those of logical
//! addresses. `objects` has the objects that consumers hold, `mdl` and `address` their memory and addresses,
//! `callbacks` the way back to them.
//!
//! Every function goes through `guard`: a panic does not cross the boundary, and ends the adapters (`fatal`). A handle
//! that is not an open object's is refused before anything behind it is read ([STATUS_INVALID_HANDLE]).
//!
//! [STATUS_INVALID_HANDLE]: rdma_over_tcp::ndk::NtStatus::INVALID_HANDLE

pub mod abi;
mod adapter;
mod address;
mod callbacks;
mod close;
mod config;
mod connector;
mod cq;
mod create;
mod endpoint;
mod fatal;
mod guard;
mod lam;
mod listener;
mod mdl;
mod mr;
mod objects;
pub mod open;
mod pd;
mod qp;
mod sgl;
mod srq;
