//! A worker: the generations of one engine, moved by commands and steps.
//!
//! Continuous batching: every step decodes one token of each running sequence and as much of the prompts as the budget
//! allows. Sequences move in `handle`, `step`, `preempt` and `end` only; [`Placement`](crate::placement::Placement) has
//! their states.
mod draw;
mod intake;
mod kv;
mod options;
mod pacer;
mod rate;
mod speculation;

use std::time::Duration;

use draw::draw;
use intake::Intake;
use kv::Kv;
pub use options::WorkerOptions;
use pacer::Pacer;
use rate::Rate;
use speculation::DraftBounds;
pub use speculation::Speculation;

use crate::cache::CacheFacts;
use crate::counters::WorkerCounters;
use crate::engine::{Engine, EngineError, EngineLimits, Reuse};
use crate::ids::{RequestId, WorkerId};
use crate::message::{Command, Event, Events, FinishReason, WorkerError};
use crate::policy::WorkerFacts;
use crate::sampling::Workspace;
use crate::sequence::Sequence;
use crate::step::{StepBudget, StepPlan};

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There was nothing to do.
    Idle,
    /// A batch was decoded, or its decoding failed.
    Decoded { tokens: usize },
}

/// The generations of one engine.
#[derive(Debug)]
pub struct Worker {
    id: WorkerId,
    limits: EngineLimits,
    intake: Intake,
    /// Running, by rank.
    sequences: Vec<Sequence>,
    /// Not running; the next one to be admitted is the last.
    waiting: Vec<Sequence>,
    kv: Kv,
    plan: StepPlan,
    /// For each of `sequences`, the position up to which it may compute in this step.
    compute_limits: Vec<u32>,
    prefill_budget: u32,
    pacer: Pacer,
    speculation: Option<Speculation>,
    rate: Rate,
    counters: WorkerCounters,
    /// Lent to the sequences in turn.
    workspace: Workspace,
}

impl Worker {
    pub fn new(options: WorkerOptions) -> Self {
        let WorkerOptions { id, limits, vocabulary, samplers, cache, step_target, speculation } = options;
        Self {
            id,
            limits,
            intake: Intake { limits, vocabulary, samplers, ranks: 0 },
            sequences: Vec::new(),
            waiting: Vec::new(),
            kv: Kv::new(limits, cache),
            plan: StepPlan::default(),
            compute_limits: Vec::new(),
            prefill_budget: 0,
            pacer: Pacer::new(step_target),
            speculation,
            rate: Rate::default(),
            counters: WorkerCounters::default(),
            workspace: Workspace::default(),
        }
    }

    /// Whether there is nothing to do now.
    pub fn is_idle(&self) -> bool {
        self.sequences.is_empty() && !self.has_ready()
    }

    /// Whether a sequence waits for KV capacity.
    fn has_ready(&self) -> bool {
        self.waiting.iter().any(|s| s.placement.is_ready())
    }

    /// Whether the next step may take longer than the last one: it may prefill or restore.
    pub fn may_take_longer(&self) -> bool {
        self.has_ready() || self.sequences.iter().any(|s| !s.is_decoding())
    }

    /// Whether the KV account, the prefix tree and the sequence ids add up.
    pub fn check(&self) -> bool {
        self.kv.check(&self.sequences)
            && self.waiting.iter().all(|s| s.placement.seq().is_none())
            && (!self.is_idle() || self.kv.free_tokens() == self.kv.total_tokens())
    }

    pub fn facts(&self) -> WorkerFacts {
        WorkerFacts {
            worker: self.id,
            healthy: true,
            free_sequences: self.kv.free_sequences().saturating_sub(self.waiting.len() as u32),
            running_sequences: self.sequences.len() as u32,
            // Sequences that wait here go first.
            kv_free: if self.has_ready() { 0 } else { self.kv.free_tokens() },
            kv_used: self.kv.total_tokens() - self.kv.free_tokens(),
            kv_total: self.kv.total_tokens(),
            prefilling_tokens: self.sequences.iter().chain(&self.waiting).map(Sequence::prefill_left).sum(),
            // An idle worker takes no steps, so it would report its last rate for ever.
            tokens_per_second: if self.sequences.is_empty() { 0.0 } else { self.rate.per_second() },
            can_preempt: true,
        }
    }

    /// What the prefix cache holds.
    pub fn cache_facts(&self) -> CacheFacts {
        self.kv.cache.facts()
    }

    /// What was counted since the last call.
    pub(crate) fn take_counters(&mut self) -> WorkerCounters {
        self.kv.cache.count_evictions(&mut self.counters);
        std::mem::take(&mut self.counters)
    }

