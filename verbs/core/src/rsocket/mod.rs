//! rsockets: stream sockets over a queue pair, with the wire format of librdmacm for iWARP.
//!
//! Each end has a ring that the other one writes into. Data are a Write into the peer's ring and, behind it, a Send of
//! one message that tells how many bytes there are. What may be sent is limited twice: by the part of the ring that the
//! peer has granted, and by credits, which are receives of the peer.
//!
//! - `wire` is the protocol's form, `receiver` and `sender` are its state for each direction: no adapter, no threads.
//! - `resources` is what a connection uses of the adapter, `connection` joins them.
//! - `socket` is an rsocket, and how calls wait; `connect` and `data` are its calls, `options` what programs choose.
//!   `waker` is how threads sleep. No lock is held while one does.

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
