//! What a model may say, written as a server-sent event.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| camshaft_api::fuzz::event(data));
