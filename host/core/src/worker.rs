//! A worker: the running generations of one engine, moved by commands and steps.
//!
//! Continuous batching: every step decodes one token of each running sequence and as much of the waiting prompts as the
//! budget allows. State moves in `handle`, `step`, `park` and `end` only.
mod ahead;
mod kv;
mod pace;
mod rate;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ahead::Room;
pub use ahead::Speculation;
use kv::Kv;
use pace::Pace;
use rate::Rate;

use crate::cache::{CacheFacts, PrefixCache};
use crate::engine::{Engine, EngineError, EngineLimits, Reuse};
use crate::ids::{RequestId, SeqId, WorkerId};
use crate::message::{Command, Event, Events, FinishReason, Start, WorkerError};
use crate::policy::{SamplerHook, SamplingRequest, WorkerFacts};
use crate::sampling::Workspace;
use crate::sequence::{Outcome, Sequence};
use crate::step::{Part, StepBudget, StepPlan};
use crate::vocabulary::Vocabulary;

/// A running request reports its progress to the scheduler once in so many tokens.
const PROGRESS_EVERY: u32 = 32;
/// A sequence that a scheduler parked waits behind all others.
const LAST_PLACE: u64 = 1 << 63;

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There was nothing to do.
    Idle,
    /// A batch of so many tokens was decoded (or tried).
    Decoded { tokens: usize },
}

/// What a worker is made of.
#[derive(Debug)]
pub struct WorkerOptions {
    pub id: WorkerId,
    pub limits: EngineLimits,
    pub vocabulary: Arc<Vocabulary>,
    pub samplers: Arc<dyn SamplerHook>,
    pub cache: PrefixCache,
    /// The longest a step shall take while prompts are prefilled beside others that decode.
    pub step_target: Duration,
    /// `None`: nothing is guessed ahead.
    pub speculation: Option<Speculation>,
}

/// The running generations of one engine.
pub struct Worker {
    id: WorkerId,
    limits: EngineLimits,
    vocabulary: Arc<Vocabulary>,
    samplers: Arc<dyn SamplerHook>,
    /// With a place on the engine, in order of arrival.
    sequences: Vec<Sequence>,
    /// Not admitted yet, or parked; the next one to be admitted last.
    waiting: Vec<Sequence>,
    next_place: u64,
    kv: Kv,
    plan: StepPlan,
    /// How far each of `sequences` may compute in this step.
    limits_now: Vec<u32>,
    prefill_budget: u32,
    pace: Pace,
    speculation: Option<Speculation>,
    rate: Rate,
    /// Lent to the sequences in turn.
    workspace: Workspace,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("id", &self.id).field("sequences", &self.sequences).finish_non_exhaustive()
    }
}

impl Worker {
    pub fn new(options: WorkerOptions) -> Self {
        let WorkerOptions { id, limits, vocabulary, samplers, cache, step_target, speculation } = options;
        Self {
            id,
            limits,
            vocabulary,
            samplers,
            sequences: Vec::new(),
            waiting: Vec::new(),
            next_place: 0,
            kv: Kv::new(limits, cache),
            plan: StepPlan::default(),
            limits_now: Vec::new(),
            prefill_budget: 0,
            pace: Pace::new(step_target),
            speculation,
            rate: Rate::default(),
            workspace: Workspace::default(),
        }
    }

    /// Whether there is nothing to do now.
    pub fn is_idle(&self) -> bool {
        self.sequences.is_empty() && self.waiting.iter().all(|s| s.held)
    }

    /// Whether the next step may compute more than the last one did: a prompt, or what was parked.
    pub fn may_take_longer(&self) -> bool {
        self.waiting.iter().any(|s| !s.held) || self.sequences.iter().any(|s| !s.is_decoding())
    }

    /// Whether the KV account, the prefix tree and the sequence ids add up.
    pub fn check(&self) -> bool {
        self.kv.check(&self.sequences)
            && self.waiting.iter().all(|s| s.seq.is_none())
            && (!self.is_idle() || self.kv.free_tokens() == self.kv.total_tokens())
    }

