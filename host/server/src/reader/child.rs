//! The process that reads.
use std::fs;
use std::io::{self, BufReader};
use std::iter;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use camshaft_core::engine::Tokenizer;
use camshaft_core::fake::ByteTokenizer;
use camshaft_core::grammar::GrammarStore;
use camshaft_process::{
    AddressSpace, bound_time, confine, control, frames, make_expendable, most_memory, say, serve_forks,
};
use camshaft_reader::{Answer, ModelReader, ReadError, Stage, Task, TemplateSource};
use serde::{Deserialize, Serialize};

use super::text_info;
use crate::config::ModelConfig;
use crate::error::{Failure, ServerError};
use crate::models::{self, Outlines};

/// CPU time of loading a vocabulary, and memory beside the bytes of its file.
const LOAD_SECONDS: u64 = 120;
const LOAD_BYTES: u64 = 4 << 30;
/// CPU time of receiving a task.
const RECEIVE_SECONDS: u64 = 10;
/// Memory that a fork may have taken and go on.
const WORN_BYTES: u64 = 64 << 20;
/// What a fork is called that does nothing, and what stands before the name of what it reads.
const IDLE: &str = "reader";
const READS: &str = "read-";

/// What a reader is made of.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Setup {
    pub(super) config: ModelConfig,
    /// Nothing is read from a file.
    pub(super) is_fake: bool,
    /// The chat template of the configuration, in the place of the file's.
    pub(super) template: Option<String>,
}

/// What it says when it has loaded it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ready {
    /// `None`: of a fake model.
    pub(super) outlines: Option<Outlines>,
    /// No file can be opened; no socket can be made.
    pub(super) confined: (bool, bool),
}

/// What a fork is for.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Purpose {
    /// The template was found to compile.
    pub(super) has_template: bool,
    /// Grammars can be compiled for the vocabulary: what all of them need is made ready.
    pub(super) has_grammars: bool,
    /// Addresses that it may take beside those that it shares with the others. Most are never touched.
    pub(super) memory_bytes: u64,
}

/// A task, and the CPU time in seconds that it may take.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Timed<T> {
    pub(super) seconds: u64,
    pub(super) task: T,
}

/// What comes of a task.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Answered {
    pub(super) answer: Result<Answer, ReadError>,
    /// The fork has taken much memory, which would count against the next task.
    pub(super) is_worn: bool,
}

/// # Errors
/// There is no parent, or the vocabulary cannot be loaded.
pub(crate) fn run() -> io::Result<()> {
    let mut control = control()?;
    say(IDLE);
    make_expendable()?;
    bound_time(LOAD_SECONDS)?;
    let Some(setup) = frames::receive::<Setup>(&mut control)? else { return Ok(()) };
    let memory = AddressSpace::of_this_process()?;
    memory.bound(load_bytes(&setup.config))?;
    let loaded = load(&setup);
    let confined = confine();
    bound_time(u64::MAX)?;
    let (tokenizer, outlines) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => return frames::send(&mut control, &Err::<Ready, _>(Failure::of(&error))),
    };
    let info = text_info(outlines.as_ref(), &setup);
    let ready = Ready { outlines, confined: (confined.files, confined.calls) };
    frames::send(&mut control, &Ok::<_, Failure>(ready))?;
    let template = TemplateSource::of(&info);
    let grammars = Arc::new(GrammarStore::new(info.vocabulary));
    let model = &ModelReader::new(template, tokenizer, grammars);
    let prepare = |purpose: &Purpose| {
        // What is made here, all forks have. What it says is met again there.
        if purpose.has_template {
            let _ = model.template();
        }
        if purpose.has_grammars {
            let _ = model.grammars().prepare();
        }
    };
    serve_forks(control, prepare, |connection, purpose: Purpose| {
        if memory.bound(purpose.memory_bytes).is_ok() {
            serve(model, connection);
        }
    })
}

fn load(setup: &Setup) -> Result<(Arc<dyn Tokenizer>, Option<Outlines>), ServerError> {
    if setup.is_fake {
        return Ok((Arc::new(ByteTokenizer), None));
    }
    let (tokenizer, outlines) = models::outlines(&setup.config)?;
    Ok((tokenizer, Some(outlines)))
}

/// What loading may take of memory. What is looked at is not in memory, but for the vocabulary.
fn load_bytes(config: &ModelConfig) -> u64 {
    let files = iter::once(config.file_name()).chain(config.draft_model.clone());
    let bytes = files.filter_map(|file| fs::metadata(file).ok()).map(|file| file.len()).fold(0, u64::saturating_add);
    LOAD_BYTES.saturating_add(bytes)
}

/// What a fork does: one task after the other.
fn serve(model: &ModelReader, mut connection: UnixStream) {
    let most = most_memory().saturating_add(WORN_BYTES);
    say(IDLE);
    let Ok(mut tasks) = connection.try_clone().map(BufReader::new) else { return };
    while let Ok(Some(Timed { seconds, task })) = frames::receive::<Timed<Task>>(&mut tasks) {
        if bound_time(seconds).is_err() {
            return;
        }
        let answer = model.read(task, &|stage| say(&format!("{READS}{stage}")));
        let is_worn = most_memory() > most;
        if frames::send(&mut connection, &Answered { answer, is_worn }).is_err() || bound_time(RECEIVE_SECONDS).is_err()
        {
            return;
        }
        say(IDLE);
    }
}

/// What a fork that ended was reading, by its name.
pub(super) fn stage_of(name: &str) -> Option<Stage> {
    let reads = name.strip_prefix(READS)?;
    [Stage::Template, Stage::Vocabulary, Stage::Grammar].into_iter().find(|stage| stage.to_string() == reads)
}
