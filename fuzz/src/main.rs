//! Runs one of the targets under libFuzzer: the one that `CAMSHAFT_FUZZ_TARGET` names. `cargo xtask fuzz` starts it.
#![no_main]
#![deny(unsafe_code)]
use std::sync::OnceLock;

use camshaft_fuzz::{TARGETS, Target};

static TARGET: OnceLock<Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(
    init: {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("fuzz targets: {}", names.join(" "));
        let wanted = std::env::var("CAMSHAFT_FUZZ_TARGET").unwrap_or_default();
        if let Some(target) = TARGETS.iter().find(|target| target.name == wanted) {
            TARGET.get_or_init(|| *target);
        }
    },
    |data: &[u8]| {
        let target = TARGET.get().expect("CAMSHAFT_FUZZ_TARGET names a target");
        (target.run)(data);
    }
);
