//! Programs that tests install from package registries, pinned, into the target directory. Where a registry cannot be reached the
//! test fails, and says so.
use std::path::{Path, PathBuf};
use std::process::Command;

use camshaft_tests::target;

/// Python with exactly the packages of a folder's `requirements.txt`, in an environment of this name.
pub(crate) fn python(folder: &Path, name: &str) -> PathBuf {
    let requirements = folder.join("requirements.txt");
    let environment = target().join("e2e").join(name);
    let python = environment.join("bin/python");
    install(&environment, &requirements, || {
        let made = run(Command::new("python3").args(["-m", "venv"]).arg(&environment));
        made.unwrap_or_else(|error| {
            panic!("no virtual environment: {error}\non Debian: apt-get install python3 python3-venv")
        });
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]).arg(&requirements);
        run(&mut pip).unwrap_or_else(|error| {
            panic!("{} could not be installed (is PyPI reachable?): {error}", requirements.display())
        });
    });
    python
}

/// A folder in which Node.js finds exactly the packages of a folder's `package-lock.json`.
pub(crate) fn node(folder: &Path, name: &str) -> PathBuf {
    let lock = folder.join("package-lock.json");
    let environment = target().join("e2e").join(name);
    install(&environment, &lock, || {
        std::fs::create_dir_all(&environment).expect("a folder can be made");
        for file in ["package.json", "package-lock.json"] {
            std::fs::copy(folder.join(file), environment.join(file)).expect("a file can be copied");
        }
        let mut npm = Command::new("npm");
        npm.args(["ci", "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline"]).current_dir(&environment);
        run(&mut npm).unwrap_or_else(|error| {
            panic!("{} could not be installed (is npm's registry reachable?): {error}", lock.display())
        });
    });
    environment
}

/// Makes an environment anew unless the one there was made of the same pins.
fn install(environment: &Path, pins: &Path, make: impl FnOnce()) {
    let pins = std::fs::read_to_string(pins).expect("the pins can be read");
    let stamp = environment.join("installed.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|text| text == pins) {
        return;
    }
    if environment.exists() {
        std::fs::remove_dir_all(environment).expect("an old environment can be removed");
    }
    make();
    std::fs::write(&stamp, &pins).expect("the environment can be written to");
}

/// Runs a command, and returns what it said if it fails.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let said = || String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {}", said())) }
}
