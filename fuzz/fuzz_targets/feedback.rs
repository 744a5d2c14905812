//! Responses of any kind against what `Feedback` promises: `cargo +nightly fuzz run feedback`.
#![no_main]

#[path = "../../tests/it/feedback/any_bytes.rs"]
mod any_bytes;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| any_bytes::check(bytes));
