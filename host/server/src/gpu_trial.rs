//! Tries a tensor model on a GPU in another process first, because a driver may end the process that uses it, or never answer.
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::Builder;
use std::time::Duration;

use camshaft_policy::{Ended, bound_time_of_this_process};
use camshaft_tensor::{BackendChoice, FileFormat, HAS_WGPU};

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

/// Where a model is to be computed of which `wanted` was asked for, with what an operator shall know.
pub(crate) fn backend(path: &Path, wanted: BackendChoice, bar: &LoadBar) -> (BackendChoice, Option<String>) {
    // No GPU computes ONNX models, and the manifest of one costs no more than a trial.
    if !HAS_WGPU || wanted == BackendChoice::Cpu || FileFormat::of(path) == Some(FileFormat::Onnx) {
        return (wanted, None);
    }
    match try_in_process(path, wanted, bar) {
        Ok(()) => (wanted, None),
        Err(why) => (BackendChoice::Cpu, Some(format!("the model is computed on the CPU, not by WebGPU: {why}"))),
    }
}

/// Why it does not work, if it does not.
fn try_in_process(path: &Path, wanted: BackendChoice, bar: &LoadBar) -> Result<(), String> {
    let program = own_program().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.arg(TRY_COMMAND).arg(path).args((wanted == BackendChoice::Wgpu).then_some(NAMED));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|error| error.to_string())?;
    let (ended, words) = probe::await_end(child, TRIAL_WALL, bar, Builder::new);
    match ended.map_err(|error| error.to_string())? {
        Ended::ByItself(status) if status.success() => Ok(()),
        Ended::ByItself(status) => Err(match probe::judge(path, status, &words, TRIAL_CPU) {
            ModelProblem::Refused { why, .. } => why,
            ModelProblem::Crash { signal, .. } => format!("the process that tried it crashed (signal {signal})"),
            problem => problem.to_string(),
        }),
        Ended::Late | Ended::Stopped => Err(format!("trying it took more than {} s", TRIAL_WALL.as_secs())),
    }
}

/// What the other process does: loads the model onto the GPU, where some numbers are computed and compared.
///
/// # Errors
/// It cannot be loaded at all.
pub(crate) fn try_here(path: &Path, is_named: bool) -> Result<(), ServerError> {
    // Without a bound of memory: drivers reserve far more addresses than they use.
    let bounded = bound_time_of_this_process(TRIAL_CPU);
    bounded.map_err(|error| ServerError::internal("bound the trial of a GPU", error))?;
    let choice = if is_named { BackendChoice::Wgpu } else { BackendChoice::Auto };
    let loaded = tensors::read(path).and_then(|read| read.load(choice));
    loaded
        .map(drop)
        .map_err(|problem| ServerError::model(&path.to_string_lossy(), &Origins::default(), "backend", problem))
}
