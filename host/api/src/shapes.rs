//! Reads answers through the types that describe them, for tests.
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::wire::types::chat::{ChatChunk, ChatCompletion};
use crate::wire::types::completions::Completion;
use crate::wire::types::embeddings::EmbeddingList;
use crate::wire::types::errors::{ErrorResponse, InferenceErrorResponse, MessagesErrorResponse};
use crate::wire::types::models::{ModelDetails, ModelList};
use crate::wire::types::tokens::{ClosedSession, Detokenized, SessionList, Tokenized};

/// What an answer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    ChatCompletion,
    ChatChunk,
    Completion,
    Embeddings,
    Models,
    Model,
    Tokenized,
    Detokenized,
    ClosedSession,
    Sessions,
    Error,
    /// Under `/v1/messages`.
    MessagesError,
    /// Under `/v2`.
    InferenceError,
}

/// The answer as its type writes it again.
///
/// # Errors
/// It is not of the type.
pub fn round_trip(shape: Shape, answer: &Value) -> Result<Value, serde_json::Error> {
    match shape {
        Shape::ChatCompletion => through::<ChatCompletion>(answer),
        Shape::ChatChunk => through::<ChatChunk>(answer),
        Shape::Completion => through::<Completion>(answer),
        Shape::Embeddings => through::<EmbeddingList>(answer),
        Shape::Models => through::<ModelList>(answer),
        Shape::Model => through::<ModelDetails>(answer),
        Shape::Tokenized => through::<Tokenized>(answer),
        Shape::Detokenized => through::<Detokenized>(answer),
        Shape::ClosedSession => through::<ClosedSession>(answer),
        Shape::Sessions => through::<SessionList>(answer),
        Shape::Error => through::<ErrorResponse>(answer),
        Shape::MessagesError => through::<MessagesErrorResponse>(answer),
        Shape::InferenceError => through::<InferenceErrorResponse>(answer),
    }
}

fn through<T: Serialize + DeserializeOwned>(answer: &Value) -> Result<Value, serde_json::Error> {
    // By its text: a number with few bits is written with as many digits as it needs.
    serde_json::from_str(&serde_json::to_string(&T::deserialize(answer)?)?)
}
