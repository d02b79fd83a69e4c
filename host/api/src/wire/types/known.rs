//! The fields that each endpoint knows: the properties of its type.
use std::collections::BTreeSet;
use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};

use super::chat::ChatRequest;
use super::completions::CompletionRequest;
use super::embeddings::EmbeddingRequest;
use super::generate::GenerateRequest;
use super::messages::{CountTokensRequest, MessagesRequest};
use super::ranking::{RerankRequest, ScoreRequest};
use super::responses::ResponsesRequest;
use super::tokens::{CloseSessionRequest, DetokenizeRequest, TokenizeRequest};

pub(crate) static CHAT: LazyLock<Known> = LazyLock::new(Known::of::<ChatRequest>);
pub(crate) static RESPONSES: LazyLock<Known> = LazyLock::new(|| Known::over::<ResponsesRequest>(&CHAT));
pub(crate) static MESSAGES: LazyLock<Known> = LazyLock::new(|| Known::over::<MessagesRequest>(&CHAT));
pub(crate) static COUNT_TOKENS: LazyLock<Known> = LazyLock::new(|| Known::over::<CountTokensRequest>(&CHAT));
pub(crate) static GENERATE: LazyLock<Known> = LazyLock::new(|| Known::over::<GenerateRequest>(&COMPLETIONS));
pub(crate) static RERANK: LazyLock<Known> = LazyLock::new(Known::of::<RerankRequest>);
pub(crate) static SCORE: LazyLock<Known> = LazyLock::new(Known::of::<ScoreRequest>);
pub(crate) static COMPLETIONS: LazyLock<Known> = LazyLock::new(Known::of::<CompletionRequest>);
pub(crate) static EMBEDDINGS: LazyLock<Known> = LazyLock::new(Known::of::<EmbeddingRequest>);
pub(crate) static TOKENIZE: LazyLock<Known> = LazyLock::new(Known::of::<TokenizeRequest>);
pub(crate) static DETOKENIZE: LazyLock<Known> = LazyLock::new(Known::of::<DetokenizeRequest>);
pub(crate) static CLOSE_SESSION: LazyLock<Known> = LazyLock::new(Known::of::<CloseSessionRequest>);

/// Names of fields.
#[derive(Debug)]
pub(crate) struct Known(BTreeSet<String>);

impl Known {
    /// Those of a type, and those of the endpoint that serves its requests: what the first lacks is passed on.
    fn over<T: JsonSchema>(served: &Self) -> Self {
        let Self(mut names) = Self::of::<T>();
        names.extend(served.0.iter().cloned());
        Self(names)
    }

    fn of<T: JsonSchema>() -> Self {
        let properties = schema::<T>();
        let names = properties.get("properties").and_then(|properties| properties.as_object());
        Self(names.into_iter().flatten().map(|(name, _)| name.clone()).collect())
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.0.contains(name)
    }
}

/// The schema of a body, without references.
pub(crate) fn schema<T: JsonSchema>() -> Schema {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<T>()
}
