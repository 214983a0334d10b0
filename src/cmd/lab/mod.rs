//! `flue lab`: two nodes in two network namespaces, joined by TAPs, bridges and a cable, pass a file.

pub mod children;
pub mod control;
pub mod director;
pub mod script;
pub mod session;
