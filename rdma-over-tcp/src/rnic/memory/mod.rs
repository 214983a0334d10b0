//! Registered memory: buffers, regions, windows and logical address mappings, and the check of every access.
//!
//! ```text
//! RegisteredBuffer -> Spans -> Registration (token, rights) -> Region, Window -> check of an access
//! ```

pub(crate) mod buffer;
pub(crate) mod fast;
pub(crate) mod lam;
pub(crate) mod region;
pub(crate) mod registration;
pub(crate) mod spans;
pub(crate) mod window;
