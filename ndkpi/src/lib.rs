//! NDKPI for C programs: `include/ndkpi.h`, implemented with [`rdma_over_tcp::ndk`].
//!
//! The Rust interface implements the semantics; this crate adds names, pointers and callbacks. [`abi`] is the binary
//! interface. `open` opens and closes adapters, with the configuration of `config`. `adapter`, `pd`, `cq`, `qp`, `mr`,
//! `srq`, `connector`, `listener` and `endpoint` have the functions of one dispatch table each, `lam` those of logical
//! addresses. `objects` has the objects that consumers hold, `mdl` and `address` their memory and addresses,
//! `callbacks` the calls of their functions.
//!
//! Every function runs in `guard`: a panic does not cross the C boundary, and ends the adapters (`fatal`). A handle
//! that does not belong to an open object is refused before any memory behind it is read ([STATUS_INVALID_HANDLE]).
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
