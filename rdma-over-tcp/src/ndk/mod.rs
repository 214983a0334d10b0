//! ndk
