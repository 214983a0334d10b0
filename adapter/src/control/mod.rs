//! The control socket: how another process sees a running node's connections, and has them handed over.
//!
//! Every node listens on a Unix socket ([`place`] says where). One connection carries one request and one
//! answer, each a line of JSON ([`message`]); `socat - UNIX:PATH` is client enough. [`server`] is a thread of its
//! own: it enters the node for a copy and for nothing else, and what a client does to its socket is no matter of the
//! data path. [`client`] is what `flue ss`, `flue offload` and `flue upload` use.
//!
//! Who may write to the socket may move and watch connections: it has mode 0600, in a directory of mode 0700.
//!
//! | limit | |
//! |---|---|
//! | a request | [`REQUEST_BYTES_MAX`] bytes, within [`REQUEST_LIMIT`] |
//! | an answer | [`ROWS_MAX`] connections, taken within [`ANSWER_LIMIT`]; a client takes [`ANSWER_BYTES_MAX`] bytes |
//! | clients without a complete answer | [`CLIENTS_MAX`]: another one replaces the one that was idle the longest |
//! | clients that wait to be accepted | [`BACKLOG`] |
//! | requests at once | one |
//! | connections looked at with the node held | [`LOOK_MAX`] |
//! | share of time that requests take of the node | a half: after each the server rests as long as it took |

pub mod client;
pub mod message;
pub mod place;
pub mod record;
pub mod server;
pub mod state;

use std::time::Duration;

/// The version of the protocol. It grows when a request or a key changes its meaning; new keys do not change it.
pub const VERSION: u32 = 1;
/// Bytes of a request, its newline included.
pub const REQUEST_BYTES_MAX: usize = 4096;
/// Bytes of an answer that a client takes.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;
/// How long a request may take to arrive.
pub const REQUEST_LIMIT: Duration = Duration::from_secs(2);
/// How long a client may take for its answer.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How long the host stack may take to say what connections there are.
pub const HOST_LIMIT: Duration = Duration::from_secs(2);
/// How long an answer waits at most for a connection to move; who wants to wait longer asks again.
pub const MOVE_LIMIT: Duration = Duration::from_millis(250);
/// Connections in one answer.
pub const ROWS_MAX: usize = 1024;
/// Connections that are looked at without letting go of the node.
pub const LOOK_MAX: usize = 32;
/// Accepted clients without a complete answer.
pub const CLIENTS_MAX: usize = 16;
/// Clients that wait to be accepted.
pub const BACKLOG: i32 = 16;
