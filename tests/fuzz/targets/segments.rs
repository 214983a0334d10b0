//! Runs libFuzzer's bytes as a script.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some((setup, ops)) = flue_fuzz::script::read(data) {
        flue_fuzz::run(&setup, &ops);
    }
});
