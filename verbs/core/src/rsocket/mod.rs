//! rsockets: stream sockets over a queue pair, with the wire format of librdmacm for iWARP.
//!
//! Each side has a ring, which the peer writes to. A transfer is an RDMA Write to the peer's ring, followed by a Send
//! of one message with the number of bytes. Two limits apply: the part of the ring that the peer has granted, and
//! credits, which are posted receives of the peer.
//!
//! - `wire` has the wire format, `receiver` and `sender` the protocol state of each direction, without adapter or
//!   threads.
//! - `resources` has the adapter objects of a connection, `connection` joins both.
//! - `socket` has the state of an rsocket and blocking calls; `connect` and `data` are its calls, `options` its
//!   options. `waker` blocks and wakes threads. No lock is held while a thread blocks.

mod connect;
mod connection;
mod data;
mod options;
mod receiver;
mod resources;
mod sender;
mod socket;
mod waker;
mod wire;

pub use self::{
    connection::Readiness,
    options::{Family, Linger, Shutdown, SocketOptions},
    socket::Socket,
    waker::Waker,
};
