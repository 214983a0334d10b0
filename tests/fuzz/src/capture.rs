//! Scripts from captures.
