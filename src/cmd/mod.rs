//! The commands, one module each.

pub mod lab;
pub mod rping;
