//! Tries a model's file in another process before it is loaded, because llama.cpp aborts on some corrupt files, and because
//! some files are made to take all memory or time.
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::thread::Builder;
use std::time::Duration;

use camshaft_core::adapters::AdapterSet;
use camshaft_core::engine::{Batch, Engine, EngineError, ModelKind};
use camshaft_core::ids::{SeqId, Token};
use camshaft_core::jobs::BatchModel;
use camshaft_core::sampling::Row;
use camshaft_engine::{
    EngineOptions, FlashAttention, KvLayout, LlamaEmbedder, LlamaEngine, LoadOptions, LoadedModel, parts_of,
};
use camshaft_policy::{Ended, ProcessBounds, bound_this_process, panic_in, wait_within};
use signal_hook::consts::{SIGKILL, SIGXCPU};

use crate::config::{Format, ModelConfig, Origins};
use crate::demo;
use crate::error::{ModelProblem, ServerError};
use crate::own_program::own_program;
use crate::progress::{self, LoadBar};
use crate::tensors;

const GIB: u64 = 1 << 30;
/// Memory beside the files. Weights are mapped, and some are stored again in another order.
const MEMORY_BYTES: u64 = 4 * GIB;
const MEMORY_PER_FILE_BYTE: u64 = 3;
/// CPU time, and time altogether, beside what the files' bytes take: each is read, some are stored again.
const CPU_SECONDS: u64 = 120;
const CPU_SECONDS_PER_GIB: u64 = 10;
const WALL_SECONDS: u64 = 600;
const WALL_SECONDS_PER_GIB: u64 = 60;
/// Bytes of what the process says before it ends.
const WORDS_BYTES: u64 = 64 << 10;

/// What is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tried<'a> {
    /// The model, with the adapters of its configuration.
    Model,
    Draft,
    /// This adapter, with the model.
    Adapter(&'a Path),
}

/// What the other process made of the file.
#[derive(Debug)]
pub(crate) enum Outcome {
    Good,
    Refused(ServerError),
}

impl Outcome {
    /// What came of loading the file here. An ordinary refusal is met again, and reported better.
    ///
    /// # Errors
    /// The file was not loaded, here or there.
    pub(crate) fn confirm<T>(self, loaded: Result<T, ServerError>) -> Result<T, ServerError> {
        match self {
            Self::Good => loaded,
            Self::Refused(error) => loaded.and(Err(error)),
        }
    }
}

/// Loads a file in another process first. The weights are mapped, so the second load finds them in the page cache.
///
/// # Errors
/// The process crashed or was killed, or there can be none.
pub(crate) fn probe(
    path: &Path,
    config: &ModelConfig,
    tried: Tried<'_>,
    bar: &LoadBar,
) -> Result<Outcome, ServerError> {
    let own = config.lora.iter().map(|path| ("lora", &**path));
    let listed = config.adapter.iter().map(|adapter| ("adapter", &*adapter.path));
    // In the order in which the other process comes to them.
    let files: Vec<(&str, &Path)> = match tried {
        Tried::Draft => vec![("draft-model", path)],
        Tried::Model => [("path", path)].into_iter().chain(own).chain(listed).collect(),
        Tried::Adapter(adapter) => [("path", path)].into_iter().chain(own).chain([("adapter", adapter)]).collect(),
    };
    let adapters = || files.iter().skip(1).map(|(_, path)| *path);
    let bounds = bounds(path, adapters());
    let program = own_program().map_err(|error| ServerError::internal("find the own program", error))?;
    let mut command = Command::new(program);
    command.arg("probe-model").arg(path);
    command.args(adapters().flat_map(|adapter| [Path::new("--adapter"), adapter]));
    let failed = |error| ServerError::internal("start the probe of a model", error);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let (ended, words) = await_end(child.map_err(failed)?, bounds.wall, bar, Builder::new);
    let (key, path) = files.get(bar.file()).copied().unwrap_or(("path", path));
    let model = |problem| ServerError::model(&config.id, &config.origins, key, problem);
    match ended.map_err(failed)? {
        Ended::ByItself(status) if status.success() => Ok(Outcome::Good),
        Ended::ByItself(status) => match judge(path, status, &words, bounds.cpu) {
            problem @ ModelProblem::Refused { .. } => Ok(Outcome::Refused(model(problem))),
            problem => Err(model(problem)),
        },
        Ended::Late => Err(model(ModelProblem::Late { path: path.to_owned(), limit: bounds.wall })),
        Ended::Stopped => Err(model(ModelProblem::Stopped)),
    }
}

