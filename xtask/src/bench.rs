//! `cargo xtask bench`: builds what a benchmark needs and runs it.
use std::process::Command;

use crate::command::{self, Done, Failure, cargo, root, target};
use crate::{build, setup};

const NAMES: &str = "serve, gate, front, kernels, policies, predict, sampler, structured, swap or tokenize";
/// The smallest ratios to the bare loop that are accepted, with the demo model.
const FLOORS: &str = "docs/benchmarks/floors.json";
const GATE: [&str; 7] = ["--bare", "--repeats", "16", "--rounds", "6", "--only", "distinct"];

pub(crate) fn run(arguments: &[String]) -> Done {
    let (name, rest) = arguments.split_first().ok_or_else(|| Failure(format!("bench needs a name: {NAMES}")))?;
    // `--workspace` throughout: packages chosen one by one would be built with other features, llama.cpp included.
    if name == "kernels" {
        setup::run()?;
        let bench = ["bench", "--profile", "release", "--workspace", "--bench", "core", "--bench", "sampling", "--"];
        return command::run(cargo(&bench).args(rest));
    }
    if matches!(name.as_str(), "structured" | "tokenize") {
        setup::run()?;
        let binary = build::all()?;
        let script = root().join("docs/benchmarks").join(name).with_extension("py");
        let mut bench = Command::new("python3");
        bench.arg(script).env("CAMSHAFT_BIN", binary).env("CAMSHAFT_TARGET", target());
        return command::run(bench.args(rest));
    }
    // The program, and another one that it runs.
    let examples: &[&str] = match name.as_str() {
        "serve" | "gate" => &["serve", "bare"],
        "front" => &["front", "fake"],
        "policies" => &["requests"],
        "predict" => &["predict"],
        "sampler" => &["sampler"],
        "swap" => &["swap"],
        other => return Err(Failure(format!("unknown benchmark {other:?}: {NAMES}"))),
    };
    if name == "predict" && !command::succeeds("python3", &["-c", "import aiohttp, numpy, onnxruntime"]) {
        let why =
            "python3 with onnxruntime and aiohttp is needed to compare with: pip install onnxruntime aiohttp numpy";
        return Err(Failure(why.to_owned()));
    }
    setup::run()?;
    let binary = build::all()?;
    let chosen = examples.iter().flat_map(|example| ["--example", example]);
    command::run(cargo(&["build", "--release", "--workspace"]).args(chosen))?;
    let program = target().join("release/examples").join(examples[0]);
    let mut bench = Command::new(program);
    bench.env("CAMSHAFT_BIN", binary).env("CAMSHAFT_TARGET", target());
    if name == "gate" {
        bench.args(GATE).arg("--gate").arg(root().join(FLOORS));
    }
    command::run(bench.args(rest))
}
