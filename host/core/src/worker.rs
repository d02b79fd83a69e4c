//! A worker: the running generations of one engine, moved by commands and steps.
//!
//! Continuous batching: every step decodes one token of each running sequence and as much of the waiting prompts as the
//! budget allows. State moves in `handle`, `step` and `end` only.
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::{Engine, EngineError, EngineLimits};
use crate::ids::{RequestId, SeqId, WorkerId};
use crate::ledger::Ledger;
use crate::message::{Command, Event, FinishReason, Start, WorkerError};
use crate::policy::{SamplerHook, SamplingRequest, WorkerFacts};
use crate::sequence::{Outcome, Phase, Sequence};
use crate::step::{Part, StepBudget, StepPlan};
use crate::vocabulary::Vocabulary;

/// A running request reports its progress to the scheduler once in so many tokens.
const PROGRESS_EVERY: u32 = 32;

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There was nothing to do.
    Idle,
    /// A batch of so many tokens was decoded (or tried).
    Decoded { tokens: usize },
}

/// The running generations of one engine.
pub struct Worker {
    id: WorkerId,
    limits: EngineLimits,
    vocabulary: Arc<Vocabulary>,
    samplers: Arc<dyn SamplerHook>,
    /// In order of arrival.
    sequences: Vec<Sequence>,
    free: Vec<SeqId>,
    ledger: Ledger,
    plan: StepPlan,
    prefill_budget: u32,
    rate: Rate,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("id", &self.id).field("sequences", &self.sequences).finish_non_exhaustive()
    }
}

/// Tokens drawn over the last full second.
#[derive(Debug, Default)]
struct Rate {
    since: Duration,
    tokens: u32,
    per_second: f32,
}

impl Rate {
    fn note(&mut self, now: Duration, tokens: u32) {
        self.tokens += tokens;
        let passed = now.saturating_sub(self.since);
        if passed >= Duration::from_secs(1) {
            self.per_second = self.tokens as f32 / passed.as_secs_f32();
            (self.since, self.tokens) = (now, 0);
        }
    }
}

impl Worker {
    pub fn new(
        id: WorkerId,
        limits: EngineLimits,
        vocabulary: Arc<Vocabulary>,
        samplers: Arc<dyn SamplerHook>,
    ) -> Self {
        Self {
            id,
            limits,
            vocabulary,
            samplers,
            sequences: Vec::new(),
            free: (0..limits.sequences).rev().map(SeqId).collect(),
            ledger: Ledger::new(limits.kv_tokens),
            plan: StepPlan::default(),
            prefill_budget: 0,
            rate: Rate::default(),
        }
    }

    pub fn is_idle(&self) -> bool {
        self.sequences.is_empty()
    }

    /// Whether the KV account and the sequence ids add up.
    pub fn check(&self) -> bool {
        self.ledger.check()
            && self.free.len() + self.sequences.len() == self.limits.sequences as usize
            && (!self.is_idle() || self.ledger.free() == self.ledger.total())
    }

    pub fn facts(&self) -> WorkerFacts {
        WorkerFacts {
            worker: self.id,
            healthy: true,
            free_sequences: self.free.len() as u32,
            running_sequences: self.sequences.len() as u32,
            kv_free: self.ledger.free(),
            kv_total: self.ledger.total(),
            prefilling_tokens: self.sequences.iter().map(Sequence::prompt_left).sum(),
            tokens_per_second: self.rate.per_second,
            can_park: false,
        }
    }

    /// Carries out a command.
    pub fn handle(&mut self, command: Command, engine: &mut impl Engine, events: &mut Vec<Event>) {
        match command {
            Command::Start(start) => {
                let id = start.id;
                if let Err(error) = self.admit(start) {
                    events.push(Event::Failed { id, error });
                }
            }
            Command::Cancel { id } => {
                if let Some(index) = self.sequences.iter().position(|s| s.id() == id) {
                    let sequence = self.end(index, engine);
                    let usage = sequence.usage();
                    events.push(Event::Finished { id, reason: FinishReason::Cancelled, usage });
                }
            }
            Command::PrefillBudget { tokens } => self.prefill_budget = tokens,
        }
    }

    fn admit(&mut self, start: Box<Start>) -> Result<(), WorkerError> {
        let refuse = |why: String| Err(WorkerError::Refused(why));
        let prompt_tokens = start.prompt.len() as u32;
        if prompt_tokens == 0 || prompt_tokens >= self.limits.context_tokens {
            return refuse(format!("prompt of {prompt_tokens} tokens, context of {}", self.limits.context_tokens));
        }
        if start.max_tokens == 0 {
            return refuse("max_tokens is 0".to_owned());
        }
        if let Some(token) = start.prompt.iter().find(|token| token.0 as usize >= self.vocabulary.size()) {
            return refuse(format!("token {token} is outside the vocabulary of {}", self.vocabulary.size()));
        }
        let id = start.id;
        let Some(seq) = self.free.last().copied() else {
            return refuse(format!("all {} sequences are taken", self.limits.sequences));
        };
        let sampler = self.open_sampler(&start)?;
        let may_need = prompt_tokens.saturating_add(start.max_tokens).min(self.limits.context_tokens);
        self.ledger.reserve(id, may_need).map_err(|error| WorkerError::Refused(error.to_string()))?;
        self.free.pop();
        let context_tokens = self.limits.context_tokens;
        self.sequences.push(Sequence::new(start, seq, sampler, self.vocabulary.clone(), context_tokens));
        Ok(())
    }

