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

/// File endings of tensor models and of their manifests.
const TENSOR_FILES: [&str; 7] = ["onnx", "safetensors", "mpk", "bpk", "pt", "pth", "toml"];

/// How the server is built.
#[derive(Debug, Clone, Copy)]
struct Host {
    /// With the runtimes of tensor models (ONNX, Burn), which are a quarter more.
    tensors: bool,
    /// With `host/api` and `host/server` incrementally and without optimisations, for the loop of change and try.
    quick: bool,
}

impl Host {
    fn build(self) -> Result<PathBuf, Failure> {
        say("building the host (the first build includes llama.cpp and wasmtime: ten minutes or more)");
        let mut build = cargo(&["build", "--release", "-p", "camshaft"]);
        if self.quick {
            for package in ["camshaft", "camshaft-api"] {
                let setting = |value| format!("profile.release.package.{package}.{value}");
                build.arg("--config").arg(setting("opt-level=0")).arg("--config").arg(setting("incremental=true"));
            }
        }
        if self.tensors {
            say("with the runtimes of tensor models (ONNX, Burn)");
            build.args(["--features", "burn,onnx"]);
        }
        progress::build(&mut build)?;
        Ok(target().join("release/camshaft"))
    }
}

/// Whether a server with these arguments and environment has tensor models, also by its configuration file.
fn names_tensors(arguments: &[String], environment: impl Iterator<Item = (String, String)>) -> bool {
    let (mut words, mut config) = (Vec::new(), None);
    for (name, value) in environment.filter(|(name, _)| name.starts_with("CAMSHAFT_")) {
        if name == "CAMSHAFT_CONFIG" { config = Some(value) } else { words.push(value) }
    }
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.strip_prefix("--config") {
            Some("") => config = arguments.next().cloned(),
            Some(file) => config = Some(file.trim_start_matches('=').to_owned()),
            None => words.push(argument.rsplit('=').next().unwrap_or_default().to_owned()),
        }
    }
    // A file that cannot be read names none: the server says what is wrong with it.
    let config = config.and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
    for (key, value) in config.lines().filter_map(|line| line.split_once('=')) {
        if matches!(key.trim(), "path" | "source") {
            words.extend(value.split(['"', '\'']).nth(1).map(str::to_owned));
        }
    }
    let has_ending = |word: &str| {
        let ending = Path::new(word).extension().unwrap_or_default();
        TENSOR_FILES.iter().any(|file| ending.eq_ignore_ascii_case(file))
    };
    words.iter().any(|word| word == "digits" || has_ending(word))
}

/// Plugins that the README's first steps copy.
const FIRST_STEPS: [&str; 2] = ["sampler-avoid-words", "scheduler-shortest-first"];

/// Which components are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Components {
    /// The standard policies and those of the first steps: each takes its share of a first build. Those that were built before
    /// too, lest they be old.
    Served,
    All,
}

/// Builds the server's binary with all that it can do, and all components beside it, where it leaves cores without work.
pub(crate) fn all() -> Result<PathBuf, Failure> {
    with(Components::All, Host { tensors: true, quick: false })
}

fn with(components: Components, host: Host) -> Result<PathBuf, Failure> {
    let host_runs = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let plugins = scope.spawn(|| plugins_beside(components, &host_runs));
        let host = host.build();
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
        let mut command = if host_runs.load(Ordering::Relaxed) { last() } else { cargo(&[]) };
        command.args(["build", "--profile", "plugin", "--target", "wasm32-wasip2"]);
        for package in &packages {
            command.args(["-p", package]);
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

/// A command of cargo's, where others come first.
fn last() -> Command {
    let mut last = Command::new("nice");
    last.args(["-n", "19"]).arg(cargo(&[]).get_program()).current_dir(root());
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
    let (quick, arguments) = match arguments {
        [first, rest @ ..] if first == "--quick" => (true, rest.strip_prefix(&["--".to_owned()]).unwrap_or(rest)),
        all => (false, all),
    };
    let tensors = names_tensors(arguments, std::env::vars());
    let mut command = Command::new(with(Components::Served, Host { tensors, quick })?);
    command.arg("serve");
    // A flag, and whoever has set it already, come first.
    if std::env::var_os("CAMSHAFT_POLICY__DIR").is_none() {
        command.env("CAMSHAFT_POLICY__DIR", target().join("policy.d"));
    }
    let error = command.args(arguments).exec();
    Err(Failure(format!("cannot start the server: {error}")))
}

#[cfg(test)]
mod tests {
    use super::names_tensors;

    #[test]
    fn tensor_models_are_known_by_their_names_in_arguments_environment_and_configuration() {
        let names = |arguments: &[&str], environment: &[(&str, &str)]| {
            let arguments: Vec<String> = arguments.iter().map(|a| (*a).to_owned()).collect();
            names_tensors(&arguments, environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
        };
        let file = std::env::temp_dir().join(format!("camshaft-xtask-{}.toml", std::process::id()));
        std::fs::write(&file, "[[model]]\n# path = \"none.onnx\"\npath = 'm/mnist.onnx' # \"x\"\n").unwrap();
        let (with, without) = (file.to_string_lossy(), "../config/camshaft.toml");
        assert!(std::path::Path::new(without).exists());
        for tensors in [&["--model", "a/X.ONNX"][..], &["--model=digits"], &["--model", "m.toml"], &["--config", &with]]
        {
            assert!(names(tensors, &[]), "{tensors:?}");
        }
        assert!(names(&[&format!("--config={with}")], &[]) && names(&[], &[("CAMSHAFT_CONFIG", &with)]));
        assert!(names(&[], &[("CAMSHAFT_MODEL__0__PATH", "x.pt")]) && !names(&[], &[("HOME", "x.pt")]));
        for other in
            [&[][..], &["--model", "x.gguf"], &["--config", without], &["--config", "missing.toml"], &["--config"]]
        {
            assert!(!names(other, &[]), "{other:?}");
        }
        std::fs::remove_file(file).unwrap();
    }
}
