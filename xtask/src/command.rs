//! Runs other programs and reports progress.
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// Why a developer command failed.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure(error.to_string())
    }
}

pub(crate) type Done = Result<(), Failure>;

/// Writes a progress line to standard error.
pub(crate) fn say(line: &str) {
    // Standard error may be closed.
    let _ = writeln!(std::io::stderr(), "{}", line.trim_end());
}

/// The checkout's root, as cargo says: what is compiled in may be the path of another checkout with the same target directory.
pub(crate) fn root() -> &'static Path {
    static ROOT: LazyLock<PathBuf> = LazyLock::new(|| {
        let own = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        // xtask is one level below it.
        Path::new(&own).parent().unwrap_or(Path::new(".")).to_owned()
    });
    &ROOT
}

/// Cargo's target directory.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Where the portable build is: its flags differ, so that it would undo the usual one.
pub(crate) fn portable_target() -> PathBuf {
    target().join("portable")
}

/// A cargo command in the checkout's root.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).args(arguments);
    command
}

/// Runs a command and fails if it fails.
pub(crate) fn run(command: &mut Command) -> Done {
    let shown = shown(command);
    let status = command.status().map_err(|error| Failure(format!("cannot run `{shown}`: {error}")))?;
    if status.success() { Ok(()) } else { Err(Failure(format!("`{shown}` failed: {status}"))) }
}

/// Whether a command runs and succeeds. Its output is discarded.
pub(crate) fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let output = Command::new(program).args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}

pub(crate) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// Copies a file and its permissions if its content differs. A rename puts it in place, so that a watcher never sees half a file.
pub(crate) fn copy_if_changed(from: &Path, to: &Path) -> Done {
    let content = std::fs::read(from).map_err(|error| Failure(format!("{}: {error}", from.display())))?;
    if std::fs::read(to).is_ok_and(|present| present == content) {
        return Ok(());
    }
    if let Some(parent) = to.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let part = to.with_extension("part");
    // Programs stay executable.
    std::fs::copy(from, &part)?;
    std::fs::rename(&part, to)?;
    Ok(())
}
