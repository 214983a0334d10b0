//! The commands, one module each.

pub mod doctor;
pub mod lab;
pub mod nc;
pub mod plot;
pub mod rping;
pub mod wire;
