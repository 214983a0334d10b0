//! Raw frames.