    pub fn facts(&self) -> WorkerFacts {
        WorkerFacts {
            worker: self.id,
            healthy: true,
            free_sequences: self.kv.free_sequences().saturating_sub(self.waiting.len() as u32),
            running_sequences: self.sequences.len() as u32,
            // What waits here goes first.
            kv_free: if self.waiting.iter().all(|s| s.held) { self.kv.free_tokens() } else { 0 },
            kv_used: self.kv.total_tokens() - self.kv.free_tokens(),
            kv_total: self.kv.total_tokens(),
            prefilling_tokens: self.sequences.iter().chain(&self.waiting).map(Sequence::prefill_left).sum(),
            // The last rate would stand for ever: an idle worker takes no steps that could correct it.
            tokens_per_second: if self.sequences.is_empty() { 0.0 } else { self.rate.per_second() },
            can_preempt: true,
        }
    }

    /// What the prefix cache holds and has lost.
    pub fn cache_facts(&self) -> CacheFacts {
        self.kv.cache.facts()
    }

    /// Carries out a command.
    pub fn handle(&mut self, command: Command, engine: &mut impl Engine, events: &mut impl Events) {
        match command {
            Command::Start { start, need } => {
                let id = start.id;
                if self.is_idle() {
                    self.pace.idle();
                }
                match self.prepare(start, need) {
                    Ok(sequence) => {
                        self.queue(sequence);
                        self.admit_waiting(engine, events);
                    }
                    Err(error) => events.push(Event::Failed { id, error }),
                }
            }
            Command::Cancel { id } => {
                let ended = if let Some(index) = self.find(id) {
                    Some(self.end(index, true, engine))
                } else {
                    let index = self.waiting.iter().position(|s| s.id() == id);
                    index.map(|index| {
                        let mut sequence = self.waiting.remove(index);
                        self.kv.end(&mut sequence, false, engine);
                        sequence
                    })
                };
                if let Some(sequence) = ended {
                    let usage = sequence.usage();
                    events.push(Event::Finished { id, reason: FinishReason::Cancelled, usage });
                    self.admit_waiting(engine, events);
                }
            }
            Command::Preempt { id } => {
                if let Some(index) = self.find(id) {
                    self.sequences[index].place = LAST_PLACE + self.next_place;
                    self.next_place += 1;
                    self.park(index, engine, events);
                }
            }
            Command::Pause { id } => {
                if let Some(index) = self.find(id) {
                    self.sequences[index].held = true;
                    self.park(index, engine, events);
                } else if let Some(sequence) = self.waiting.iter_mut().find(|s| s.id() == id) {
                    sequence.held = true;
                }
                self.admit_waiting(engine, events);
            }
            Command::Resume { id } => {
                if let Some(sequence) = self.waiting.iter_mut().find(|s| s.id() == id) {
                    sequence.held = false;
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

    fn prepare(&mut self, start: Box<Start>, need: u32) -> Result<Sequence, WorkerError> {
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
        if self.sequences.len() + self.waiting.len() >= self.limits.sequences as usize {
            return refuse(format!("all {} sequences are taken", self.limits.sequences));
        }
        let sampler = self.open_sampler(&start)?;
        let mut sequence = Sequence::new(start, sampler, self.vocabulary.clone(), self.limits.context_tokens);
        (sequence.place, sequence.need) = (self.next_place, need);
        self.next_place += 1;
        Ok(sequence)
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
        let opened = self.samplers.open(start.sampler_chain, &request);
        opened.map_err(|fault| WorkerError::PolicyFault { detail: fault.to_string() })
    }

    fn queue(&mut self, sequence: Sequence) {
        // The next one lies at the end: highest class, then earliest.
        let key = |s: &Sequence| std::cmp::Reverse((s.start.priority, s.place));
        let at = self.waiting.partition_point(|other| key(other) < key(&sequence));
        self.waiting.insert(at, sequence);
    }

    /// Gives those that wait their place, in order, as long as there is room. Nobody passes the first.
    fn admit_waiting(&mut self, engine: &mut impl Engine, events: &mut impl Events) {
        let mut admitted = Vec::new();
        while let Some(next) = self.waiting.iter().rposition(|s| !s.held) {
            let mut sequence = self.waiting.remove(next);
            if !self.kv.admit(&mut sequence, self.sequences.len(), engine.reuse()) {
                self.waiting.insert(next, sequence);
                break;
            }
            admitted.push(sequence.id());
            let at = self.sequences.partition_point(|other| other.place < sequence.place);
            self.sequences.insert(at, sequence);
        }
        admitted.into_iter().for_each(|id| events.push(Event::Admitted { id }));
    }

    /// Room for every sequence's next token; where there is none, somebody is parked.
    fn make_room(&mut self, engine: &mut impl Engine, events: &mut impl Events) {
        let mut index = 0;
        while index < self.sequences.len() {
            if self.kv.grow(&self.sequences[index]) {
                index += 1;
                continue;
            }
            // The lowest class, and of it the latest. A sequence alone always has room.
            let lowest = |&i: &usize| (self.sequences[i].start.priority, self.sequences[i].place);
            let Some(victim) = (0..self.sequences.len()).max_by_key(lowest) else { return };
            self.park(victim, engine, events);
            if victim < index {
                index -= 1;
            }
        }
    }

    fn park(&mut self, index: usize, engine: &mut impl Engine, events: &mut impl Events) {
        self.let_others_follow(index, engine);
        let mut sequence = self.sequences.remove(index);
        self.forget_guesses(sequence.seq);
        self.kv.park(&mut sequence, engine);
        events.push(Event::Preempted { id: sequence.id() });
        self.queue(sequence);
    }

    fn forget_guesses(&mut self, seq: Option<SeqId>) {
        if let (Some(speculation), Some(seq)) = (&mut self.speculation, seq) {
            speculation.forget(seq);
        }
    }

    /// Before a sequence's KV entries go: whoever shares its prefix takes what is there.
    fn let_others_follow(&mut self, index: usize, engine: &mut impl Engine) {
        for other in 0..self.sequences.len() {
            if other != index {
                self.kv.follow(other, &mut self.sequences, engine);
            }
        }
    }

    /// Decodes one batch and moves every sequence in it. `now` counts from the worker's start.
    pub fn step(&mut self, now: Duration, engine: &mut impl Engine, events: &mut impl Events) -> Step {
        self.pace.begin(now);
        self.kv.cache.tick(now);
        self.admit_waiting(engine, events);
        self.make_room(engine, events);
        self.limits_now.clear();
        for index in 0..self.sequences.len() {
            self.kv.follow(index, &mut self.sequences, engine);
            self.limits_now.push(self.kv.limit(&self.sequences[index]));
        }
        self.guess_ahead(engine.reuse());
        self.plan.plan(&self.sequences, &self.limits_now, self.budget());
        let tokens = self.plan.batch.len();
        if tokens == 0 {
            self.pace.idle();
            self.rate.note(now, 0);
            return Step::Idle;
        }
        let prefills = self.plan.parts.iter().any(|part| part.prefill);
        self.pace.planned(now, tokens as u32, prefills);
        match engine.decode(&self.plan.batch) {
            Ok(()) => self.apply(now, engine, events),
            Err(EngineError::KvFull { .. }) => self.shed(engine, events),
            Err(error) => self.fail_batch(&error, engine, events),
        }
        Step::Decoded { tokens }
    }

    /// What a wrong guess leaves in the cache has to be cut off, which not every model's state can be.
    fn guess_ahead(&mut self, reuse: Reuse) {
        let Some(speculation) = self.speculation.as_mut().filter(|_| reuse == Reuse::Ranges) else { return };
        self.sequences.iter_mut().for_each(|s| s.draft.clear());
        let Self { sequences, limits_now: limits, kv, pace, .. } = self;
        speculation.draft(sequences, Room { limits, batch_tokens: self.limits.batch_tokens, kv, pace });
    }

    fn budget(&self) -> StepBudget {
        let decoding = self.sequences.iter().filter(|s| s.is_decoding()).count();
        let can_prefill = |(s, limit): &(&Sequence, &u32)| !s.is_decoding() && **limit > s.done;
        let prefilling = self.sequences.iter().zip(&self.limits_now).filter(can_prefill).count();
        let prefill_tokens = match self.prefill_budget {
            0 if decoding > 0 => self.pace.budget(decoding, prefilling),
            0 => usize::MAX,
            tokens => tokens as usize,
        };
        StepBudget { batch_tokens: self.limits.batch_tokens as usize, prefill_tokens }
    }

    fn apply(&mut self, now: Duration, engine: &mut impl Engine, events: &mut impl Events) {
        let parts = std::mem::take(&mut self.plan.parts);
        let (mut drawn, mut over) = (0, Vec::new());
        for part in &parts {
            let Some(index) = self.sequences.iter().position(|s| s.seq == Some(part.seq)) else { continue };
            self.note_computed(index, part, events);
            let Some(row) = part.row else { continue };
            let id = self.sequences[index].id();
            let (tokens, ended) = self.draw(index, row, engine, events);
            drawn += tokens;
            match ended {
                None => {
                    if part.drafted > tokens - 1 {
                        // What was guessed wrong.
                        engine.truncate(part.seq, self.sequences[index].done);
                    }
                }
                Some(result) => {
                    let usage = self.sequences[index].usage();
                    over.push((id, result.is_ok()));
                    events.push(match result {
                        Ok(reason) => Event::Finished { id, reason, usage },
                        Err(error) => Event::Failed { id, error },
                    });
                }
            }
        }
        self.plan.parts = parts;
        self.rate.note(now, drawn);
        if !over.is_empty() {
            // Their clients do not wait until their KV entries are copied.
            events.flush();
        }
        for (id, keep) in over {
            if let Some(index) = self.find(id) {
                self.end(index, keep, engine);
            }
        }
    }

    /// Draws from the row that gives a sequence's next token, and from those after it as long as what was guessed was
    /// right. How many tokens were drawn, and the end if it came to one.
    fn draw(
        &mut self,
        index: usize,
        row: usize,
        engine: &mut impl Engine,
        events: &mut impl Events,
    ) -> (u32, Option<Result<FinishReason, WorkerError>>) {
        let mut accepted = 0;
        let ended = loop {
            let sequence = &mut self.sequences[index];
            let outcome = sequence.advance(engine.logits(row + accepted as usize), &mut self.workspace);
            let (delta, ended) = match outcome {
                Outcome::GoesOn(delta) => (delta, None),
                Outcome::Ended(delta, reason) => (delta, Some(Ok(reason))),
                Outcome::Failed(error) => (None, Some(Err(error))),
            };
            let id = sequence.id();
            if let Some(delta) = delta {
                events.push(Event::Delta { id, delta });
            }
            let goes_on = ended.is_none() && sequence.guessed(accepted);
            if ended.is_none() {
                self.report_progress(index, events);
            }
            if !goes_on {
                break ended;
            }
            accepted += 1;
            self.sequences[index].done += 1;
        };
        self.sequences[index].settle_draft(accepted);
        (accepted + 1, ended)
    }

    fn note_computed(&mut self, index: usize, part: &Part, events: &mut impl Events) {
        let sequence = &mut self.sequences[index];
        sequence.done += part.tokens;
        if !sequence.started {
            sequence.started = true;
            let (id, cached_tokens) = (sequence.id(), sequence.usage().cached_tokens);
            events.push(Event::Started { id, cached_tokens });
        }
        if part.prefill {
            self.kv.mark_computed(&self.sequences[index]);
        }
    }

    fn report_progress(&self, index: usize, events: &mut impl Events) {
        let sequence = &self.sequences[index];
        if sequence.generated % PROGRESS_EVERY == 1 {
            let prompt_tokens = sequence.start.prompt.len() as u32;
            events.push(Event::Progressed { id: sequence.id(), prompt_tokens, generated_tokens: sequence.generated });
        }
    }

    /// The cache had no room although every sequence's need was reserved: the newest one waits, the others go on.
    fn shed(&mut self, engine: &mut impl Engine, events: &mut impl Events) {
        match self.sequences.len() {
            0 => {}
            1 => {
                let id = self.end(0, false, engine).id();
                events.push(Event::Failed { id, error: WorkerError::Engine("the KV cache is full".to_owned()) });
            }
            count => self.park(count - 1, engine, events),
        }
    }

    fn fail_batch(&mut self, error: &EngineError, engine: &mut impl Engine, events: &mut impl Events) {
        let lost: Vec<RequestId> = {
            let parts = &self.plan.parts;
            let in_batch = |s: &&Sequence| parts.iter().any(|part| s.seq == Some(part.seq));
            self.sequences.iter().filter(in_batch).map(Sequence::id).collect()
        };
        for id in lost {
            if let Some(index) = self.find(id) {
                self.end(index, false, engine);
                events.push(Event::Failed { id, error: WorkerError::Engine(error.to_string()) });
            }
        }
    }

    /// Takes a sequence out, gives back what it held.
    fn end(&mut self, index: usize, keep: bool, engine: &mut impl Engine) -> Sequence {
        self.let_others_follow(index, engine);
        let mut sequence = self.sequences.remove(index);
        self.forget_guesses(sequence.seq);
        self.kv.end(&mut sequence, keep, engine);
        sequence
    }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
