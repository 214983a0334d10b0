//! Control socket: other processes list the connections of a running node, and offload or upload them.
//!
//! Every node listens on a Unix socket ([`socket_path`] defines its path). A client sends one request and reads one
//! reply on a connection, each a line of JSON ([`message`]); `socat - UNIX:PATH` is a sufficient client. [`server`]
//! runs on a separate thread. It locks the node only to copy state, so clients do not block the data path. [`client`]
//! is used by `flue ss`, `flue offload` and `flue upload`.
//!
//! Any process that can write to the socket can list and move connections. So its mode is 0600, in a directory of mode
//! 0700, and clients of other users than this one and root are refused.
//!
//! A client creates the files of a capture, with its own rights, and passes their descriptors. So the process of the
//! node needs no right to open files.
//!
//! | limit | |
//! |---|---|
//! | request | [`REQUEST_BYTES_MAX`] bytes, within [`REQUEST_LIMIT`] |
//! | reply | [`ROWS_MAX`] connections, read within [`ANSWER_LIMIT`]; a client reads [`ANSWER_BYTES_MAX`] bytes |
//! | clients without a complete reply | [`CLIENTS_MAX`]: another client replaces the one that was idle the longest |
//! | clients not yet accepted | [`BACKLOG`] |
//! | descriptors of a request | [`FILES_MAX`] |
//! | concurrent requests | one |
//! | connections copied while the node is locked | [`SNAPSHOTS_MAX`] |
//! | share of the node's time used by requests | one half: after each the server pauses for as long as it took |

pub mod client;
pub mod message;
pub mod record;
pub mod server;
pub mod socket_path;
pub mod state;

use std::time::Duration;

use crate::QUEUES_MAX;

/// Version of the protocol. It increases when a request or a key changes its meaning, not when a key is added.
pub const VERSION: u32 = 1;
/// Maximum bytes of a request, including the newline.
pub const REQUEST_BYTES_MAX: usize = 4096;
/// Maximum bytes of a reply that a client accepts.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Maximum descriptors of a request: one per queue.
pub const FILES_MAX: usize = QUEUES_MAX as usize;
/// Time limit to receive a request.
pub const REQUEST_LIMIT: Duration = Duration::from_secs(2);
/// Time limit for a client to read its reply.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Time limit for the host stack to list its connections.
pub const HOST_LIMIT: Duration = Duration::from_secs(2);
/// Time limit of one reply for a connection to move. A client that waits longer repeats the request.
pub const MOVE_LIMIT: Duration = Duration::from_millis(250);
/// Maximum number of connections in one reply.
pub const ROWS_MAX: usize = 1024;
/// Maximum number of connections that are copied while the node is locked.
pub const SNAPSHOTS_MAX: usize = 32;
/// Maximum number of accepted clients without a complete reply.
pub const CLIENTS_MAX: usize = 16;
/// Maximum number of clients not yet accepted.
pub const BACKLOG: i32 = 16;
