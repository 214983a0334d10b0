//! Common parts of all objects: identifiers, lifetimes, and completions that are held back.

pub(crate) mod id;
pub(crate) mod later;
pub(crate) mod lifetime;
pub(crate) mod pd;