    /// Carries out a command.
    pub fn handle(&mut self, command: Command, engine: &mut impl Engine, events: &mut impl Events) {
        match command {
            Command::Start { start, need } => {
                let id = start.id;
                if self.is_idle() {
                    self.pacer.idle();
                }
                match self.intake.prepare(start, need, self.sequences.len() + self.waiting.len()) {
                    Ok(sequence) => {
                        self.queue(sequence);
                        self.admit_waiting(engine, events);
                    }
                    Err(error) => events.push(Event::Failed { id, error }),
                }
            }
            Command::Cancel { id } => self.cancel(id, engine, events),
            Command::Preempt { id } => {
                if let Some(index) = self.find(id) {
                    self.sequences[index].rank = self.intake.demoted();
                    self.counters.preemptions += 1;
                    self.preempt(index, engine, events);
                }
            }
            Command::Pause { id } => {
                if let Some(index) = self.find(id) {
                    self.counters.pauses += 1;
                    self.preempt(index, engine, events);
                }
                if let Some(sequence) = self.waiting.iter_mut().find(|s| s.id() == id) {
                    sequence.placement.pause();
                }
                self.admit_waiting(engine, events);
            }
            Command::Resume { id } => {
                if let Some(sequence) = self.waiting.iter_mut().find(|s| s.id() == id) {
                    sequence.placement.resume();
                }
                self.admit_waiting(engine, events);
            }
            Command::PrefillBudget { tokens } => self.prefill_budget = tokens,
            Command::CacheLimits { ram_bytes, session_ttl } => self.kv.cache.set_limits(ram_bytes, session_ttl),
            Command::CloseSession { id, namespace, session } => {
                let existed = self.kv.cache.close_session(&namespace, &session);
                events.push(Event::SessionClosed { id, existed });
            }
        }
    }

    fn find(&self, id: RequestId) -> Option<usize> {
        self.sequences.iter().position(|s| s.id() == id)
    }

    fn cancel(&mut self, id: RequestId, engine: &mut impl Engine, events: &mut impl Events) {
        let sequence = if let Some(index) = self.find(id) {
            self.end(index, true, engine)
        } else if let Some(index) = self.waiting.iter().position(|s| s.id() == id) {
            let sequence = self.waiting.remove(index);
            self.kv.end(&sequence, false, engine);
            sequence
        } else {
            return;
        };
        events.push(Event::Finished { id, reason: FinishReason::Cancelled, usage: sequence.usage() });
        self.admit_waiting(engine, events);
    }

    fn queue(&mut self, sequence: Sequence) {
        // The next one is the last: of the highest class, then of the lowest rank.
        let key = |s: &Sequence| std::cmp::Reverse((s.start.priority, s.rank));
        let at = self.waiting.partition_point(|other| key(other) < key(&sequence));
        self.waiting.insert(at, sequence);
    }

    /// Admits waiting sequences in strict order: the first one for which there is no capacity blocks the rest.
    fn admit_waiting(&mut self, engine: &mut impl Engine, events: &mut impl Events) {
        while let Some(next) = self.waiting.iter().rposition(|s| s.placement.is_ready()) {
            let mut sequence = self.waiting.remove(next);
            if !self.kv.admit(&mut sequence, self.sequences.len(), engine.reuse()) {
                self.waiting.insert(next, sequence);
                break;
            }
            events.push(Event::Admitted { id: sequence.id() });
            let at = self.sequences.partition_point(|other| other.rank < sequence.rank);
            self.sequences.insert(at, sequence);
        }
    }

    /// Makes sure that there is KV capacity for every running sequence's next token, by preempting some if need be.
    fn make_capacity(&mut self, engine: &mut impl Engine, events: &mut impl Events) {
        let mut index = 0;
        while index < self.sequences.len() {
            if self.kv.grow(&self.sequences[index]) {
                index += 1;
                continue;
            }
            // The lowest class, and of it the latest. A sequence alone always has capacity.
            let key = |&i: &usize| (self.sequences[i].start.priority, self.sequences[i].rank);
            let Some(victim) = (0..self.sequences.len()).max_by_key(key) else { return };
            self.counters.preemptions += 1;
            self.preempt(victim, engine, events);
            if victim < index {
                index -= 1;
            }
        }
    }

    /// Takes a running sequence off the engine; it waits to be admitted again.
    fn preempt(&mut self, index: usize, engine: &mut impl Engine, events: &mut impl Events) {
        let mut sequence = self.take_out(index, engine);
        self.kv.preempt(&mut sequence, engine);
        events.push(Event::Preempted { id: sequence.id() });
        self.queue(sequence);
    }

    /// Ends a running sequence and gives back what it held. `save`: others may use its KV entries.
    fn end(&mut self, index: usize, save: bool, engine: &mut impl Engine) -> Sequence {
        let sequence = self.take_out(index, engine);
        self.kv.end(&sequence, save, engine);
        sequence
    }

    /// Removes a running sequence whose KV entries are about to go: whoever shares its prefix reuses them before.
    fn take_out(&mut self, index: usize, engine: &mut impl Engine) -> Sequence {
        for other in (0..self.sequences.len()).filter(|&other| other != index) {
            self.kv.reuse(other, &mut self.sequences, engine);
        }
        let sequence = self.sequences.remove(index);
        if let (Some(speculation), Some(seq)) = (&mut self.speculation, sequence.placement.seq()) {
            speculation.forget(seq);
        }
        sequence
    }

