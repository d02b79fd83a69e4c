//! Builds the host and the plugins, and lays out a working policy directory.
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

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

/// Plugins that the README's first steps copy.
const FIRST_STEPS: [&str; 2] = ["sampler-avoid-words", "scheduler-shortest-first"];

/// Which components a command needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Components {
    /// The standard policies and those of the first steps: each takes its share of a first build. Those that were built before
    /// too, lest they be old.
    Served,
    All,
}

/// Builds the server's binary, and all components beside it, where it leaves cores without work.
pub(crate) fn all() -> Result<PathBuf, Failure> {
    with(Components::All)
}

fn with(components: Components) -> Result<PathBuf, Failure> {
    let host_runs = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let plugins = scope.spawn(|| plugins_beside(components, &host_runs));
        let host = host();
        host_runs.store(false, Ordering::Relaxed);
        let plugins = plugins.join().map_err(|_| Failure("the plugins were not built".to_owned()))?;
        host.and_then(|host| plugins.map(|()| host))
    })
}

/// Builds all components: standard plugins into `target/plugins`, bad guests into `target/guests`.
pub(crate) fn plugins() -> Done {
    plugins_beside(Components::All, &AtomicBool::new(false))
}

/// `host_runs`: the host is built meanwhile, which comes first.
fn plugins_beside(components: Components, host_runs: &AtomicBool) -> Done {
    say("building the plugins (wasm32-wasip2)");
    for (folder, out) in [("plugins", "plugins"), ("tests/guests", "guests")] {
        let mut packages = packages_in(&root().join(folder))?;
        if components == Components::Served {
            packages
                .retain(|package| is_served(package) || target().join(out).join(format!("{package}.wasm")).exists());
        }
        if packages.is_empty() {
            continue;
        }
        let mut command = cargo(&["build", "--profile", "plugin", "--target", "wasm32-wasip2"]);
        for package in &packages {
            command.args(["-p", package]);
        }
        if host_runs.load(Ordering::Relaxed) {
            command = last(&command);
        }
        progress::build_beside(&mut command, host_runs)?;
        for package in packages {
            let built = target().join("wasm32-wasip2/plugin").join(format!("{}.wasm", package.replace('-', "_")));
            if built.exists() {
                copy_if_changed(&built, &target().join(out).join(format!("{package}.wasm")))?;
            }
        }
    }
    lay_out(&target().join("policy.d"))
}

fn is_served(package: &str) -> bool {
    FIRST_STEPS.contains(&package) || STANDARD.iter().any(|(_, _, standard)| *standard == package)
}

/// The command, where others come first.
fn last(command: &Command) -> Command {
    let mut last = Command::new("nice");
    last.args(["-n", "19"]).arg(command.get_program()).args(command.get_args());
    last.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if let Some(folder) = command.get_current_dir() {
        last.current_dir(folder);
    }
    last
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
    // No filter is a standard one.
    std::fs::create_dir_all(dir.join("filter"))?;
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

/// Builds the server and what it begins with, then replaces this process with it.
pub(crate) fn serve(arguments: &[String]) -> Done {
    setup::run()?;
    let mut command = Command::new(with(Components::Served)?);
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
