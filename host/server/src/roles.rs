//! The roles in which this program is started again, for processes of its own.
use std::io::Write;
use std::process::ExitCode;

use crate::{own_program, reader, worker_process};

/// Does what the argument of this process says, where it is a role. To be called at the beginning of `main`, by programs that start
/// helpers.
pub(crate) fn run() -> Option<ExitCode> {
    own_program::take_roles();
    let role = std::env::args_os().nth(1)?;
    if role == worker_process::ROLE {
        return Some(worker_process::run());
    }
    (role == reader::ROLE).then(|| match reader::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Its standard error is the server's.
            let _ = writeln!(std::io::stderr(), "camshaft: the process that reads: {error}");
            ExitCode::FAILURE
        }
    })
}
