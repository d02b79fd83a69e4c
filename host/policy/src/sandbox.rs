//! Compiles components in a process of its own, within bounds: a component may be made to take the compiler's memory or
//! time. The code comes back through the cache of compiled code.
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::Signal;

use crate::error::PolicyError;
use crate::memory::memory_left;
use crate::process::{Ended, ProcessBounds, wait_within};
use crate::text::{on_one_line, truncated};

/// Bytes of the child's last words.
const WORDS_BYTES: u64 = 4096;

/// What one compile may take. The interpreters of Python and JavaScript take 20 s and 360 MB.
pub const COMPILE_BOUNDS: ProcessBounds = ProcessBounds {
    memory_bytes: 2 << 30,
    mapped_bytes: 0,
    cpu: Duration::from_secs(120),
    wall: Duration::from_secs(540),
};

/// A program that calls [`crate::compile_here`] with the arguments that follow these: the cache, and bounds in bytes and seconds.
#[derive(Debug, Clone)]
pub struct CompileProgram {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
    pub bounds: ProcessBounds,
}

/// Exit codes of the child for a component that it did not compile.
pub(crate) const REFUSED: u8 = 65;
pub(crate) const PANICKED: u8 = 70;
/// For one that needs more than a policy may have.
pub(crate) const OVER_LIMITS: u8 = 66;
/// For code that the cache did not take.
pub(crate) const NOT_KEPT: u8 = 73;

impl CompileProgram {
    /// Has the component's code put into the cache.
    ///
    /// # Errors
    /// It is no component, is past a bound, or `stopping` was set; or the process cannot be started or was killed.
    pub(crate) fn compile(&self, cache_dir: &Path, bytes: &[u8], stopping: &AtomicBool) -> Result<(), PolicyError> {
        let failed = |source| PolicyError::CompileProcess { source };
        let (component, mut words) = (memory(bytes).map_err(failed)?, memory(b"").map_err(failed)?);
        let said = words.try_clone().map_err(failed)?;
        let ProcessBounds { memory_bytes, cpu, .. } = self.bounds;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).arg(cache_dir).arg(memory_bytes.to_string()).arg(cpu.as_secs().to_string());
        command.stdin(component).stdout(Stdio::null()).stderr(said);
        let left = memory_left();
        let mut child = command.spawn().map_err(failed)?;
        let ended = wait_within(&mut child, self.bounds.wall, stopping);
        let mut text = String::new();
        if words.rewind().is_ok() {
            // What is no UTF-8 is no loss.
            let _ = Read::by_ref(&mut words).take(WORDS_BYTES).read_to_string(&mut text);
        }
        let status = match ended.map_err(failed)? {
            Ended::ByItself(status) => status,
            Ended::Late => return Err(PolicyError::CompileTime { limit: self.bounds.wall }),
            Ended::Stopped => return Err(PolicyError::CompileStopped),
        };
        self.judge(status, cache_dir, left, on_one_line(truncated(text.trim(), WORDS_BYTES as usize)))
    }

    /// `left`: what the control group left to the process when it began.
    fn judge(&self, status: ExitStatus, cache_dir: &Path, left: Option<u64>, said: String) -> Result<(), PolicyError> {
        let signal = |signal: Signal| status.signal() == Some(signal.as_raw());
        match status.code().map(u8::try_from) {
            Some(Ok(0)) => Ok(()),
            Some(Ok(REFUSED)) => Err(PolicyError::Corrupt(said.into())),
            Some(Ok(OVER_LIMITS)) => Err(PolicyError::OverLimits(said.into())),
            Some(Ok(PANICKED)) => Err(PolicyError::CompilerPanic),
            Some(Ok(NOT_KEPT)) => Err(PolicyError::CodeNotKept { path: cache_dir.to_path_buf() }),
            Some(_) => Err(PolicyError::CompileProcess { source: io::Error::other(said) }),
            None if signal(Signal::XCPU) => Err(PolicyError::CompileTime { limit: self.bounds.cpu }),
            // An allocation that fails, and a stack that overflows, abort.
            None if signal(Signal::ABORT) || signal(Signal::SEGV) => {
                let limit_bytes = self.bounds.memory_bytes;
                Err(match left.filter(|left| *left < limit_bytes) {
                    Some(left_bytes) => PolicyError::CompileMemoryLeft { left_bytes, said },
                    None => PolicyError::CompileMemory { limit_bytes, said },
                })
            }
            None => Err(PolicyError::CompileKilled { signal: status.signal().unwrap_or_default() }),
        }
    }
}

