//! `cargo xtask release-wit`: keeps the interfaces of today, and a guest of each hook that was built for them, as released.
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{self, Done, Failure, cargo, copy_if_changed, root, say, target};
use crate::setup;

const HOOKS: [&str; 5] = ["auth", "validator", "scheduler", "sampler", "filter"];

/// Versions that were released before are left as they are, unless the argument is `--replace`: before the first release to
/// users nobody has built anything for them.
pub(crate) fn run(arguments: &[String]) -> Done {
    let replace = match arguments {
        [] => false,
        [only] if only == "--replace" => true,
        other => return Err(Failure(format!("release-wit takes --replace and nothing else: {other:?}"))),
    };
    setup::run()?;
    let (released, fixtures) = (root().join("wit/released"), root().join("tests/fixtures/released"));
    std::fs::create_dir_all(&released)?;
    std::fs::create_dir_all(&fixtures)?;
    let guests = guests()?;
    for entry in std::fs::read_dir(root().join("wit/deps"))? {
        let package = entry?.path();
        let version = version(&package)?;
        let name = package.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let to = released.join(format!("{name}-{version}"));
        if to.exists() && !replace {
            say(&format!("{name} {version} was released before: it stays as it is"));
            continue;
        }
        if to.exists() {
            std::fs::remove_dir_all(&to)?;
        }
        for file in std::fs::read_dir(&package)? {
            let file = file?;
            copy_if_changed(&file.path(), &to.join(file.file_name()))?;
        }
        if HOOKS.contains(&name.as_str()) {
            copy_if_changed(&guests.join(format!("{name}.wasm")), &fixtures.join(format!("{name}-{version}.wasm")))?;
        }
        say(&format!("{name} {version}"));
    }
    sum(&released)?;
    sum(&fixtures)
}

/// The version in the first `package` line of a package's files.
fn version(package: &Path) -> Result<String, Failure> {
    for file in std::fs::read_dir(package)? {
        let text = std::fs::read_to_string(file?.path())?;
        let line = text.lines().find_map(|line| line.strip_prefix("package ")?.strip_suffix(';'));
        if let Some((_, version)) = line.and_then(|line| line.split_once('@')) {
            return Ok(version.to_owned());
        }
    }
    Err(Failure(format!("{}: no file says the package's version", package.display())))
}

/// Builds the guests, and returns where they are.
fn guests() -> Result<PathBuf, Failure> {
    let out = target().join("released");
    let manifest = root().join("tests/fixtures/guests/Cargo.toml");
    let options = ["build", "--release", "--locked", "--examples", "--target", "wasm32-wasip2", "--manifest-path"];
    command::run(cargo(&options).arg(manifest).arg("--target-dir").arg(&out))?;
    Ok(out.join("wasm32-wasip2/release/examples"))
}

/// Lists the digests of all files below a folder in its `SHA256SUMS`.
fn sum(folder: &Path) -> Done {
    let script =
        "find . -type f ! -name SHA256SUMS | LC_ALL=C sort | sed 's:^\\./::' | xargs -d '\\n' sha256sum > SHA256SUMS";
    command::run(Command::new("/bin/sh").args(["-c", script]).current_dir(folder))
}
