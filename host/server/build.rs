//! Tells the binary which commit and which wasmtime it was built from.
#![allow(clippy::print_stdout, reason = "how a build script speaks to cargo")]

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // HEAD changes with a checkout, its log with every commit.
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]).filter(|path| Path::new(path).exists()) {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=CAMSHAFT_COMMIT={commit}");
    let wasmtime = locked("wasmtime").unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=CAMSHAFT_WASMTIME={wasmtime}");
    if std::env::var_os("CARGO_FEATURE_VARIANTS").is_some() {
        // RPATH rather than RUNPATH: the libraries find each other by it, too.
        println!("cargo::rustc-link-arg-bins=-Wl,--disable-new-dtags,-rpath,$ORIGIN/lib");
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !said.is_empty()).then_some(said)
}

/// The version of a package in the lock file.
fn locked(package: &str) -> Option<String> {
    let path = "../../Cargo.lock";
    println!("cargo::rerun-if-changed={path}");
    let lock = std::fs::read_to_string(path).ok()?;
    let after = lock.split_once(&format!("name = \"{package}\"\nversion = \""))?.1;
    after.split_once('"').map(|(version, _)| version.to_owned())
}