/// How the process ended, and what it said on standard error; it is ended where the load is stopped. `thread` is asked for each thread that reads from it.
pub(crate) fn await_end(
    mut child: Child,
    wall: Duration,
    bar: &LoadBar,
    thread: impl Fn() -> Builder,
) -> (std::io::Result<Ended>, String) {
    let (out, err) = (child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        let follows = thread().spawn_scoped(scope, || bar.follow(out));
        let listens = thread().spawn_scoped(scope, || words_of(err));
        match (follows, listens) {
            (Ok(_), Ok(words)) => {
                let ended = wait_within(&mut child, wall, bar.stop());
                (ended, words.join().unwrap_or_default())
            }
            (Err(error), _) | (_, Err(error)) => {
                // Nobody reads what it says, which it may wait for. It has ended, or must.
                let _ = child.kill();
                let _ = child.wait();
                (Err(error), String::new())
            }
        }
    })
}

fn words_of(err: Option<ChildStderr>) -> String {
    let (mut words, Some(mut err)) = (Vec::new(), err) else { return String::new() };
    // What cannot be read is no loss; what is past the bound is read, so that the process need not wait.
    let _ = err.by_ref().take(WORDS_BYTES).read_to_end(&mut words);
    let _ = std::io::copy(&mut err, &mut std::io::sink());
    String::from_utf8_lossy(&words).into_owned()
}

/// Why a process that did not succeed ended.
pub(crate) fn judge(path: &Path, status: ExitStatus, words: &str, cpu: Duration) -> ModelProblem {
    let path = path.to_owned();
    let Some(signal) = status.signal() else {
        let last = || words.trim().lines().last().unwrap_or_default().trim_start_matches("camshaft: ").to_owned();
        return ModelProblem::Refused { path, why: panic_in(words).unwrap_or_else(last) };
    };
    if signal == SIGXCPU {
        return ModelProblem::Late { path, limit: cpu };
    }
    if signal == SIGKILL {
        return ModelProblem::Killed { path };
    }
    let tells =
        |line: &&str| ["ASSERT", "abort", "error", "memory allocation", "bad_alloc"].iter().any(|w| line.contains(w));
    let reason = words.lines().find(tells);
    let reason = reason.map(|line| line.trim().rsplit(".cpp:").next().unwrap_or_default().to_owned());
    ModelProblem::Crash { path, signal, reason }
}

/// What trying these files may take.
fn bounds<'a>(path: &Path, adapters: impl IntoIterator<Item = &'a Path>) -> ProcessBounds {
    let bytes = adapters.into_iter().map(file_bytes).fold(file_bytes(path), u64::saturating_add);
    let seconds = |base: u64, per_gib: u64| Duration::from_secs(base + bytes.div_ceil(GIB) * per_gib);
    ProcessBounds {
        memory_bytes: bytes.saturating_mul(MEMORY_PER_FILE_BYTE).saturating_add(MEMORY_BYTES),
        mapped_bytes: bytes,
        cpu: seconds(CPU_SECONDS, CPU_SECONDS_PER_GIB),
        wall: seconds(WALL_SECONDS, WALL_SECONDS_PER_GIB),
    }
}

