//! libibverbs.so.1 and librdmacm.so.1 as a mapping of flue's RDMA core.
//!
//! The library maps names, flags, statuses and life-cycle rules; queues, memory protection and connections are the
//! core's. Programs load one file under both names, so that there is one state. This crate is the C layer: pointers,
//! structures, errno, panics, cancellation. [`flue_verbs_core`] has the objects. A file of the same path in both is
//! about the same object, and its first line states the layer.
//!
//! Files without a counterpart: `settings` reads the environment, `config` configures the adapter by it, `interfaces`
//! lists addresses, `context` and `open` are open devices, `enum_str` and `rate` convert numbers, `provider` answers
//! the providers of hardware, `unsupported` has calls that fail, `exports` gives symbols their versions.
//!
//! Every exported function runs in `guard`: a panic becomes EIO, and errno is set as its caller expects. `fatal`
//! closes the device after a panic.

mod address;
mod ah;
mod async_event;
mod cm;
mod config;
mod context;
mod cq;
mod device;
mod enum_str;
mod event_queue;
mod exit;
mod exports;
mod fatal;
mod fork;
mod guard;
mod inherit;
mod log;
mod mr;
mod mw;
mod object;
mod open;
mod pd;
mod provider;
mod qp;
mod rate;
mod request;
mod rsocket;
mod settings;
mod srq;
mod unsupported;
