//! The adapter through its public calls alone, as used by an interface in another crate, over kernel sockets.

mod ends;
mod memory;
mod queue_pairs;
