//! How the requests of a model are sampled that name no parameters.
use camshaft_core::limits;
use camshaft_core::sampling::SamplingDefaults;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Sampling parameters of requests that name none. Unset: what the model's file says, else OpenAI's defaults (temperature 1,
/// nothing cut off). Can be changed while the model runs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
#[schemars(inline)]
pub struct SamplingConfig {
    /// 0: the most probable token.
    #[schemars(range(min = limits::TEMPERATURE.min, max = limits::TEMPERATURE.max))]
    pub temperature: Option<f32>,
    /// Tokens that are left, the most probable ones. 0: all.
    #[schemars(range(min = limits::TOP_K.min, max = limits::TOP_K.max))]
    pub top_k: Option<u32>,
    /// The share of probability that is left. 1: all.
    #[schemars(range(min = limits::TOP_P.min, max = limits::TOP_P.max))]
    pub top_p: Option<f32>,
    /// The least probability, as a part of that of the most probable token. 0: any.
    #[schemars(range(min = limits::MIN_P.min, max = limits::MIN_P.max))]
    pub min_p: Option<f32>,
    /// The share of probability that is left, of tokens whose information is near the row's entropy. 1: all.
    #[schemars(range(min = limits::TYPICAL_P.min, max = limits::TYPICAL_P.max))]
    pub typical_p: Option<f32>,
    /// Divides the logits of tokens that have occurred. 1: off.
    #[schemars(range(min = limits::REPEAT_PENALTY.min, max = limits::REPEAT_PENALTY.max))]
    pub repeat_penalty: Option<f32>,
    /// Tokens that the repetition penalty looks at.
    #[schemars(range(min = limits::REPEAT_LAST_N.min, max = limits::REPEAT_LAST_N.max))]
    pub repeat_last_n: Option<u32>,
    /// Subtracted for each occurrence of a token in the output.
    #[schemars(range(min = limits::FREQUENCY_PENALTY.min, max = limits::FREQUENCY_PENALTY.max))]
    pub frequency_penalty: Option<f32>,
    /// Subtracted once for each token that occurs in the output.
    #[schemars(range(min = limits::PRESENCE_PENALTY.min, max = limits::PRESENCE_PENALTY.max))]
    pub presence_penalty: Option<f32>,
}

impl From<&SamplingConfig> for SamplingDefaults {
    fn from(config: &SamplingConfig) -> Self {
        let SamplingConfig { temperature, top_k, top_p, min_p, typical_p, repeat_penalty, .. } = *config;
        let SamplingConfig { repeat_last_n, frequency_penalty, presence_penalty, .. } = *config;
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
