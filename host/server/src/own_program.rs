//! The program that runs, for processes of its own.
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this program takes the arguments that are roles.
static HAS_ROLES: AtomicBool = AtomicBool::new(false);

/// Where this program can be started again: whatever lies at its path by now, this is what runs.
///
/// # Errors
/// The system does not say.
pub(crate) fn own_program() -> io::Result<PathBuf> {
    let running = PathBuf::from("/proc/self/exe");
    if running.exists() { Ok(running) } else { std::env::current_exe() }
}

/// From now on this program can be started in a role.
pub(crate) fn take_roles() {
    HAS_ROLES.store(true, Ordering::Relaxed);
}

/// Whether this program can be started in a role. (A process that is emulated would be one of the emulator.)
pub(crate) fn has_roles() -> bool {
    HAS_ROLES.load(Ordering::Relaxed) && !camshaft_policy::is_emulated()
}
