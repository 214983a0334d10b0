//! libFuzzer's bytes as a script.
#![no_main]
