//! Bodies of chat and completion requests.
#![no_main]
use std::sync::LazyLock;

use camshaft_api::fuzz::Parsers;

static PARSERS: LazyLock<Parsers> = LazyLock::new(|| Parsers::new().expect("an API over a model of bytes"));

libfuzzer_sys::fuzz_target!(|data: &[u8]| PARSERS.request(data));
