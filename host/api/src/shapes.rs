//! Reads answers through the types that describe them, for tests.
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::wire::types::chat::{ChatChunk, ChatCompletion};
use crate::wire::types::completions::Completion;
use crate::wire::types::embeddings::EmbeddingList;
use crate::wire::types::errors::{ErrorResponse, InferenceErrorResponse};
use crate::wire::types::generate::{GenerateEvent, Generation};
use crate::wire::types::messages::{CountedTokens, Message, MessageErrorResponse, MessageEvent};
use crate::wire::types::models::{ModelDetails, ModelList};
use crate::wire::types::ranking::{Reranked, ScoreList};
use crate::wire::types::response_events::ResponseEvent;
use crate::wire::types::responses::Response;
use crate::wire::types::tokens::{ChatPrompt, ClosedSession, Detokenized, SessionList, Tokenized};

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
    Response,
    ResponseEvent,
    Message,
    MessageEvent,
    MessageError,
    CountedTokens,
    Generation,
    GenerateEvent,
    ChatPrompt,
    Reranked,
    Scores,
    Error,
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
        Shape::Response => through::<Response>(answer),
        Shape::ResponseEvent => through::<ResponseEvent>(answer),
        Shape::Message => through::<Message>(answer),
        Shape::MessageEvent => through::<MessageEvent>(answer),
        Shape::MessageError => through::<MessageErrorResponse>(answer),
        Shape::CountedTokens => through::<CountedTokens>(answer),
        Shape::Generation => through::<Generation>(answer),
        Shape::GenerateEvent => through::<GenerateEvent>(answer),
        Shape::ChatPrompt => through::<ChatPrompt>(answer),
        Shape::Reranked => through::<Reranked>(answer),
        Shape::Scores => through::<ScoreList>(answer),
        Shape::Error => through::<ErrorResponse>(answer),
        Shape::InferenceError => through::<InferenceErrorResponse>(answer),
    }
}

fn through<T: Serialize + DeserializeOwned>(answer: &Value) -> Result<Value, serde_json::Error> {
    // By its text: a number with few bits is written with as many digits as it needs.
    serde_json::from_str(&serde_json::to_string(&T::deserialize(answer)?)?)
}
