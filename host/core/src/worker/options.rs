//! What a worker is made of.
use std::sync::Arc;
use std::time::Duration;

use super::masks::MaskThreads;
use super::speculation::Speculation;
use crate::cache::PrefixCache;
use crate::engine::EngineLimits;
use crate::filter::FilterHook;
use crate::grammar::GrammarStore;
use crate::ids::WorkerId;
use crate::policy::SamplerHook;
use crate::vocabulary::Vocabulary;

/// What a worker is made of.
#[derive(Debug)]
pub struct WorkerOptions {
    pub id: WorkerId,
    pub limits: EngineLimits,
    pub vocabulary: Arc<Vocabulary>,
    pub samplers: Arc<dyn SamplerHook>,
    pub filters: Arc<dyn FilterHook>,
    pub cache: PrefixCache,
    /// Target of a step's duration while prompts are prefilled beside sequences that decode.
    pub step_target: Duration,
    /// Compiled grammars of the model.
    pub grammars: Arc<GrammarStore>,
    /// Computes masks while the engine decodes; `None`: they are computed after that.
    pub masks: Option<MaskThreads>,
    /// `None`: no speculative decoding.
    pub speculation: Option<Speculation>,
}