    /// Decodes one batch and moves every sequence in it. `now` counts from the worker's start.
    pub fn step(&mut self, now: Duration, engine: &mut impl Engine, events: &mut impl Events) -> Step {
        self.pacer.begin(now);
        self.kv.cache.tick(now);
        self.admit_waiting(engine, events);
        self.make_capacity(engine, events);
        self.compute_limits.clear();
        for index in 0..self.sequences.len() {
            self.kv.reuse(index, &mut self.sequences, engine);
            self.compute_limits.push(self.kv.limit(&self.sequences[index]));
        }
        self.draft(engine.reuse());
        self.plan.plan(&self.sequences, &self.compute_limits, self.budget());
        let tokens = self.plan.batch.len();
        if tokens == 0 {
            self.pacer.idle();
            self.rate.note(now, 0);
            return Step::Idle;
        }
        let prefills = self.plan.entries.iter().any(|entry| entry.prefill);
        self.pacer.planned(now, tokens as u32, prefills);
        match engine.decode(&self.plan.batch) {
            Ok(()) => self.apply(now, engine, events),
            Err(EngineError::KvFull { .. }) => self.shed(engine, events),
            Err(error) => self.fail_batch(&error, engine, events),
        }
        Step::Decoded { tokens }
    }

    /// Drafts the tokens of this step, if rejected ones can be removed from the KV cache afterwards: not every model's state
    /// can be cut.
    fn draft(&mut self, reuse: Reuse) {
        let Some(speculation) = self.speculation.as_mut().filter(|_| reuse == Reuse::Ranges) else { return };
        self.sequences.iter_mut().for_each(|s| s.draft.clear());
        let Self { sequences, compute_limits: limits, kv, pacer, .. } = self;
        speculation.draft(sequences, DraftBounds { limits, batch_tokens: self.limits.batch_tokens, kv, pacer });
    }

    fn budget(&self) -> StepBudget {
        let decoding = self.sequences.iter().filter(|s| s.is_decoding()).count();
        let can_prefill = |(s, limit): &(&Sequence, &u32)| !s.is_decoding() && **limit > s.kv_tokens;
        let prefilling = self.sequences.iter().zip(&self.compute_limits).filter(can_prefill).count();
        let prefill_tokens = match self.prefill_budget {
            0 if decoding > 0 => self.pacer.budget(decoding, prefilling),
            0 => usize::MAX,
            tokens => tokens as usize,
        };
        StepBudget { batch_tokens: self.limits.batch_tokens as usize, prefill_tokens }
    }

    /// Moves every sequence of a decoded batch.
    fn apply(&mut self, now: Duration, engine: &mut impl Engine, events: &mut impl Events) {
        let entries = std::mem::take(&mut self.plan.entries);
        let (mut drawn, mut ended) = (0, Vec::new());
        for entry in &entries {
            let Some(index) = self.sequences.iter().position(|s| s.placement.seq() == Some(entry.seq)) else {
                continue;
            };
            let sequence = &mut self.sequences[index];
            if let Some(cached_tokens) = sequence.computed(entry.tokens) {
                events.push(Event::Started { id: sequence.id(), cached_tokens });
            }
            if entry.prefill {
                self.kv.mark_computed(sequence);
            }
            let Some(row) = entry.row else { continue };
            let draws = draw(sequence, row, engine, &mut self.workspace, events);
            drawn += draws.tokens;
            self.counters.verified(draws.drafted, draws.accepted);
            let Some(end) = draws.end else {
                if entry.drafted >= draws.tokens {
                    // The rejected rest of the draft.
                    engine.truncate(entry.seq, sequence.kv_tokens);
                }
                continue;
            };
            let (id, usage) = (sequence.id(), sequence.usage());
            ended.push((id, end.is_ok()));
            events.push(match end {
                Ok(reason) => Event::Finished { id, reason, usage },
                Err(error) => Event::Failed { id, error },
            });
        }
        self.plan.entries = entries;
        self.rate.note(now, drawn);
        if !ended.is_empty() {
            // Their clients do not wait until their KV entries are saved.
            events.flush();
        }
        for (id, save) in ended {
            if let Some(index) = self.find(id) {
                self.end(index, save, engine);
            }
        }
    }

    /// The engine's KV cache was full although every sequence had reserved capacity: preempts the newest one.
    fn shed(&mut self, engine: &mut impl Engine, events: &mut impl Events) {
        match self.sequences.len() {
            0 => {}
            1 => {
                let id = self.end(0, false, engine).id();
                events.push(Event::Failed { id, error: WorkerError::Engine("the KV cache is full".to_owned()) });
            }
            count => {
                self.counters.preemptions += 1;
                self.preempt(count - 1, engine, events);
            }
        }
    }

    fn fail_batch(&mut self, error: &EngineError, engine: &mut impl Engine, events: &mut impl Events) {
        let in_batch = |s: &&Sequence| self.plan.entries.iter().any(|entry| s.placement.seq() == Some(entry.seq));
        let lost: Vec<RequestId> = self.sequences.iter().filter(in_batch).map(Sequence::id).collect();
        for id in lost {
            if let Some(index) = self.find(id) {
                self.end(index, false, engine);
                events.push(Event::Failed { id, error: WorkerError::Engine(error.to_string()) });
            }
        }
    }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
