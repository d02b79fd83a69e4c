//! `cargo xtask bench`: builds what a benchmark needs and runs it.
use std::process::Command;

use crate::command::{self, Done, Failure, cargo, target};
use crate::{build, setup};

pub(crate) fn run(arguments: &[String]) -> Done {
    let (name, rest) = arguments
        .split_first()
        .ok_or_else(|| Failure("bench needs a name: serve, front, kernels, sampler or swap".to_owned()))?;
    setup::run()?;
    if name == "kernels" {
        for (package, bench) in [("camshaft-core", "core"), ("camshaft-engine", "sampling")] {
            let bench = ["bench", "--profile", "release", "-p", package, "--bench", bench, "--"];
            command::run(cargo(&bench).args(rest))?;
        }
        return Ok(());
    }
    let binary = build::host()?;
    build::plugins()?;
    let example = match name.as_str() {
        "serve" | "front" | "swap" => ("camshaft-tests", name.as_str()),
        "sampler" => ("camshaft-policy", "sampler"),
        other => return Err(Failure(format!("unknown benchmark {other:?}: serve, front, kernels, sampler or swap"))),
    };
    command::run(&mut cargo(&["build", "--release", "-p", example.0, "--example", example.1]))?;
    let beside = match name.as_str() {
        "serve" => Some(("camshaft-engine", "bare")),
        "front" => Some(("camshaft", "fake")),
        _ => None,
    };
    if let Some((package, example)) = beside {
        command::run(&mut cargo(&["build", "--release", "-p", package, "--example", example]))?;
    }
    let program = target().join("release/examples").join(example.1);
    command::run(Command::new(program).env("CAMSHAFT_BIN", binary).env("CAMSHAFT_TARGET", target()).args(rest))
}