/// Size of a file, with all the parts of one that is split (`name-00001-of-00003.gguf`).
fn file_bytes(path: &Path) -> u64 {
    // A file that is not there is refused later.
    let bytes = |path: &Path| std::fs::metadata(path).map_or(0, |data| data.len());
    if path == Path::new(demo::NAME) {
        return demo::BYTES;
    }
    if Format::of(path) == Format::Tensors {
        return tensors::most_bytes(path);
    }
    parts_of(path).iter().map(|part| bytes(part)).fold(0, u64::saturating_add)
}

/// What the other process of [`probe`] does: loads the file, makes a small context, decodes one token, and another one under
/// each adapter.
///
/// # Errors
/// The file cannot be served.
pub(crate) fn probe_here(path: &Path, adapters: &[PathBuf]) -> Result<(), ServerError> {
    fn bad<T>(path: &Path, result: Result<T, impl Into<ModelProblem>>) -> Result<T, ServerError> {
        let id = path.to_string_lossy();
        result.map_err(|problem| ServerError::model(&id, &Origins::default(), "path", problem))
    }
    let bounded = bound_this_process(bounds(path, adapters.iter().map(PathBuf::as_path)));
    bounded.map_err(|error| ServerError::internal("bound the probe of a model", error))?;
    if Format::of(path) == Format::Tensors {
        return bad(path, tensors::try_here(path));
    }
    let load = LoadOptions { progress: Some(progress::tell_parent()), ..LoadOptions::default() };
    let is_demo = path == Path::new(demo::NAME);
    let model = if is_demo { demo::load(&load) } else { LoadedModel::from_file(path, &load) };
    let model = bad(path, model)?;
    let options = EngineOptions {
        sequences: 1,
        kv_tokens: 64,
        kv_layout: KvLayout::Pooled,
        batch_tokens: 16,
        ..EngineOptions::default()
    };
    // Characters that only byte tokens can stand for.
    let _ = model.tokenizer().tokenize("a \u{1F600}\u{1}", true, true);
    if model.info().kind == ModelKind::Embed {
        let mut embedder = bad(path, LlamaEmbedder::new(&model, 64, 64, 1, FlashAttention::Auto))?;
        let vectors = bad(path, embedder.compute(&[[Token(0)].into()]))?;
        let vectors: Result<Vec<_>, _> = vectors.into_iter().collect();
        return bad(path, vectors.map(drop).map_err(|error| EngineError::Failed(error.to_string())));
    }
    let mut engine = bad(path, LlamaEngine::new(&model, &options))?;
    let mut batch = Batch::default();
    batch.push(Token(0), 0, SeqId(0), true);
    bad(path, engine.decode(&batch))?;
    bad(path, Row::default().load(engine.logits(0)).map_err(|error| EngineError::Failed(error.to_string())))?;
    for (i, adapter) in adapters.iter().enumerate() {
        progress::tell_file(i + 1);
        engine.truncate(SeqId(0), 0);
        let loaded = bad(adapter, model.load_adapter(adapter))?;
        batch.adapters = AdapterSet::new([(loaded.digest(), 1.0)]);
        bad(adapter, engine.decode(&batch))?;
        let row = Row::default().load(engine.logits(0));
        bad(adapter, row.map_err(|error| EngineError::Failed(error.to_string())))?;
    }
    progress::tell_file(0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, wall: Duration) -> (std::io::Result<Ended>, String) {
        shell_with(script, wall, Builder::new)
    }

    fn shell_with(script: &str, wall: Duration, thread: impl Fn() -> Builder) -> (std::io::Result<Ended>, String) {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        await_end(command.spawn().unwrap(), wall, &LoadBar::new("m", &crate::progress::ProgressSink::default()), thread)
    }

    #[test]
    fn regression_without_threads_the_probe_ends_with_an_error() {
        for threads in 0..2 {
            let asked = std::cell::Cell::new(0);
            let thread = || {
                // No thread has room for a stack of the second size.
                let stack = if asked.replace(asked.get() + 1) < threads { 64 << 10 } else { 1 << 50 };
                Builder::new().stack_size(stack)
            };
            let (ended, words) = shell_with("while true; do sleep 1; done", Duration::from_secs(600), thread);
            assert!(ended.is_err() && words.is_empty(), "{threads} threads: {ended:?}");
        }
    }

    #[test]
    fn what_ended_the_process_is_told_apart() {
        let bounds = bounds(Path::new("none"), []);
        let problem = |script: &str| match shell(script, Duration::from_secs(60)) {
            (Ok(Ended::ByItself(status)), words) => judge(Path::new("m.gguf"), status, &words, bounds.cpu).to_string(),
            other => panic!("{script}: {other:?}"),
        };
        let sentences = [
            ("echo noise >&2; echo camshaft: no good >&2; exit 65", "bad model file m.gguf: no good"),
            (
                "echo \"thread 'main' panicked at a.rs:1:2:\" >&2; echo no such luck >&2
                 echo 'note: run with `RUST_BACKTRACE=1`' >&2; exit 101",
                "bad model file m.gguf: panicked at a.rs:1:2: no such luck",
            ),
            ("kill -XCPU $$", "more than 120 s"),
            ("kill -KILL $$", "cannot try the model file m.gguf: the process that tried it was killed (signal 9)"),
            ("echo 'x.cpp:7: GGML_ASSERT(a)' >&2; kill -ABRT $$", "(signal 6): 7: GGML_ASSERT(a)"),
            ("echo memory allocation of 9 bytes failed >&2; kill -ABRT $$", "memory allocation of 9 bytes failed"),
        ];
        for (script, words) in sentences {
            let said = problem(script);
            assert!(said.contains(words), "{script}: {said}");
        }
    }

    #[test]
    fn regression_a_process_that_never_ends_or_says_too_much_is_ended() {
        let late = shell("while true; do sleep 1; done", Duration::ZERO);
        assert!(matches!(late, (Ok(Ended::Late), _)), "{late:?}");
        let (ended, words) = shell("head -c 1000000 /dev/zero >&2", Duration::from_secs(60));
        assert!(matches!(ended, Ok(Ended::ByItself(status)) if status.success()), "{ended:?}");
        assert_eq!(words.len() as u64, WORDS_BYTES);
    }

    #[test]
    fn a_load_that_is_stopped_ends_the_process_that_tries_the_file() {
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "while true; do sleep 1; done"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let bar = LoadBar::new("m", &progress::ProgressSink::default().until(stop));
        let (ended, _) = await_end(command.spawn().unwrap(), Duration::from_secs(600), &bar, Builder::new);
        assert!(matches!(ended, Ok(Ended::Stopped)), "{ended:?}");
    }

    #[test]
    fn bounds_grow_with_all_parts_of_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: u64| {
            let path = dir.path().join(name);
            std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
            path
        };
        let first = file("m-00001-of-00002.gguf", GIB);
        file("m-00002-of-00002.gguf", 2 * GIB);
        let lora = file("lora.gguf", GIB);
        let expected = ProcessBounds {
            memory_bytes: 16 * GIB,
            mapped_bytes: 4 * GIB,
            cpu: Duration::from_secs(160),
            wall: Duration::from_secs(840),
        };
        assert_eq!(bounds(&first, [&*lora]), expected);
        assert_eq!(bounds(&lora, []).memory_bytes, 7 * GIB);
        assert_eq!(bounds(Path::new("none"), []).memory_bytes, MEMORY_BYTES);
    }

    #[test]
    fn regression_what_the_other_process_refused_is_not_served() {
        let refused = || {
            let problem = ModelProblem::Refused { path: "m.gguf".into(), why: "too large".to_owned() };
            Outcome::Refused(ServerError::model("m", &Origins::default(), "path", problem))
        };
        assert!(refused().confirm(Ok(())).unwrap_err().to_string().contains("too large"));
        let better = || Err(ServerError::NoDiskCache);
        assert!(matches!(refused().confirm::<()>(better()), Err(ServerError::NoDiskCache)));
        assert!(matches!(Outcome::Good.confirm(Ok(7)), Ok(7)));
    }
}
