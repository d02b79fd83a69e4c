//! Who reads for a model: a process of this program that may be killed at any moment (`isolation = "process"`), or threads of this
//! one.
//!
//! The process loads the model's vocabulary and chat template, says what else the file says of the model, closes the file system, and
//! forks whenever somebody is to be read for ([`child`]). A fork has bounds of memory and CPU time, and does one task at a time, so
//! that whoever ran into a bound is known: its request gets an error that says what took too much, and nobody else's is touched
//! ([`host`]).
mod child;
mod host;

use std::fmt;
use std::sync::Arc;

use camshaft_api::TextModel;
use camshaft_core::engine::{ModelInfo, Tokenizer};
use camshaft_core::fake::ByteTokenizer;
use camshaft_core::family::description::Family;
use camshaft_core::grammar::GrammarStore;

use crate::config::{FamilyKey, IsolationKey, ModelConfig};
use crate::engines;
use crate::error::{ModelProblem, ServerError};
use crate::models::{self, Outlines};
use crate::own_program::has_roles;
use child::Setup;
pub(crate) use child::run;
use host::{NewReader, ReaderProcess};

/// The argument with which this program is a reader.
pub(crate) const ROLE: &str = "reader";

/// Somebody who has loaded a model's vocabulary.
pub(crate) struct Reading {
    /// What the file says, with the chat template of the configuration.
    pub(crate) info: ModelInfo,
    by: By,
}

enum By {
    Process(NewReader),
    Threads(Arc<dyn Tokenizer>),
}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reading").field("model", &self.info.name).finish_non_exhaustive()
    }
}

/// Has somebody load a model's vocabulary, and say what the file says; nothing, of a fake model.
///
/// # Errors
/// The file is no model that can be served, or there can be no process.
pub(crate) fn open(config: &ModelConfig, is_fake: bool) -> Result<(Reading, Option<Outlines>), ServerError> {
    let setup = Setup { config: config.clone(), is_fake, template: models::chat_template(config)? };
    let (by, outlines) = if is_isolated(config) {
        let started = NewReader::start(setup.clone()).map_err(|failure| failure.error(config));
        let (process, outlines) = started?;
        (By::Process(process), outlines)
    } else if is_fake {
        (By::Threads(Arc::new(ByteTokenizer)), None)
    } else {
        let (tokenizer, outlines) = models::outlines(config)?;
        (By::Threads(tokenizer), Some(outlines))
    };
    Ok((Reading { info: text_info(outlines.as_ref(), &setup), by }, outlines))
}

/// Whether processes of their own read and compute for a model.
pub(crate) fn is_isolated(config: &ModelConfig) -> bool {
    config.isolation == IsolationKey::Process && has_roles()
}

/// What is known of a model that reads texts, with the chat template of the configuration.
fn text_info(outlines: Option<&Outlines>, setup: &Setup) -> ModelInfo {
    let kind = setup.config.kind.wanted().unwrap_or(camshaft_core::engine::ModelKind::Generate);
    let info = outlines.map_or_else(|| engines::fake_info(kind), |outlines| outlines.model.info.clone());
    match &setup.template {
        Some(template) => ModelInfo { chat_template: Some(template.clone()), tool_template: None, ..info },
        None => info,
    }
}

impl Reading {
    /// Reads for a model from now on. `info`: what is known of it by now; `grammars`: what is compiled for it.
    ///
    /// # Errors
    /// Its process cannot read the vocabulary.
    pub(crate) fn serve(
        &self,
        config: &ModelConfig,
        info: ModelInfo,
        grammars: &Arc<GrammarStore>,
    ) -> Result<TextModel, ServerError> {
        let family: Option<&'static Family> = config.family.map(|FamilyKey(family)| family);
        match &self.by {
            By::Threads(tokenizer) => {
                let asked = config.isolation;
                let (model, isolation) =
                    (&config.id, if asked == IsolationKey::Thread { "as asked" } else { "no process can" });
                tracing::info!(model, isolation, "threads read for the model, and nothing bounds them");
                Ok(TextModel::local(info, tokenizer.clone(), grammars.clone(), family))
            }
            By::Process(process) => {
                let reader = ReaderProcess::of(process, camshaft_api::markers(family, &info));
                let why = |error| ModelProblem::said(format!("no process reads for it: {error}"));
                let reader =
                    reader.map_err(|error| ServerError::model(&config.id, &config.origins, "path", why(error)))?;
                Ok(TextModel { info, reader: Arc::new(reader) })
            }
        }
    }
}
