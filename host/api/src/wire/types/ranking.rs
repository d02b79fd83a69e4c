//! `/v1/rerank` and `/v1/score`.
use camshaft_core::limits;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::embeddings::EmbeddingUsage;
use super::generation::Adapter;

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct RerankRequest {
    pub(crate) query: String,
    pub(crate) documents: RankedTexts,
    /// Results returned, best first.
    #[schemars(range(min = 1))]
    pub(crate) top_n: Option<u32>,
    /// Results have `document.text`.
    pub(crate) return_documents: Option<bool>,
    #[serde(flatten)]
    pub(crate) fields: RankingFields,
}

/// One text for all of the other, or as many as there: `text_1` and `text_2`, `queries` and `documents`, or `data_1` and `data_2`.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ScoreRequest {
    pub(crate) text_1: Option<RankedTexts>,
    pub(crate) text_2: Option<RankedTexts>,
    pub(crate) queries: Option<RankedTexts>,
    pub(crate) documents: Option<RankedTexts>,
    pub(crate) data_1: Option<RankedTexts>,
    pub(crate) data_2: Option<RankedTexts>,
    #[serde(flatten)]
    pub(crate) fields: RankingFields,
}

/// Fields of both endpoints.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct RankingFields {
    /// An id from `/v1/models`; the only model where one is served or allowed.
    pub(crate) model: Option<String>,
    /// Seconds from arrival to the answer.
    #[schemars(range(min = 0.001))]
    pub(crate) timeout: Option<f64>,
    #[schemars(extend("x-support" = "refused"))]
    pub(crate) lora: Option<Vec<Adapter>>,
    #[schemars(extend("x-support" = "refused"))]
    pub(crate) rank_fields: Option<Value>,
    #[schemars(extend("x-support" = "refused"))]
    pub(crate) max_tokens_per_doc: Option<Value>,
    #[schemars(extend("x-support" = "refused"))]
    pub(crate) max_chunks_per_doc: Option<Value>,
    #[schemars(extend("x-support" = "refused"))]
    pub(crate) truncate_prompt_tokens: Option<Value>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum RankedTexts {
    One(RankedText),
    Several(#[schemars(length(min = 1, max = limits::RANKED))] Vec<RankedText>),
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum RankedText {
    Text(String),
    Object { text: String },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reranked {
    pub(crate) id: String,
    /// `list`.
    pub(crate) object: String,
    pub(crate) model: String,
    pub(crate) results: Vec<RankedDocument>,
    pub(crate) usage: EmbeddingUsage,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RankedDocument {
    /// Of the document in the request.
    pub(crate) index: u64,
    /// -1 to 1.
    pub(crate) relevance_score: f64,
    /// With `return_documents`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) document: Option<ReturnedDocument>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReturnedDocument {
    pub(crate) text: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScoreList {
    pub(crate) id: String,
    /// `list`.
    pub(crate) object: String,
    /// Seconds since the Unix epoch.
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) data: Vec<ScoredPair>,
    pub(crate) usage: EmbeddingUsage,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScoredPair {
    pub(crate) index: u64,
    /// `score`.
    pub(crate) object: String,
    /// -1 to 1.
    pub(crate) score: f64,
}
