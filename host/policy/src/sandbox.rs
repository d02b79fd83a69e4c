//! Compiles components in a process of its own, within bounds: a component may be made to take the compiler's memory or
//! time. The code comes back through the directory of compiled code.
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use camshaft_core::policy::Hook;
use camshaft_core::shown::on_one_line;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::Signal;

use crate::addresses::Addresses;
use crate::error::PolicyError;
use crate::memory::memory_left;
use crate::process::{Ended, ProcessBounds, panic_in, wait_within};
use crate::task::Task;

/// Bytes of the child's last words.
const WORDS_BYTES: u64 = 4096;

/// What one compile may take. The interpreters of Python and JavaScript take 20 s and 360 MB.
pub const COMPILE_BOUNDS: ProcessBounds = ProcessBounds {
    memory_bytes: 2 << 30,
    mapped_bytes: 0,
    cpu: Duration::from_secs(120),
    wall: Duration::from_secs(540),
};

/// A program that calls [`crate::compile_here`] with the arguments that follow these: the cache, the hook, [`Addresses`]
/// by their name, and bounds in bytes and seconds.
#[derive(Debug, Clone)]
pub struct CompileProgram {
    pub program: PathBuf,
    pub arguments: Vec<OsString>,
    /// Variables that it has besides.
    pub environment: Vec<(&'static str, &'static str)>,
    pub bounds: ProcessBounds,
}

/// Exit codes of the child for a component that it did not compile.
pub(crate) const REFUSED: u8 = 65;
pub(crate) const PANICKED: u8 = 70;
/// For one that needs more than a policy may have.
pub(crate) const OVER_LIMITS: u8 = 66;
/// For one of another hook, whose name it says.
pub(crate) const WRONG_HOOK: u8 = 67;
/// For one that is no policy of any hook.
pub(crate) const UNFIT: u8 = 68;
/// For code that could not be kept, and why.
pub(crate) const NOT_KEPT: u8 = 73;

/// For what a component was to be compiled.
#[derive(Debug, Clone, Copy)]
struct Asked<'a> {
    hook: Hook,
    cache_dir: &'a Path,
}

impl CompileProgram {
    /// Has the component's code put into the directory.
    ///
    /// # Errors
    /// It is no policy of the hook, is past a bound, or `stopping` was set; or the process cannot be started or was killed.
    pub(crate) fn compile(&self, cache_dir: &Path, task: &Task<'_>, addresses: Addresses) -> Result<(), PolicyError> {
        let failed = |source| PolicyError::CompileProcess { source };
        let file = |bytes: &[u8]| memory(bytes).map_err(failed);
        let (component, mut words) = (file(task.bytes)?, file(b"")?);
        let said = words.try_clone().map_err(failed)?;
        let ProcessBounds { memory_bytes, cpu, .. } = self.bounds;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).arg(cache_dir).arg(task.hook.as_str());
        command.arg(addresses.as_str()).arg(memory_bytes.to_string()).arg(cpu.as_secs().to_string());
        command.envs(self.environment.iter().copied());
        command.stdin(component).stdout(Stdio::null()).stderr(said);
        let left = memory_left();
        let mut child = command.spawn().map_err(failed)?;
        let ended = wait_within(&mut child, self.bounds.wall, task.stopping);
        let status = match ended.map_err(failed)? {
            Ended::ByItself(status) => status,
            Ended::Late => return Err(PolicyError::CompileTime { limit: self.bounds.wall }),
            Ended::Stopped => return Err(PolicyError::CompileStopped),
        };
        self.judge(status, left, &told(&mut words), Asked { hook: task.hook, cache_dir })
    }

    /// `left`: what the control group left to the process when it began.
    fn judge(&self, status: ExitStatus, left: Option<u64>, words: &str, asked: Asked<'_>) -> Result<(), PolicyError> {
        let signal = |signal: Signal| status.signal() == Some(signal.as_raw());
        // Rust adds it where `RUST_BACKTRACE` is set.
        let words = words.split("stack backtrace:").next().unwrap_or_default();
        let said = on_one_line(panic_in(words).as_deref().unwrap_or(words).trim());
        let limit_bytes = self.bounds.memory_bytes;
        match status.code().map(u8::try_from) {
            Some(Ok(0)) => Ok(()),
            Some(Ok(WRONG_HOOK)) => Err(match Hook::ALL.into_iter().find(|hook| hook.as_str() == said) {
                Some(found) => PolicyError::WrongHook { found, expected: asked.hook },
                None => PolicyError::Unfit(said),
            }),
            Some(Ok(UNFIT)) => Err(PolicyError::Unfit(said)),
            Some(Ok(REFUSED)) => Err(PolicyError::Corrupt(said.into())),
            Some(Ok(OVER_LIMITS)) => Err(PolicyError::OverLimits(said.into())),
            Some(Ok(PANICKED)) => Err(PolicyError::CompilerPanic),
            Some(Ok(NOT_KEPT)) => {
                Err(PolicyError::CodeNotKept { path: asked.cache_dir.to_path_buf(), source: io::Error::other(said) })
            }
            Some(_) => Err(PolicyError::CompileProcess { source: io::Error::other(said) }),
            None if signal(Signal::XCPU) => Err(PolicyError::CompileTime { limit: self.bounds.cpu }),
            // An allocation that fails aborts.
            None if signal(Signal::ABORT) => Err(match left.filter(|left| *left < limit_bytes) {
                Some(left_bytes) => PolicyError::CompileMemoryLeft { left_bytes, said },
                None => PolicyError::CompileMemory { limit_bytes, said },
            }),
            // A crash is no lack of memory that may pass.
            None if signal(Signal::SEGV) => Err(PolicyError::CompileMemory { limit_bytes, said }),
            None => Err(PolicyError::CompileKilled { signal: status.signal().unwrap_or_default() }),
        }
    }
}

