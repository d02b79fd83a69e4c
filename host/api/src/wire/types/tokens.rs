//! `/v1/tokenize`, `/v1/detokenize`, `/v1/chat/template` and the sessions.
use camshaft_core::limits;
use schemars::JsonSchema;
use serde::Serialize;

use super::generation::{LoraEntry, adapters_once, visible};
use crate::wire::read::request;

request! {
    TokenizeRequest {
        model: String,
        #[garde(required)]
        text: String,
        /// Adds the tokens that the model puts around a text.
        add_special: bool,
        /// The spelling of a control token becomes that token.
        parse_special: bool,
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Tokenized {
    pub(crate) tokens: Vec<u32>,
    /// Start and end of what each token was made of, in bytes. Null if nobody knows: the tokens do not spell the text.
    pub(crate) offsets: Option<Vec<[u32; 2]>>,
}

request! {
    DetokenizeRequest {
        model: String,
        #[garde(required)]
        tokens: Vec<u32>,
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Detokenized {
    /// Bytes that are not UTF-8 are replaced.
    pub(crate) text: String,
}

/// The prompt that a chat's messages make.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct ChatPrompt {
    pub(crate) prompt: String,
    pub(crate) tokens: Vec<u32>,
}

request! {
    CloseSessionRequest {
        model: String,
        #[garde(required, length(min = 1, max = limits::SESSION_ID), custom(visible))]
        session_id: String,
        /// Those that the session was used with.
        #[garde(length(max = limits::ADAPTERS_OF_REQUEST), dive, custom(adapters_once))]
        lora: Vec<LoraEntry>,
        /// The one that the session was used with.
        #[garde(length(min = 1, max = limits::CACHE_KEY_BYTES))]
        prompt_cache_key: String,
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct ClosedSession {
    pub(crate) id: String,
    /// `session.closed`.
    pub(crate) object: String,
    /// Whether there was such a session.
    pub(crate) closed: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct SessionList {
    /// `list`.
    pub(crate) object: String,
    pub(crate) data: Vec<Session>,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Session {
    pub(crate) id: String,
    /// `session`.
    pub(crate) object: String,
    pub(crate) model: String,
    /// Length of the prefix that it keeps.
    pub(crate) tokens: u32,
    /// When it is closed if no request uses it before.
    pub(crate) expires_in_seconds: u64,
    /// That it is used with.
    pub(crate) prompt_cache_key: Option<String>,
    /// Whether it is used with adapters (`lora`).
    pub(crate) adapted: bool,
}
