//! Common parts of all objects: identifiers, lifetimes, and deferred completions.

pub(crate) mod deferred;
pub(crate) mod id;
pub(crate) mod lifetime;
pub(crate) mod pd;
