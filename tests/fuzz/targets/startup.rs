//! Passes libFuzzer's bytes to `iwarp::startup`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flue_fuzz::iwarp::startup::check(data));
