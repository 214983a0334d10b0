//! Passes libFuzzer's bytes to `iwarp::headers`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flue_fuzz::iwarp::headers::check(data));
