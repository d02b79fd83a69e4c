//! Builds the host and the plugins, and lays out a working policy directory.
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{Done, Failure, cargo, copy_if_changed, root, say, target};
use crate::{progress, setup};

/// The standard policies: hook, file name in the policy directory, package.
const STANDARD: [(&str, &str, &str); 4] = [
    ("auth", "10-api-keys", "auth-api-keys"),
    ("validator", "10-limits", "validator-limits"),
    ("scheduler", "10-fcfs", "scheduler-fcfs"),
    ("sampler", "10-standard", "sampler-standard"),
];

/// Builds the server's binary.
pub(crate) fn host() -> Result<PathBuf, Failure> {
    say("building the host (the first build includes llama.cpp and wasmtime: several minutes)");
    progress::build(&mut cargo(&["build", "--release", "-p", "camshaft"]))?;
    Ok(target().join("release/camshaft"))
}

/// Builds all components: standard plugins into `target/plugins`, bad guests into `target/guests`.
pub(crate) fn plugins() -> Done {
    say("building the plugins (wasm32-wasip2)");
    for (folder, out) in [("plugins", "plugins"), ("tests/guests", "guests")] {
        let packages = packages_in(&root().join(folder))?;
        let mut command = cargo(&["build", "--profile", "plugin", "--target", "wasm32-wasip2"]);
        for package in &packages {
            command.args(["-p", package]);
        }
        progress::build(&mut command)?;
        for package in packages {
            let built = target().join("wasm32-wasip2/plugin").join(format!("{}.wasm", package.replace('-', "_")));
            if built.exists() {
                copy_if_changed(&built, &target().join(out).join(format!("{package}.wasm")))?;
            }
        }
    }
    lay_out(&target().join("policy.d"))
}

/// Names of the packages below a folder.
fn packages_in(folder: &Path) -> Result<Vec<String>, Failure> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.path().join("Cargo.toml").exists() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Creates a policy directory with the standard policies. Existing settings files are kept.
pub(crate) fn lay_out(dir: &Path) -> Done {
    for (hook, name, package) in STANDARD {
        let settings = root().join("config/policy.d").join(hook).join(format!("{name}.toml"));
        let to = dir.join(hook).join(format!("{name}.toml"));
        if settings.exists() && !to.exists() {
            copy_if_changed(&settings, &to)?;
        }
        let component = target().join("plugins").join(format!("{package}.wasm"));
        copy_if_changed(&component, &dir.join(hook).join(format!("{name}.wasm")))?;
    }
    Ok(())
}

/// Builds everything, then replaces this process with the server.
pub(crate) fn serve(arguments: &[String]) -> Done {
    setup::run()?;
    let binary = host()?;
    plugins()?;
    let mut command = Command::new(binary);
    command.arg("serve");
    let names_policies = |argument: &String| {
        let set = argument.trim_start_matches("--set=");
        argument.starts_with("--policy-dir")
            || set.starts_with("policy.dir=")
            || set.starts_with("policy=") && set.contains("dir")
    };
    if !arguments.iter().any(names_policies) {
        command.arg("--policy-dir").arg(target().join("policy.d"));
    }
    let error = command.args(arguments).exec();
    Err(Failure(format!("cannot start the server: {error}")))
}
