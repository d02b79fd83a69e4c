//! Who reads for a model: a process of this program that may be killed at any moment (`isolation = "process"`), or threads of this
//! one.
//!
//! The process loads the model's vocabulary and chat template and nothing else, closes the file system, and forks whenever somebody is
//! to be read for ([`child`]). A fork has bounds of memory and CPU time, and does one task at a time, so that whoever ran into a bound is known: its
//! request gets an error that says what took too much, and nobody else's is touched ([`host`]).
mod child;
mod host;

use std::path::PathBuf;
use std::sync::Arc;

use camshaft_api::TextModel;
use camshaft_core::engine::{ModelInfo, Tokenizer};
use camshaft_core::family::description::Family;
use camshaft_core::grammar::GrammarStore;
use camshaft_reader::TemplateSource;
use serde::{Deserialize, Serialize};

use crate::config::{FamilyKey, IsolationKey, ModelConfig};
use crate::error::{ModelProblem, ServerError};
use crate::own_program::has_roles;
pub(crate) use child::run;
use host::ReaderProcess;

/// The argument with which this program is a reader.
pub(crate) const ROLE: &str = "reader";

/// A model's vocabulary, wherever it comes from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Origin {
    File(PathBuf),
    Demo,
    Fake,
}

/// What is known of a model that reads texts, before anybody reads for it.
pub(crate) struct Readable {
    pub(crate) info: ModelInfo,
    pub(crate) tokenizer: Arc<dyn Tokenizer>,
    pub(crate) origin: Origin,
}

/// Starts whoever reads for a model. `grammars`: what is compiled for it here.
///
/// # Errors
/// Its process cannot be started, or does not load the vocabulary that is here.
pub(crate) fn start(
    config: &ModelConfig,
    readable: Readable,
    grammars: &Arc<GrammarStore>,
) -> Result<TextModel, ServerError> {
    let Readable { info, tokenizer, origin } = readable;
    let family: Option<&'static Family> = config.family.map(|FamilyKey(family)| family);
    let can_fork = has_roles();
    if config.isolation == IsolationKey::Process && !can_fork {
        tracing::warn!(
            model = config.id,
            "no process can read for the model here: threads do, and nothing bounds them"
        );
    }
    if config.isolation == IsolationKey::Thread {
        tracing::info!(
            model = config.id,
            "threads read for the model, and nothing bounds them: isolation is \"thread\""
        );
    }
    if config.isolation == IsolationKey::Thread || !can_fork {
        return Ok(TextModel::local(info, tokenizer, grammars.clone(), family));
    }
    let setup = child::Setup { origin, template: TemplateSource::of(&info) };
    let markers = camshaft_api::markers(family, &info);
    let reader = ReaderProcess::start(&config.id, setup, markers, info.vocabulary.digest());
    let why = |error| ModelProblem::Process(format!("no process reads for it: {error}"));
    let reader = reader.map_err(|error| ServerError::model(&config.id, &config.origins, "path", why(error)))?;
    Ok(TextModel { info, reader: Arc::new(reader) })
}
