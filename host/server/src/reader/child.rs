//! The process that reads.
use std::io::{self, BufReader};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use camshaft_core::engine::{ModelInfo, ModelKind, Tokenizer};
use camshaft_core::fake::ByteTokenizer;
use camshaft_core::grammar::GrammarStore;
use camshaft_engine::{LoadOptions, LoadedModel, Placement};
use camshaft_process::{
    AddressSpace, bound_time, confine, control, frames, make_expendable, most_memory, say, serve_forks,
};
use camshaft_reader::{Answer, ModelReader, ReadError, Stage, Task, TemplateSource};
use rustix::process::{getpriority_process, setpriority_process};
use serde::{Deserialize, Serialize};

use super::Origin;
use crate::{demo, weights};

/// Nice value of what may wait: about a quarter of a core where engines want it.
const POLITE: i32 = 5;
/// CPU time of loading a vocabulary.
const LOAD_SECONDS: u64 = 120;
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
    pub(super) origin: Origin,
    pub(super) template: TemplateSource,
}

/// What it says when it has loaded it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ready {
    pub(super) vocabulary: [u8; 32],
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
    /// Engines come before it.
    pub(super) is_polite: bool,
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
    let model = load(&setup);
    let vocabulary = match &model {
        Ok((_, info)) => Ok(info.vocabulary.digest()),
        Err(error) => Err(error.to_string()),
    };
    let memory = AddressSpace::of_this_process()?;
    let confined = confine();
    bound_time(u64::MAX)?;
    let ready = vocabulary.map(|vocabulary| Ready { vocabulary, confined: (confined.files, confined.calls) });
    frames::send(&mut control, &ready)?;
    let (tokenizer, info) = model?;
    let grammars = Arc::new(GrammarStore::new(info.vocabulary));
    let model = &ModelReader::new(setup.template, tokenizer, grammars);
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
            serve(model, connection, purpose);
        }
    })
}

fn load(setup: &Setup) -> io::Result<(Arc<dyn Tokenizer>, ModelInfo)> {
    let options = LoadOptions { placement: Placement::Nowhere, ..LoadOptions::default() };
    let model = match &setup.origin {
        Origin::Fake => return Ok((Arc::new(ByteTokenizer), weights::fake_info(ModelKind::Generate))),
        Origin::Demo => demo::load(&options),
        Origin::File(path) => LoadedModel::from_file(path, &options),
    };
    let model = model.map_err(io::Error::other)?;
    Ok((model.tokenizer(), model.info().clone()))
}

/// What a fork does: one task after the other.
fn serve(model: &ModelReader, mut connection: UnixStream, purpose: Purpose) {
    let most = most_memory().saturating_add(WORN_BYTES);
    say(IDLE);
    if purpose.is_polite {
        let nice = getpriority_process(None).map_or(POLITE, |nice| nice.max(POLITE));
        // Where the system refuses, it reads as others do.
        let _ = setpriority_process(None, nice);
    }
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
