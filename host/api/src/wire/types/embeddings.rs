//! `/v1/embeddings`.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::completions::Input;

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct EmbeddingRequest {
    pub(crate) input: Input,
    /// An id from `/v1/models`; the only model where one is served or allowed.
    pub(crate) model: Option<String>,
    /// Length of the vectors: the model's, or a shorter one that it was trained for.
    #[schemars(range(min = 1))]
    pub(crate) dimensions: Option<u32>,
    pub(crate) encoding_format: Option<EncodingFormat>,
    /// The end user. A hash of it is logged.
    #[schemars(extend("x-support" = "logged"))]
    pub(crate) user: Option<String>,
    /// Seconds from arrival to the answer.
    #[schemars(range(min = 0.001), extend("x-own" = true))]
    pub(crate) timeout: Option<f64>,
    #[schemars(extend("x-support" = "refused", "x-own" = true))]
    pub(crate) lora: Option<Vec<super::generation::Adapter>>,
    #[schemars(extend("x-support" = "refused", "x-own" = true))]
    pub(crate) truncate_prompt_tokens: Option<i64>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EncodingFormat {
    Float,
    /// Little-endian 32-bit floats.
    Base64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EmbeddingList {
    /// `list`.
    pub(crate) object: String,
    pub(crate) data: Vec<Embedding>,
    pub(crate) model: String,
    pub(crate) usage: EmbeddingUsage,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Embedding {
    /// `embedding`.
    pub(crate) object: String,
    pub(crate) index: u64,
    pub(crate) embedding: Vector,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Vector {
    Numbers(Vec<f64>),
    Base64(String),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EmbeddingUsage {
    pub(crate) prompt_tokens: u64,
    pub(crate) total_tokens: u64,
}
