//! The program that runs, and the roles in which it is started again, for processes of its own.
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{reader, worker_process};

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

/// Whether this program can be started in a role. (A process that is emulated would be one of the emulator.)
pub(crate) fn has_roles() -> bool {
    HAS_ROLES.load(Ordering::Relaxed) && !camshaft_policy::is_emulated()
}

/// Does what the argument of this process says, where it is one of a helper's roles. To be called at the beginning of `main`, by
/// programs that start helpers.
pub(crate) fn run_role() -> Option<ExitCode> {
    HAS_ROLES.store(true, Ordering::Relaxed);
    let role = std::env::args_os().nth(1)?;
    if role == worker_process::ROLE {
        return Some(worker_process::run());
    }
    (role == reader::ROLE).then(|| match reader::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Its standard error is the server's.
            let _ = writeln!(io::stderr(), "camshaft: the process that reads: {error}");
            ExitCode::FAILURE
        }
    })
}