/// What a process wrote to a file, as far as it is kept.
fn told(file: &mut File) -> String {
    let mut text = String::new();
    if file.rewind().is_ok() {
        // What is no UTF-8 is no loss.
        let _ = Read::by_ref(file).take(WORDS_BYTES).read_to_string(&mut text);
    }
    text
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
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn shell(script: &str, wall: Duration) -> CompileProgram {
        let arguments = vec!["-c".into(), script.into()];
        let bounds = ProcessBounds { wall, ..COMPILE_BOUNDS };
        CompileProgram { program: "/bin/sh".into(), arguments, environment: Vec::new(), bounds }
    }

    fn compiled_by(program: &CompileProgram, stopping: bool) -> Result<(), PolicyError> {
        let stopping = AtomicBool::new(stopping);
        let task = Task { hook: Hook::Auth, bytes: b"component", stopping: &stopping };
        program.compile(Path::new("/cache"), &task, Addresses::Plenty)
    }

    fn outcome(script: &str) -> Result<(), PolicyError> {
        compiled_by(&shell(script, Duration::from_secs(60)), false)
    }

    #[test]
    fn what_ended_the_process_is_told_apart() {
        outcome("test \"$(cat)\" = component && test \"$0 $1\" = '/cache auth'").unwrap();
        let sentences = [
            ("echo no such thing >&2; exit 65", "file is truncated or corrupt: no such thing"),
            ("echo 129 instances >&2; exit 66", "needs more than a policy may have: 129 instances"),
            ("echo sampler >&2; exit 67", "wrong hook: exports camshaft:sampler/policy but lies in auth/"),
            ("echo exports nothing >&2; exit 68", "exports nothing"),
            ("exit 70", "the compiler panicked"),
            (
                "echo \"thread 'main' panicked at a.rs:1:2:\" >&2; echo no such luck >&2
                 echo 'note: run with `RUST_BACKTRACE=1`' >&2; exit 101",
                "compiles it: panicked at a.rs:1:2: no such luck",
            ),
            ("echo no space >&2; exit 73", "could not be kept in /cache: no space"),
            (
                "echo unheard of >&2; echo stack backtrace: >&2; exit 3",
                "cannot run the process that compiles it: unheard of",
            ),
            ("kill -XCPU $$", "more than the 120 s"),
            ("echo out of memory >&2; kill -ABRT $$", "more than the 2147483648 bytes of memory (or the stack)"),
            ("kill -SEGV $$", "or the stack"),
            ("kill -KILL $$", "killed by signal 9"),
        ];
        for (script, words) in sentences {
            let error = outcome(script).unwrap_err().sentence();
            assert!(error.contains(words) && !error.contains("backtrace"), "{script}: {error}");
        }
        let nobody = CompileProgram { program: "/nowhere".into(), ..shell("", Duration::ZERO) };
        let error = compiled_by(&nobody, false).unwrap_err();
        assert!(matches!(error, PolicyError::CompileProcess { .. }), "{error}");
    }

    #[test]
    fn memory_that_the_control_group_does_not_leave_may_be_there_later() {
        let program = shell("", Duration::ZERO);
        let ended = |signal: Signal, left| {
            let status = ExitStatus::from_raw(signal.as_raw());
            program.judge(status, left, "no memory", Asked { hook: Hook::Auth, cache_dir: Path::new("/") }).unwrap_err()
        };
        let judged = |left| ended(Signal::ABORT, left);
        let bound = COMPILE_BOUNDS.memory_bytes;
        for (left, passes) in [(None, false), (Some(bound), false), (Some(bound - 1), true), (Some(7), true)] {
            assert_eq!(judged(left).is_transient(), passes, "{left:?}: {}", judged(left));
        }
        assert!(!ended(Signal::SEGV, Some(7)).is_transient(), "a crash comes again");
        assert!(judged(Some(7)).sentence().contains("more than the 7 bytes of memory that its control group leaves"));
    }

    #[test]
    fn regression_a_process_that_never_ends_is_ended() {
        let never = "while true; do sleep 1; done";
        let stopped = compiled_by(&shell(never, Duration::from_secs(3600)), true);
        assert!(matches!(stopped, Err(PolicyError::CompileStopped)), "{stopped:?}");
        let late = compiled_by(&shell(never, Duration::ZERO), false);
        assert!(matches!(late, Err(PolicyError::CompileTime { limit: Duration::ZERO })), "{late:?}");
    }
}
