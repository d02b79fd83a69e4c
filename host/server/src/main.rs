//! The `camshaft` command.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    camshaft::cli::run()
}
