//! Passes libFuzzer's bytes to `iwarp::framing`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flue_fuzz::iwarp::framing::check(data));