/// A file in memory that holds `bytes`, to be read from its beginning.
fn memory(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create("component", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, wall: Duration) -> CompileProgram {
        let arguments = vec!["-c".into(), script.into()];
        let bounds = ProcessBounds { wall, ..COMPILE_BOUNDS };
        CompileProgram { program: "/bin/sh".into(), arguments, bounds }
    }

    fn outcome(script: &str) -> Result<(), PolicyError> {
        let program = shell(script, Duration::from_secs(60));
        program.compile(Path::new("/cache"), b"component", &AtomicBool::new(false))
    }

    #[test]
    fn what_ended_the_process_is_told_apart() {
        outcome("test \"$(cat)\" = component && test \"$0\" = /cache").unwrap();
        let sentences = [
            ("echo no such thing >&2; exit 65", "file is truncated or corrupt: no such thing"),
            ("echo 129 instances >&2; exit 66", "needs more than a policy may have: 129 instances"),
            ("exit 70", "the compiler panicked"),
            ("exit 73", "could not be kept in /cache"),
            ("echo unheard of >&2; exit 3", "cannot run the process that compiles it: unheard of"),
            ("kill -XCPU $$", "more than the 120 s"),
            ("echo out of memory >&2; kill -ABRT $$", "more than the 2147483648 bytes of memory (or the stack)"),
            ("kill -SEGV $$", "or the stack"),
            ("kill -KILL $$", "killed by signal 9"),
        ];
        for (script, words) in sentences {
            let error = outcome(script).unwrap_err().sentence();
            assert!(error.contains(words), "{script}: {error}");
        }
        let nobody = CompileProgram { program: "/nowhere".into(), ..shell("", Duration::ZERO) };
        let error = nobody.compile(Path::new("/"), b"", &AtomicBool::new(false)).unwrap_err();
        assert!(matches!(error, PolicyError::CompileProcess { .. }), "{error}");
    }

    #[test]
    fn memory_that_the_control_group_does_not_leave_may_be_there_later() {
        let program = shell("", Duration::ZERO);
        let aborted = || ExitStatus::from_raw(Signal::ABORT.as_raw());
        let judged = |left| program.judge(aborted(), Path::new("/"), left, "no memory".to_owned()).unwrap_err();
        let bound = COMPILE_BOUNDS.memory_bytes;
        for (left, passes) in [(None, false), (Some(bound), false), (Some(bound - 1), true), (Some(7), true)] {
            assert_eq!(judged(left).is_transient(), passes, "{left:?}: {}", judged(left));
        }
        assert!(judged(Some(7)).sentence().contains("more than the 7 bytes of memory that its control group leaves"));
    }

    #[test]
    fn regression_a_process_that_never_ends_is_ended() {
        let never = "while true; do sleep 1; done";
        let stopped = shell(never, Duration::from_secs(3600)).compile(Path::new("/"), b"", &AtomicBool::new(true));
        assert!(matches!(stopped, Err(PolicyError::CompileStopped)), "{stopped:?}");
        let late = shell(never, Duration::ZERO).compile(Path::new("/"), b"", &AtomicBool::new(false));
        assert!(matches!(late, Err(PolicyError::CompileTime { limit: Duration::ZERO })), "{late:?}");
    }
}
