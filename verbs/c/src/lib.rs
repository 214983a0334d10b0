//! libibverbs.so.1 and librdmacm.so.1 as a mapping of flue's RDMA core.
//!
//! The library maps names, flags, statuses and life-cycle rules; queues, memory protection and connections are the
//! core's. Programs load one file under both names, so that there is one state. Files by area: `device`, `open`,
//! `memory`, `mw`, `cq`, `qp`, `srq`, `ah`, `event`, `cm`, `address`, `rsocket`, `fork`; `private` answers the
//! providers of hardware, `unsupported` has calls that fail, `exports` gives symbols their versions, `text` has the
//! strings and rate conversions, `settings` reads the environment, and `config` configures the adapter by it.
//!
//! Every exported function goes through `guard`: a panic becomes EIO, and errno is set as its caller expects. `fatal`
//! ends the device behind a panic, or when its link is gone.

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
mod exports;
mod fatal;
mod fork;
mod guard;
mod inherit;
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
