//! Runs libFuzzer's bytes as changes of a queue pair.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| flue_fuzz::modify::check(data));
