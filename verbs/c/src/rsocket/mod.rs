//! C interface of rsockets (`rdma/rsocket.h`): stream sockets over queue pairs.
//!
//! `socket` creates and closes them, `connect` binds and connects them, `table` maps descriptors to them, `data` sends
//! and receives, `options` and `keep_alive` are their options, `poll` waits for them and for descriptors of the kernel.
//!
//! There are no datagrams, since iWARP has no unreliable queue pairs: `SOCK_DGRAM` is EOPNOTSUPP, and librspreload then
//! uses a socket of the kernel. No call raises SIGPIPE. In the child of a fork connected rsockets of the parent are
//! ENODEV.

pub(crate) mod connect;
pub(crate) mod data;
mod keep_alive;
pub(crate) mod options;
pub(crate) mod poll;
pub(crate) mod socket;
mod table;
