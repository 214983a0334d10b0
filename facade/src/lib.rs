//! RDMA queue pairs and byte streams for Rust programs: one dependency, and the types of a first program in
//! [`prelude`].
//!
//! A queue pair on kernel sockets sends to a server, for example `flue serve --transport kernel`:
//!
//! ```no_run
//! use flue_rdma::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut adapter = open_sockets(SocketsConfig::default(), AdapterConfig::default())?;
//! let (pd, cq) = (adapter.create_pd()?, adapter.create_cq(16, |_status| {})?);
//! let qp = pd.create_qp(&cq, &cq, 0, QpLimits::default())?;
//! let server = "127.0.0.1:7174".parse()?;
//! let connection = Connection::connect(&mut adapter, &qp, server, ReadLimit::default(), &[])?;
//! qp.send(1, Data::Inline(&[b"hello"]), OpFlags::empty())?;
//! connection.disconnect(&mut adapter)?;
//! # Ok(())
//! # }
//! ```
//!
//! [`streams`] has byte streams of a TAP node, which implement [`std::io::Read`] and [`std::io::Write`]. [`ndk`] has
//! all calls of NDKPI, [`NodeOptions`] all options of a node. The other crates of flue have the parts:
//! `rdma-over-tcp`, `host-stack`, `offload-engine`, `flue-adapter`.
#![forbid(unsafe_code)]

pub mod streams;

pub use bytes::Bytes;
pub use flue_adapter::{Error, NodeOptions, units::IpPrefix};
pub use host_stack::{
    node::Node,
    stream::{OffloadState, StreamStatus},
};
/// Instant of a node's clock, which is virtual in a simulation. It is not [`std::time::Instant`].
pub use offload_engine::time::Instant as NodeInstant;
pub use rdma_over_tcp::ndk;

/// Types and functions of a first program.
pub mod prelude {
    pub use super::{
        NodeOptions,
        ndk::{
            Adapter, AdapterConfig, Data, MrFlags, NdkResultEx, NtStatus, OpFlags, QpLimits,
            ReadLimit, Sge, SocketsConfig,
            blocking::{Connection, Incoming},
            open_sockets,
        },
        streams::{BlockingStream, StreamListener, StreamNode},
    };
}
