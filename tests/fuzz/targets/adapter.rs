//! Passes libFuzzer's bytes to `iwarp::adapter`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flue_fuzz::iwarp::adapter::check(data));
