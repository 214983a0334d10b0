//! Runs libFuzzer's bytes as calls of verbs and connection management.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flue_fuzz::verbs::check(data));
