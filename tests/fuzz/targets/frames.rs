//! Runs libFuzzer's bytes as a frame.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    flue_fuzz::frames::check(data);
});
