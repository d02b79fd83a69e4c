//! Tries a tensor model on a GPU in another process first, because a driver may end the process that uses it, or never answer.
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::Builder;
use std::time::Duration;

use camshaft_policy::{Ended, bound_time_of_this_process};
use camshaft_tensor::{BackendChoice, FileFormat, GpuUse, HAS_WGPU, not_by_gpu};

use crate::config::Origins;
use crate::error::{ModelProblem, ServerError};
use crate::own_program::own_program;
use crate::progress::LoadBar;
use crate::{probe, tensors};

/// What a trial may take. Drivers compile for a device when it is used first; a software one does so slowly.
const TRIAL_CPU: Duration = Duration::from_secs(300);
const TRIAL_WALL: Duration = Duration::from_secs(300);
/// What a trial runs, before its arguments.
const TRY_COMMAND: &str = "try-backend";
/// Says that a GPU was asked for by name.
const NAMED: &str = "--named";
/// Exit code of a trial that has nothing to try: there is no GPU, and none was asked for by name.
const NO_GPU: i32 = 69;

/// What came of a trial.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Tried {
    Computed,
    NoGpu,
    /// With the reason.
    Failed(String),
}

/// Where a model is to be computed of which `wanted` was asked for, with what an operator shall know.
pub(crate) fn backend(path: &Path, wanted: BackendChoice, bar: &LoadBar) -> (BackendChoice, Option<String>) {
    // No GPU computes ONNX models, and the manifest of one costs no more than a trial.
    if !HAS_WGPU || wanted == BackendChoice::Cpu || FileFormat::of(path) == Some(FileFormat::Onnx) {
        return (wanted, None);
    }
    match try_in_process(path, wanted, bar) {
        Tried::Computed => (wanted, None),
        Tried::NoGpu => (BackendChoice::Cpu, None),
        Tried::Failed(why) => (BackendChoice::Cpu, Some(not_by_gpu(&why))),
    }
}

fn try_in_process(path: &Path, wanted: BackendChoice, bar: &LoadBar) -> Tried {
    let started = own_program().and_then(|program| {
        let mut command = Command::new(program);
        command.arg(TRY_COMMAND).arg(path).args((wanted == BackendChoice::Wgpu).then_some(NAMED));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    });
    match started {
        Ok(child) => outcome(path, child, TRIAL_WALL, bar),
        Err(error) => Tried::Failed(error.to_string()),
    }
}

/// What the process found, which may take `wall`.
fn outcome(path: &Path, child: Child, wall: Duration, bar: &LoadBar) -> Tried {
    let (ended, words) = probe::await_end(child, wall, bar, Builder::new);
    let status = match ended {
        Ok(Ended::ByItself(status)) => status,
        Ok(Ended::Late) => return Tried::Failed(format!("trying it took more than {} s", wall.as_secs())),
        Ok(Ended::Stopped) => return Tried::Failed(ModelProblem::Stopped.to_string()),
        Err(error) => return Tried::Failed(error.to_string()),
    };
    match status.code() {
        Some(0) => Tried::Computed,
        Some(NO_GPU) => Tried::NoGpu,
        _ => Tried::Failed(match probe::judge(path, status, &words, TRIAL_CPU) {
            ModelProblem::Refused { why, .. } => why,
            ModelProblem::Crash { signal, .. } => format!("the process that tried it crashed (signal {signal})"),
            problem => problem.to_string(),
        }),
    }
}

/// What the other process does: loads the model onto the GPU, where some numbers are computed and compared. Ends the process where
/// there is nothing to try.
///
/// # Errors
/// It cannot be loaded at all, or no GPU computes it.
pub(crate) fn try_here(path: &Path, is_named: bool) -> Result<(), ServerError> {
    // Without a bound of memory: drivers reserve far more addresses than they use.
    let bounded = bound_time_of_this_process(TRIAL_CPU);
    bounded.map_err(|error| ServerError::internal("bound the trial of a GPU", error))?;
    let choice = if is_named { BackendChoice::Wgpu } else { BackendChoice::Auto };
    let model = tensors::read(path)
        .and_then(|read| read.load(choice))
        .map_err(|problem| ServerError::model(&path.to_string_lossy(), &Origins::default(), "backend", problem))?;
    match model.gpu_use() {
        GpuUse::Computes => Ok(()),
        // The load itself goes on with the CPU.
        GpuUse::Fails(why) => Err(ServerError::internal("try a GPU", anyhow::anyhow!("{why}"))),
        GpuUse::None => std::process::exit(NO_GPU),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::ProgressSink;

    /// What is made of a process that runs this script.
    fn of(script: &str, wall: Duration) -> Tried {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let bar = LoadBar::new("m", &ProgressSink::default());
        outcome(Path::new("m.toml"), command.spawn().unwrap(), wall, &bar)
    }

    #[test]
    fn only_a_trial_that_computed_has_a_gpu_compute() {
        assert_eq!(of("exit 0", TRIAL_WALL), Tried::Computed);
        assert_eq!(of("exit 69", TRIAL_WALL), Tried::NoGpu);
        for (script, words) in [
            ("echo noise >&2; echo 'camshaft: try a GPU: it is lost' >&2; exit 70", "try a GPU: it is lost"),
            ("kill -SEGV $$", "crashed (signal 11)"),
            ("kill -KILL $$", "signal 9"),
        ] {
            let tried = of(script, TRIAL_WALL);
            assert!(matches!(&tried, Tried::Failed(why) if why.contains(words)), "{script}: {tried:?}");
        }
    }

    #[test]
    fn a_trial_that_passes_its_bound_of_time_leaves_the_model_to_the_cpu() {
        let (cpu, wall) = (TRIAL_CPU.as_secs(), TRIAL_WALL.as_secs());
        let row = format!("| a process with {cpu} s of CPU, {wall} s altogether;");
        assert!(include_str!("../../../docs/limits.md").contains(&row), "docs/limits.md has no row with {row}");
        // The system ends a process that takes more CPU time with a signal of its own.
        let cpu = of("kill -XCPU $$", TRIAL_WALL);
        assert!(
            matches!(&cpu, Tried::Failed(why) if why.contains(&format!("more than {} s", TRIAL_CPU.as_secs()))),
            "{cpu:?}"
        );
        let wall = of("while true; do sleep 1; done", Duration::ZERO);
        assert_eq!(wall, Tried::Failed("trying it took more than 0 s".to_owned()));
    }
}
