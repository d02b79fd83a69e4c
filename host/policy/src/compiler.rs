//! What the process does that compiles one component for another process, see [`crate::sandbox`].
use std::io::{self, Read, Write};
use std::path::Path;

use rustix::process::setpriority_process;

use crate::error::PolicyError;
use crate::examine;
use crate::files::COMPONENT_MAX_BYTES;
use crate::process::{ProcessBounds, bound_this_process};
use crate::sandbox::{NOT_KEPT, PANICKED, REFUSED};

/// How much less it asks of the CPU than those that serve.
const NICE: i32 = 19;
/// Exit code where the component is not to blame.
const FAILED: u8 = 74;

/// What the other process does: compiles the component on standard input into the cache, and says on standard error why
/// it does not. Returns the exit code.
pub fn compile_here(cache_dir: &Path, bounds: ProcessBounds) -> u8 {
    let bounded = bound_this_process(bounds).and_then(|()| Ok(setpriority_process(None, NICE)?));
    let mut bytes = Vec::new();
    let read = bounded.and_then(|()| io::stdin().lock().take(COMPONENT_MAX_BYTES + 1).read_to_end(&mut bytes));
    let (code, said): (u8, String) = match read.map(|_| examine::compile_into(cache_dir, &bytes)) {
        Ok(Ok(())) => return 0,
        Ok(Err(PolicyError::Corrupt(cause))) => (REFUSED, cause.to_string()),
        Ok(Err(PolicyError::CompilerPanic)) => (PANICKED, String::new()),
        Ok(Err(PolicyError::CodeNotKept { .. })) => (NOT_KEPT, String::new()),
        Ok(Err(error)) => (FAILED, error.sentence()),
        Err(error) => (FAILED, error.to_string()),
    };
    // Nobody reads it where this fails.
    let _ = io::stderr().write_all(said.as_bytes());
    code
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::load::bench::component;

    #[test]
    fn regression_code_that_the_cache_does_not_take_is_not_compiled() {
        let bytes = component("plugins/scheduler-fcfs");
        let dir = tempfile::tempdir().unwrap();
        examine::compile_into(dir.path(), &bytes).unwrap();
        examine::compile_into(dir.path(), &bytes).expect("it is there already");
        let full = tempfile::tempdir().unwrap();
        // In this folder wasmtime would keep it, and it says nothing where it cannot.
        fs::write(full.path().join("modules"), "").unwrap();
        let refused = examine::compile_into(full.path(), &bytes);
        assert!(matches!(refused, Err(PolicyError::CodeNotKept { .. })), "{refused:?}");
    }
}
