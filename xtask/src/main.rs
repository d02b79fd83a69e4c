//! Developer commands: `cargo xtask serve|test|attacks|fuzz|plugins|release-wit|dist|bench`.
#![forbid(unsafe_code)]

mod attacks;
mod bench;
mod build;
mod clients;
mod command;
mod dist;
mod emulate;
mod fuzz;
mod packaged;
mod progress;
mod registries;
mod release_wit;
mod served;
mod setup;
mod test;
mod vulkan;
mod wgpu;

use std::process::ExitCode;

use command::Failure;

const USAGE: &str = "\
cargo xtask serve [--quick] [-- ARGS...]
                                 set up what is missing, build host and standard policies, serve the bundled demo model; with --quick
                                 host/api and host/server are compiled incrementally and without optimisations
cargo xtask test [--vulkan|--wgpu]
                                 set up what is missing, run everything CI runs; or build with Vulkan or WebGPU, and run the tests
                                 of what is computed on Mesa's software device
cargo xtask test --clients [SUITE...]
                                 run clients and frameworks of others, from their registries, against the server, with a table
cargo xtask attacks [NAME]       attack the server, and print what each attack found
cargo xtask fuzz [--minutes N] [TARGET...]
                                 fuzz the parsers for N minutes in all (10), and print what each target found
cargo xtask plugins              build all plugins into target/plugins, and the standard policies into target/policy.d
cargo xtask dist [--emulated|--packaged]
                                 make dist/, a directory that runs on any processor of this architecture, with the same libc; and
                                 serve from it on processors that QEMU emulates, or as a container image and a systemd unit
cargo xtask bench serve|gate|front|kernels|policies|predict|sampler|swap [ARGS...]
                                 the benchmarks of docs/benchmarks.md
";

fn main() -> ExitCode {
    if let Err(failure) = fuzz::compile_if_asked() {
        command::say(&format!("xtask: {failure}"));
        return ExitCode::FAILURE;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (name, rest) = match arguments.split_first() {
        Some((name, rest)) => (name.as_str(), rest),
        None => ("help", &[][..]),
    };
    let rest = rest.strip_prefix(&["--".to_owned()]).unwrap_or(rest);
    let done = match name {
        "serve" => build::serve(rest),
        "test" => test::run(rest),
        "attacks" => attacks::run(rest),
        "fuzz" => fuzz::run(rest),
        "plugins" => setup::run().and_then(|()| build::plugins()),
        "release-wit" => release_wit::run(rest),
        "dist" => dist::run(rest),
        "bench" => bench::run(rest),
        "help" | "--help" | "-h" => {
            command::say(USAGE);
            Ok(())
        }
        other => Err(Failure(format!("unknown command {other:?}\n{USAGE}"))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            command::say(&format!("xtask: {failure}"));
            ExitCode::FAILURE
        }
    }
}
