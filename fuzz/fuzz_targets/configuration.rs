//! Configuration files.
#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| camshaft::fuzz_configuration(data));
