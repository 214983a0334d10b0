//! Two adapters back to back: every operation, every end, every error.

mod bench;
mod connections;
mod errors;
mod lifetimes;
mod operations;
mod sides;
mod startup;
mod truncation;
