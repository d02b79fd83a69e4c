//! `/v1/embeddings`.
use camshaft_core::limits;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::generation::not_zero;
use super::values::{Input, Whole};
use crate::wire::read::request;
use crate::wire::read::rules::refused;

request! {
    EmbeddingRequest {
        #[garde(required, length(min = 1, max = limits::EMBED_INPUTS))]
        input: Input,
        /// An id from `/v1/models`; the only model where one is served or allowed.
        model: String,
        /// Length of the vectors: the model's, or a shorter one that it was trained for.
        #[garde(range(min = 1.0))]
        dimensions: Whole,
        encoding_format: EncodingFormat,
        /// The end user. A hash of it is logged.
        #[schemars(with = "Option<String>", extend("x-support" = "logged"))]
        user: Value,
        #[garde(custom(refused("is not supported: lora is only for models that generate")))]
        #[schemars(with = "Option<Vec<Value>>", extend("x-support" = "refused", "x-own" = true))]
        lora: Value,
    }
    own {
        /// Seconds from arrival to the answer.
        #[garde(range(min = 0.001))]
        timeout: f64,
        /// Cuts a longer input at its end to this many tokens. -1: to what the model takes.
        #[garde(range(min = -1.0, max = limits::TRUNCATED_TOKENS.max), custom(not_zero))]
        truncate_prompt_tokens: Whole,
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EncodingFormat {
    #[default]
    Float,
    /// Little-endian 32-bit floats.
    Base64,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct EmbeddingList {
    /// `list`.
    pub(crate) object: String,
    pub(crate) data: Vec<Embedding>,
    pub(crate) model: String,
    pub(crate) usage: EmbeddingUsage,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Embedding {
    /// `embedding`.
    pub(crate) object: String,
    pub(crate) index: u64,
    pub(crate) embedding: Vector,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Vector {
    Numbers(Vec<f32>),
    Base64(String),
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct EmbeddingUsage {
    pub(crate) prompt_tokens: u64,
    pub(crate) total_tokens: u64,
}
