//! The program that runs, for processes of its own.
use std::io;
use std::path::PathBuf;

/// Where this program can be started again: whatever lies at its path by now, this is what runs.
///
/// # Errors
/// The system does not say.
pub(crate) fn own_program() -> io::Result<PathBuf> {
    let running = PathBuf::from("/proc/self/exe");
    if running.exists() { Ok(running) } else { std::env::current_exe() }
}
