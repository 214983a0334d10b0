//! Common parts of all objects: identifiers, lifetimes, and deferred completions.

pub(crate) mod id;
pub(crate) mod later;
pub(crate) mod lifetime;
pub(crate) mod pd;
