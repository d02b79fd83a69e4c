//! Turns start commands into sequences: checks them and opens their samplers and filters.
use std::sync::Arc;

use crate::engine::EngineLimits;
use crate::filter::{FilterHook, FilteringRequest, TextFilter};
use crate::grammar::{GrammarFault, GrammarStore, Matcher};
use crate::ids::PolicyDigest;
use crate::message::{Start, WorkerError};
use crate::placement::Rank;
use crate::policy::{FaultKind, NoSampler, SamplerHook, SamplingRequest, TokenSampler};
use crate::sequence::{NewSequence, Sequence};
use crate::vocabulary::Vocabulary;

/// What every sequence of a worker is made with.
#[derive(Debug)]
pub(super) struct Intake {
    pub(super) limits: EngineLimits,
    pub(super) vocabulary: Arc<Vocabulary>,
    pub(super) samplers: Arc<dyn SamplerHook>,
    pub(super) filters: Arc<dyn FilterHook>,
    pub(super) grammars: Arc<GrammarStore>,
    /// Starts, demotions and pauses so far.
    pub(super) events: u64,
}

impl Intake {
    /// # Errors
    /// The request does not fit this worker, or a policy that it needs faulted.
    pub(super) fn prepare(&mut self, start: Box<Start>, need: u32) -> Result<Sequence, WorkerError> {
        let refuse = |why: String| Err(WorkerError::Refused(format!("the request cannot run: {why}")));
        let prompt_tokens = start.prompt.len() as u32;
        if prompt_tokens == 0 || prompt_tokens >= self.limits.context_tokens {
            return refuse(format!("prompt of {prompt_tokens} tokens, context of {}", self.limits.context_tokens));
        }
        if let Some(token) = start.prompt.iter().find(|token| token.0 as usize >= self.vocabulary.size()) {
            return refuse(format!("token {token} is outside the vocabulary of {}", self.vocabulary.size()));
        }
        let matcher = self.open_grammar(&start)?;
        let sampler = self.open_sampler(&start)?;
        let filters = self.open_filters(&start)?;
        let rank = Rank::Arrival(self.next_event());
        let new = NewSequence { start, need, rank, sampler, filters, matcher };
        Ok(Sequence::new(new, self.vocabulary.clone(), self.limits.context_tokens))
    }

    /// A rank behind all others of its class, whenever they arrive.
    pub(super) fn demoted(&mut self) -> Rank {
        Rank::Demoted(self.next_event())
    }

    /// Orders starts, demotions and pauses.
    pub(super) fn next_event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    /// The API compiled the grammar, and holds it.
    fn open_grammar(&self, start: &Start) -> Result<Option<Matcher>, WorkerError> {
        let matcher = start.grammar.as_ref().map(|grammar| self.grammars.matcher(grammar)).transpose();
        matcher.map_err(|error| match error.fault {
            GrammarFault::Busy => WorkerError::GrammarsBusy { detail: error.reason },
            _ => WorkerError::Refused(format!("the grammar cannot be used: {error}")),
        })
    }

    fn open_sampler(&self, start: &Start) -> Result<Box<dyn TokenSampler>, WorkerError> {
        let request = SamplingRequest {
            request: start.id,
            model: start.model.clone(),
            tenant: start.tenant.clone(),
            endpoint: start.endpoint,
            params: start.params.clone(),
            choice: start.choice,
            prompt_tokens: start.prompt.len() as u32,
            max_tokens: start.max_tokens,
            samplers: start.samplers.clone(),
            context: start.context.clone(),
            vocabulary: self.vocabulary.clone(),
        };
        let opened = self.samplers.open(start.sampler_chain, &request);
        opened.map_err(|why| match why {
            NoSampler::Refused(refusal) => WorkerError::Declined(Box::new(refusal)),
            NoSampler::Fault(fault) if fault.kind == FaultKind::Exhausted => WorkerError::SamplersBusy,
            NoSampler::Fault(fault) => WorkerError::PolicyFault { detail: fault.to_string() },
        })
    }

    fn open_filters(&self, start: &Start) -> Result<Vec<Box<dyn TextFilter>>, WorkerError> {
        if start.filter_chain == PolicyDigest::NATIVE {
            return Ok(Vec::new());
        }
        let request = FilteringRequest {
            request: start.id,
            model: start.model.clone(),
            tenant: start.tenant.clone(),
            endpoint: start.endpoint,
            choice: start.choice,
            context: start.context.clone(),
        };
        let opened = self.filters.open(start.filter_chain, &request);
        opened.map_err(|fault| match fault.kind {
            FaultKind::Exhausted => WorkerError::FiltersBusy,
            _ => WorkerError::FilterFault { detail: fault.to_string() },
        })
    }
}
