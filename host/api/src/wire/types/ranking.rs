//! `/v1/rerank` and `/v1/score`.
use camshaft_core::limits;
use garde::rules::length::simple::HasSimpleLength;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::embeddings::EmbeddingUsage;
use super::generation::not_zero;
use super::values::{TextOrList, TextOrObject, Whole};
use crate::wire::read::request;

request! {
    RerankRequest {
        #[garde(required)]
        query: String,
        #[garde(required, length(min = 1, max = limits::RANKED))]
        documents: RankedTexts,
        /// Results returned, best first.
        #[garde(range(min = 1.0))]
        top_n: Whole,
        /// Results have `document.text`.
        return_documents: bool,
    }
    with common: RankingFields
}

request! {
    /// One text for all of the other, or as many as there: `text_1` and `text_2`, `queries` and `documents`, or `data_1` and `data_2`.
    ScoreRequest {
        #[garde(length(min = 1, max = limits::RANKED))]
        text_1: RankedTexts,
        #[garde(length(min = 1, max = limits::RANKED))]
        text_2: RankedTexts,
        #[garde(length(min = 1, max = limits::RANKED))]
        queries: RankedTexts,
        #[garde(length(min = 1, max = limits::RANKED))]
        documents: RankedTexts,
        #[garde(length(min = 1, max = limits::RANKED))]
        data_1: RankedTexts,
        #[garde(length(min = 1, max = limits::RANKED))]
        data_2: RankedTexts,
    }
    with common: RankingFields
}

request! {
    /// Fields of both endpoints.
    RankingFields {
        /// An id from `/v1/models`; the only model where one is served or allowed.
        model: String,
        /// Seconds from arrival to the answer.
        #[garde(range(min = 0.001))]
        timeout: f64,
        /// Cuts a longer text at its end to this many tokens. -1: to what the model takes.
        #[garde(range(min = -1.0, max = limits::TRUNCATED_TOKENS.max), custom(not_zero))]
        truncate_prompt_tokens: Whole,
        /// Cuts a longer document at its end to this many tokens.
        #[garde(range(min = 1.0, max = limits::TRUNCATED_TOKENS.max))]
        max_tokens_per_doc: Whole,
    }
    refused {
        lora: "Option<Vec<Value>>", "is not supported: lora is only for models that generate";
        rank_fields: "Option<Vec<String>>", "is not supported: documents are texts";
        max_chunks_per_doc: "Option<u32>", "is not supported: a document is read in one piece";
    }
}

/// A text, or a list of texts or of objects with `text`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub(crate) struct RankedTexts(pub(crate) TextOrList<TextOrObject<RankedObject>>);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct RankedObject {
    pub(crate) text: String,
}

impl HasSimpleLength for RankedTexts {
    fn length(&self) -> usize {
        self.0.length()
    }
}

impl RankedTexts {
    /// The texts, each with its path in the body below `name`.
    pub(crate) fn with_paths(&self, name: &str) -> Vec<(String, &str)> {
        match &self.0 {
            TextOrList::Text(text) => vec![(name.to_owned(), text.as_str())],
            TextOrList::List(list) => list
                .iter()
                .enumerate()
                .map(|(i, entry)| match entry {
                    TextOrObject::Text(text) | TextOrObject::Object(RankedObject { text }) => {
                        (format!("{name}[{i}]"), text.as_str())
                    }
                })
                .collect(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Reranked {
    pub(crate) id: String,
    /// `list`.
    pub(crate) object: String,
    pub(crate) model: String,
    pub(crate) results: Vec<RankedDocument>,
    pub(crate) usage: EmbeddingUsage,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct RankedDocument {
    /// Of the document in the request.
    pub(crate) index: u64,
    /// -1 to 1.
    pub(crate) relevance_score: f32,
    /// With `return_documents`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) document: Option<ReturnedDocument>,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct ReturnedDocument {
    pub(crate) text: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
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

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct ScoredPair {
    pub(crate) index: u64,
    /// `score`.
    pub(crate) object: String,
    /// -1 to 1.
    pub(crate) score: f32,
}
