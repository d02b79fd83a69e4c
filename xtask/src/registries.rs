//! What the suites of clients install from package registries, pinned, into the target directory.
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{self, Done, Failure, say, target};

/// Python with exactly the packages of a folder's `requirements.txt`, in an environment of this name.
pub(crate) fn python(folder: &Path, name: &str) -> Result<PathBuf, Failure> {
    let (environment, pins) = (place(name), folder.join("requirements.txt"));
    let python = environment.join("bin/python");
    install(&environment, &pins, || {
        command::run(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
        let mut pip = Command::new(&python);
        command::run(pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]).arg(&pins))
    })?;
    Ok(python)
}

/// A folder in which Node.js finds exactly the packages of a folder's `package-lock.json`, and the scripts of that folder.
pub(crate) fn node(folder: &Path, name: &str) -> Result<PathBuf, Failure> {
    let (environment, pins) = (place(name), folder.join("package-lock.json"));
    install(&environment, &pins, || {
        std::fs::create_dir_all(&environment)?;
        for file in ["package.json", "package-lock.json"] {
            std::fs::copy(folder.join(file), environment.join(file))?;
        }
        let mut npm = Command::new("npm");
        // `error`: the suites bring a newer Node.js than may run npm here, which it warns of.
        // Not `ci`, which refuses a lock without optional packages for other systems that a registry may lack.
        npm.args(["install", "--no-save", "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline"]);
        npm.args(["--loglevel", "error"]);
        command::run(npm.current_dir(&environment))
    })?;
    // Modules are looked for beside the script that names them.
    for entry in std::fs::read_dir(folder)?.flatten() {
        if entry.path().extension().is_some_and(|ending| ending == "mjs") {
            std::fs::copy(entry.path(), environment.join(entry.file_name()))?;
        }
    }
    Ok(environment)
}

/// Where an environment lies.
pub(crate) fn place(name: &str) -> PathBuf {
    target().join("e2e/clients").join(name)
}

/// Makes an environment anew unless the one there was made of the same pins.
fn install(environment: &Path, pins: &Path, make: impl FnOnce() -> Done) -> Done {
    let pinned = std::fs::read_to_string(pins).map_err(|error| Failure(format!("{}: {error}", pins.display())))?;
    let stamp = environment.join("installed.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|text| text == pinned) {
        return Ok(());
    }
    say(&format!("installing what {} pins", pins.display()));
    if environment.exists() {
        std::fs::remove_dir_all(environment)?;
    }
    make()?;
    Ok(std::fs::write(&stamp, &pinned)?)
}