    fn open_sampler(&self, start: &Start) -> Result<Box<dyn crate::policy::TokenSampler>, WorkerError> {
        let request = SamplingRequest {
            request: start.id,
            model: start.model.clone(),
            tenant: start.tenant.clone(),
            params: start.params.clone(),
            choice: start.choice,
            prompt_tokens: start.prompt.len() as u32,
            max_tokens: start.max_tokens,
            samplers: start.samplers.clone(),
            vocabulary: self.vocabulary.clone(),
        };
        let opened = self.samplers.open(start.generation, &request);
        opened.map_err(|fault| WorkerError::PolicyFault { detail: fault.to_string() })
    }

    /// Decodes one batch and moves every sequence in it. `now` counts from the worker's start.
    pub fn step(&mut self, now: Duration, engine: &mut impl Engine, events: &mut Vec<Event>) -> Step {
        let budget = StepBudget {
            batch_tokens: self.limits.batch_tokens as usize,
            prefill_tokens: if self.prefill_budget == 0 { usize::MAX } else { self.prefill_budget as usize },
        };
        self.plan.plan(self.sequences.iter(), budget);
        let tokens = self.plan.batch.len();
        if tokens == 0 {
            self.rate.note(now, 0);
            return Step::Idle;
        }
        match engine.decode(&self.plan.batch) {
            Ok(()) => self.apply(now, engine, events),
            Err(EngineError::KvFull { .. }) => self.shed(engine, events),
            Err(error) => self.fail_batch(&error, engine, events),
        }
        Step::Decoded { tokens }
    }

    fn apply(&mut self, now: Duration, engine: &mut impl Engine, events: &mut Vec<Event>) {
        let parts = std::mem::take(&mut self.plan.parts);
        let mut drawn = 0;
        for part in &parts {
            let Some(index) = self.sequences.iter().position(|s| s.seq == part.seq) else { continue };
            self.note_prefill(index, part, events);
            let Some(row) = part.row else { continue };
            drawn += 1;
            let sequence = &mut self.sequences[index];
            let id = sequence.id();
            let outcome = sequence.advance(engine.logits(row));
            let (delta, ended) = match outcome {
                Outcome::GoesOn(delta) => (delta, None),
                Outcome::Ended(delta, reason) => (delta, Some(Ok(reason))),
                Outcome::Failed(error) => (None, Some(Err(error))),
            };
            events.extend(delta.map(|delta| Event::Delta { id, delta }));
            match ended {
                None => self.report_progress(index, events),
                Some(result) => {
                    let usage = self.end(index, engine).usage();
                    events.push(match result {
                        Ok(reason) => Event::Finished { id, reason, usage },
                        Err(error) => Event::Failed { id, error },
                    });
                }
            }
        }
        self.plan.parts = parts;
        self.rate.note(now, drawn);
    }

    fn note_prefill(&mut self, index: usize, part: &Part, events: &mut Vec<Event>) {
        let sequence = &mut self.sequences[index];
        if let Phase::Prefill { done } = &mut sequence.phase {
            if *done == 0 {
                events.push(Event::Started { id: sequence.start.id, cached_tokens: 0 });
            }
            *done += part.tokens;
        }
    }

    fn report_progress(&self, index: usize, events: &mut Vec<Event>) {
        let sequence = &self.sequences[index];
        if sequence.generated % PROGRESS_EVERY == 1 {
            let prompt_tokens = sequence.start.prompt.len() as u32;
            events.push(Event::Progressed { id: sequence.id(), prompt_tokens, generated_tokens: sequence.generated });
        }
    }

    /// The cache had no room although every sequence's need was reserved: the newest one goes, the others go on.
    fn shed(&mut self, engine: &mut impl Engine, events: &mut Vec<Event>) {
        if let Some(newest) = self.sequences.len().checked_sub(1) {
            let id = self.end(newest, engine).id();
            events.push(Event::Failed { id, error: WorkerError::Engine("the KV cache is full".to_owned()) });
        }
    }

    fn fail_batch(&mut self, error: &EngineError, engine: &mut impl Engine, events: &mut Vec<Event>) {
        let lost: Vec<RequestId> = {
            let parts = &self.plan.parts;
            let in_batch = |s: &&Sequence| parts.iter().any(|part| part.seq == s.seq);
            self.sequences.iter().filter(in_batch).map(Sequence::id).collect()
        };
        for id in lost {
            if let Some(index) = self.sequences.iter().position(|s| s.id() == id) {
                self.end(index, engine);
                events.push(Event::Failed { id, error: WorkerError::Engine(error.to_string()) });
            }
        }
    }

    /// Takes a sequence out, gives back what it held.
    fn end(&mut self, index: usize, engine: &mut impl Engine) -> Sequence {
        let sequence = self.sequences.remove(index);
        engine.truncate(sequence.seq, 0);
        self.ledger.release(sequence.id());
        self.free.push(sequence.seq);
        sequence
    }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
