//! The adapter by its public calls alone, as an interface in a crate of its own uses it, over kernel sockets.

mod ends;
mod memory;
mod queue_pairs;
