//! Two adapters back to back: every operation, every kind of connection end, every error.

mod bench;
mod connections;
mod endpoints;
mod errors;
mod extensions;
mod invalidation;
mod kernel;
mod lifetimes;
mod memory;
mod nodes;
mod objects;
mod operations;
mod progress;
mod rc;
mod requests;
mod sides;
mod sockets;
mod srq;
mod startup;
mod taps;
mod third;
mod truncation;
mod waits;
mod windows;
