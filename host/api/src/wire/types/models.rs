//! `/v1/models`.
use camshaft_core::engine::ModelKind;
use camshaft_core::sampling::SamplingParams;
use schemars::JsonSchema;
use serde::Serialize;
use serde_with::skip_serializing_none;

use crate::wire::tensor_objects::SpecObject;

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Model {
    pub(crate) id: String,
    /// `model`.
    pub(crate) object: String,
    /// Time of loading, in seconds since the Unix epoch; 0 of one that is not in memory.
    pub(crate) created: u64,
    /// `camshaft`.
    pub(crate) owned_by: String,
    /// The id, under the name that Anthropic's API has for it.
    pub(crate) display_name: String,
    /// Tokens of prompt and output together, or of one input, at most, under the names that other servers have for it; of a model
    /// in memory that reads texts.
    pub(crate) max_model_len: Option<u32>,
    pub(crate) context_length: Option<u32>,
    /// Of an adapter: its model.
    pub(crate) parent: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct ModelList {
    /// `list`.
    pub(crate) object: String,
    pub(crate) data: Vec<Model>,
}

/// One model, with facts beyond OpenAI's shape: of one that is in memory those of its kind.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct ModelDetails {
    #[serde(flatten)]
    pub(crate) model: Model,
    /// `null`: nobody knows before it is loaded.
    #[schemars(with = "Option<String>")]
    pub(crate) task: Option<ModelKind>,
    /// `ready`, `loading`, `asleep`, `unhealthy` or `failed`.
    pub(crate) state: String,
    #[serde(flatten)]
    pub(crate) facts: Option<Facts>,
}

#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Facts {
    Text(TextFacts),
    Tensors(TensorFacts),
}

/// Of a model that reads texts.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct TextFacts {
    /// Tokens of prompt and output of a request together, or of one input, at most.
    pub(crate) context_tokens: u32,
    pub(crate) trained_context_tokens: u32,
    pub(crate) vocabulary_tokens: usize,
    pub(crate) parameters: u64,
    /// How most weights are stored, if the file says so (`Q4_K - Medium`).
    #[serialize_always]
    pub(crate) quantization: Option<String>,
    /// `ranges`: a prefix that several requests share is computed once; `none`.
    pub(crate) prefix_reuse: PrefixReuse,
    /// Whether the model has one of its own.
    pub(crate) chat_template: bool,
    /// What it is asked by: `chat`, `completions`, `tools`, `structured_outputs`, `reasoning` (its thinking comes apart from its
    /// answer), `logprobs`, `infill` (`suffix`), `adapters` (`lora`) and `sessions`, or `embeddings`.
    pub(crate) capabilities: Vec<String>,
    /// In whose notation it writes tool calls and thinking: the `family` of its configuration, else the one that its chat template
    /// shows; `generic` where it shows none. Of a model that generates.
    pub(crate) family: Option<String>,
    /// Of requests that name none; of a model that generates.
    pub(crate) sampling: Option<Sampling>,
}

/// Sampling parameters.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Sampling {
    pub(crate) temperature: f32,
    pub(crate) top_k: u32,
    pub(crate) top_p: f32,
    pub(crate) min_p: f32,
    pub(crate) typical_p: f32,
    pub(crate) repeat_penalty: f32,
    pub(crate) repeat_last_n: u32,
    pub(crate) frequency_penalty: f32,
    pub(crate) presence_penalty: f32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PrefixReuse {
    Ranges,
    None,
}

/// Of a tensor model.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct TensorFacts {
    /// Format of the file.
    pub(crate) format: String,
    /// What computes it.
    pub(crate) backend: String,
    pub(crate) inputs: Vec<SpecObject>,
    pub(crate) outputs: Vec<SpecObject>,
    pub(crate) parameters: u64,
    pub(crate) bytes: u64,
}

/// `GET /model/info`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub(crate) struct TensorModelInfo {
    pub(crate) name: String,
    #[schemars(with = "String")]
    pub(crate) kind: ModelKind,
    #[serde(flatten)]
    pub(crate) facts: TensorFacts,
}

impl Model {
    /// `context`: in tokens.
    pub(crate) fn new(id: String, created: u64, parent: Option<String>, context: Option<u32>) -> Self {
        Self {
            display_name: id.clone(),
            id,
            object: "model".to_owned(),
            created,
            owned_by: "camshaft".to_owned(),
            max_model_len: context,
            context_length: context,
            parent,
        }
    }
}

impl From<SamplingParams> for Sampling {
    fn from(params: SamplingParams) -> Self {
        let SamplingParams { temperature, top_k, top_p, min_p, typical_p, repeat_penalty, .. } = params;
        let SamplingParams { repeat_last_n, frequency_penalty, presence_penalty, .. } = params;
        Self {
            temperature,
            top_k,
            top_p,
            min_p,
            typical_p,
            repeat_penalty,
            repeat_last_n,
            frequency_penalty,
            presence_penalty,
        }
    }
}
