//! A worker: the generations of one engine, moved by commands and steps.
//!
//! Continuous batching: every step decodes one token of each running sequence and as much of the prompts as the budget
//! allows. `roster` moves sequences; [`Placement`](crate::placement::Placement) has their states.
mod draw;
mod forced;
mod intake;
mod kv;
mod masks;
mod options;
mod pacer;
mod rate;
mod restoring;
mod roster;
mod speculation;
mod turns;

use std::time::Duration;

use draw::draw;
use intake::Intake;
use kv::Kv;
pub use masks::MaskThreads;
pub use options::WorkerOptions;
use pacer::Pacer;
use rate::Rate;
use roster::Roster;
use speculation::DraftBounds;
pub use speculation::Speculation;
use turns::Turns;

use crate::cache::CacheFacts;
use crate::counters::WorkerCounters;
use crate::engine::{Engine, EngineError, EngineLimits, Reuse};
use crate::ids::{RequestId, WorkerId};
use crate::message::{Command, Event, Events, FinishReason, Start, WorkerError};
use crate::policy::WorkerFacts;
use crate::sampling::Workspace;
use crate::sequence::Sequence;
use crate::step::{StepBudget, StepPlan};
use crate::step_times::Work;

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There was nothing to do.
    Idle,
    /// No batch was decoded: saved KV entries were restored or evicted, and there is more of that to do, or masks take long.
    Prepared,
    /// A batch was decoded, or its decoding failed.
    Decoded { tokens: usize },
}

/// Time for masks without which there is nothing to compute, until it is looked whether there is something else to do.
const MASK_WAIT: Duration = Duration::from_millis(5);

/// The generations of one engine.
#[derive(Debug)]
pub struct Worker {
    id: WorkerId,
    limits: EngineLimits,
    intake: Intake,
    roster: Roster,
    plan: StepPlan,
    /// For each running sequence, the position up to which it may compute in this step.
    compute_limits: Vec<u32>,
    turns: Turns,
    prefill_budget: u32,
    /// Tokens of a step.
    step_tokens: u32,
    pacer: Pacer,
    /// `None`: masks are computed when they are needed.
    masks: Option<MaskThreads>,
    speculation: Option<Speculation>,
    rate: Rate,
    counters: WorkerCounters,
    /// Lent to the sequences in turn.
    workspace: Workspace,
}

impl Worker {
    pub fn new(options: WorkerOptions) -> Self {
        let WorkerOptions {
            id,
            limits,
            vocabulary,
            samplers,
            filters,
            cache,
            step_target,
            grammars,
            masks,
            speculation,
        } = options;
        Self {
            id,
            limits,
            intake: Intake { limits, vocabulary, samplers, filters, grammars, events: 0 },
            roster: Roster::new(Kv::new(limits, cache)),
            plan: StepPlan::default(),
            compute_limits: Vec::new(),
            turns: Turns::default(),
            prefill_budget: 0,
            step_tokens: limits.batch_tokens,
            pacer: Pacer::new(step_target),
            masks,
            speculation,
            rate: Rate::default(),
            counters: WorkerCounters::default(),
            workspace: Workspace::default(),
        }
    }

    /// Whether there is nothing to do now.
    pub fn is_idle(&self) -> bool {
        self.roster.active() == 0 && !self.roster.has_ready() && !self.roster.kv.cache.has_backlog()
    }

    /// Whether the next step may take longer than the last one: it may prefill or restore.
    pub fn may_take_longer(&self) -> bool {
        self.roster.has_ready() || self.roster.running.iter().any(|s| !s.is_decoding())
    }

    /// Whether the KV account, the prefix tree and the sequence ids add up.
    pub fn check(&self) -> bool {
        self.roster.kv.check(&self.roster.running)
            && self.roster.waiting.iter().all(|s| s.placement.seq().is_none())
            && (!self.is_idle() || self.roster.available_tokens() == self.roster.kv.total_tokens())
    }

    pub fn facts(&self) -> WorkerFacts {
        let active = self.roster.active();
        // Others may have the places of paused sequences.
        let free_sequences = self.roster.kv.free_sequences() as usize + self.roster.running.len() - active;
        let ready = self.roster.waiting.iter().filter(|s| s.placement.is_ready()).count();
        let all = self.roster.running.iter().chain(&self.roster.waiting);
        WorkerFacts {
            worker: self.id,
            healthy: true,
            free_sequences: free_sequences.saturating_sub(ready) as u32,
            running_sequences: active as u32,
            // Sequences that wait here go first.
            kv_free: if self.roster.has_ready() { 0 } else { self.roster.available_tokens() },
            kv_used: self.roster.kv.total_tokens() - self.roster.kv.free_tokens(),
            kv_total: self.roster.kv.total_tokens(),
            prefilling_tokens: all.filter(|s| !s.placement.is_paused()).map(Sequence::prefill_left).sum(),
            // An idle worker takes no steps, so it would report its last rate for ever.
            tokens_per_second: if active == 0 { 0.0 } else { self.rate.per_second() },
            can_preempt: true,
        }
    }

    /// What the prefix cache holds.
    pub fn cache_facts(&self) -> CacheFacts {
        self.roster.kv.cache.facts()
    }

    /// What was counted since the last call.
    pub(crate) fn take_counters(&mut self) -> WorkerCounters {
        self.roster.kv.cache.count_evictions(&mut self.counters);
        self.counters.preemptions += std::mem::take(&mut self.roster.preemptions);
        self.counters.pauses += std::mem::take(&mut self.roster.pauses);
        std::mem::take(&mut self.counters)
    }

    /// Carries out a command.
    pub fn handle(&mut self, command: Command, engine: &mut impl Engine, events: &mut impl Events) {
        match command {
            Command::Start { start, need } => self.start(start, need, engine, events),
            Command::Cancel { id } => self.cancel(id, engine, events),
            Command::Preempt { id } => {
                let rank = self.intake.demoted();
                self.roster.demote(id, rank, engine, events);
            }
            Command::Pause { id } => self.roster.pause(id, self.intake.next_event(), engine, events),
            Command::Resume { id } => self.roster.resume(id, engine, events),
            Command::PrefillBudget { tokens } => self.prefill_budget = tokens,
            Command::Bounds(bounds) => {
                // Fewer would leave sequences out of every step.
                let least = self.limits.sequences.min(self.limits.batch_tokens);
                let most = self.limits.batch_tokens;
                self.step_tokens = bounds.step_tokens.map_or(most, |tokens| tokens.clamp(least, most));
                self.roster.most = bounds.sequences.map_or(usize::MAX, |sequences| sequences as usize);
                self.roster.admit_waiting(engine, events);
            }
            Command::CacheLimits { ram_bytes, session_ttl } => self.roster.kv.cache.set_limits(ram_bytes, session_ttl),
            Command::ForgetAdapter { adapter } => {
                let uses = |s: &Sequence| s.start.adapters.contains(adapter);
                if !self.roster.running.iter().chain(&self.roster.waiting).any(uses) {
                    engine.forget_adapter(adapter);
                    self.turns.forget(adapter);
                }
            }
            Command::CloseSession { id, namespace, session } => {
                let existed = self.roster.kv.cache.close_session(&namespace, &session);
                events.push(Event::SessionClosed { id, existed });
            }
            Command::ListSessions { id, namespace } => {
                let sessions = self.roster.kv.cache.list_sessions(namespace.owner());
                events.push(Event::Sessions { id, sessions });
            }
        }
    }

    fn start(&mut self, start: Box<Start>, need: u32, engine: &mut impl Engine, events: &mut impl Events) {
        let id = start.id;
        if self.is_idle() {
            self.pacer.idle();
        }
        match self.intake.prepare(start, need) {
            Ok(sequence) => self.roster.add(sequence, engine, events),
            Err(error) => events.push(Event::Failed { id, error }),
        }
    }

    fn cancel(&mut self, id: RequestId, engine: &mut impl Engine, events: &mut impl Events) {
        let Some(sequence) = self.roster.remove(id, engine) else { return };
        if let Some(threads) = &mut self.masks {
            // What was computed for it takes memory, also where no step comes any more.
            masks::collect(threads, &mut self.roster, Duration::ZERO);
        }
        events.push(Event::Finished { id, reason: FinishReason::Cancelled, usage: sequence.usage() });
        self.roster.admit_waiting(engine, events);
    }

    /// Decodes one batch and moves every sequence in it. `now` counts from the worker's start.
    pub fn step(&mut self, now: Duration, engine: &mut impl Engine, events: &mut impl Events) -> Step {
        self.pacer.begin(now);
        self.roster.kv.cache.tick(now);
        self.roster.expire(now, engine, events);
        self.roster.admit_waiting(engine, events);
        self.roster.make_capacity(engine, events);
        let restored = self.roster.restore(&mut self.compute_limits, engine);
        let threads = self.masks.as_mut();
        let waits = threads.is_some_and(|masks| masks::set_apart(masks, &mut self.roster, &mut self.compute_limits));
        let switches = self.turns.choose(&self.roster.running, &mut self.compute_limits);
        self.draft(engine.reuse());
        self.plan.plan(&self.roster.running, &self.compute_limits, self.budget());
        let tokens = self.plan.batch.len();
        if tokens == 0 {
            self.pacer.idle();
            self.rate.note(now, 0);
            if let (true, Some(threads)) = (waits, &mut self.masks) {
                masks::collect(threads, &mut self.roster, MASK_WAIT);
                return Step::Prepared;
            }
            return if restored && !self.roster.kv.cache.has_backlog() { Step::Idle } else { Step::Prepared };
        }
        if self.plan.batch.adapters != *self.turns.adapters() {
            self.plan.batch.adapters = self.turns.adapters().clone();
        }
        if switches {
            self.counters.adapter_switches += 1;
            // How long that takes says nothing about other steps.
            self.pacer.idle();
        } else {
            self.pacer.planned(now, self.plan.work());
        }
        self.tell_started(events);
        let thread = self.masks.as_mut().filter(|thread| thread.is_room());
        let lent = thread.map(|thread| masks::begin(thread, &self.plan, &mut self.roster.running));
        let decoded = engine.decode(&self.plan.batch);
        if let (Some(thread), Some(true)) = (&mut self.masks, lent) {
            masks::finish(thread, &mut self.roster.running);
        }
        if decoded.is_err() {
            // How long that took says nothing about steps.
            self.pacer.idle();
        }
        match decoded {
            Ok(()) => self.apply(now, engine, events),
            Err(EngineError::KvFull { .. }) => self.shed(engine, events),
            Err(error) => self.fail_batch(&error, engine, events),
        }
        Step::Decoded { tokens }
    }

    /// Drafts the tokens of this step, if rejected ones can be removed from the KV cache afterwards: not every model's state
    /// can be cut. What a grammar is certain of goes before what a drafter guesses.
    fn draft(&mut self, reuse: Reuse) {
        let Self { roster: Roster { running, kv, freed, .. }, compute_limits: limits, pacer, speculation, .. } = self;
        let freed = freed.drain(..);
        if reuse != Reuse::Ranges {
            return;
        }
        running.iter_mut().for_each(Sequence::drop_draft);
        let mut bounds = DraftBounds::new(running, limits, self.step_tokens, kv);
        forced::draft(running, &mut bounds, pacer);
        let Some(speculation) = speculation else { return };
        freed.for_each(|seq| speculation.forget(seq));
        speculation.draft(running, bounds, pacer);
    }

    fn budget(&self) -> StepBudget {
        // Also those that this step cannot compute: they wait for its end.
        let decoding = self.roster.running.iter().filter(|s| s.is_decoding() && !s.placement.is_paused());
        let waiting = self.roster.running.iter().zip(&self.compute_limits);
        let waiting = waiting.filter(|(s, limit)| s.prefills_below(**limit));
        let waiting = waiting.map(|(s, limit)| s.kv_tokens..*limit);
        let turn = decoding.clone().filter(|s| s.start.adapters == *self.turns.adapters());
        let rows = turn.fold(Work::default(), |work, s| work.and_rows(s.kv_tokens, 1 + s.draft.len() as u32));
        let prefill_tokens = match self.prefill_budget {
            0 if decoding.clone().next().is_some() => self.pacer.budget(decoding.count(), rows, waiting),
            0 => usize::MAX,
            tokens => tokens as usize,
        };
        StepBudget { batch_tokens: self.step_tokens as usize, prefill_tokens }
    }

    /// Tells of the sequences whose first tokens are in the batch, before it is computed: a client that leaves meanwhile
    /// has used them.
    fn tell_started(&mut self, events: &mut impl Events) {
        let mut any = false;
        for entry in &self.plan.entries {
            let planned = self.roster.running.get_mut(entry.index).filter(|s| s.placement.seq() == Some(entry.seq));
            let Some(sequence) = planned else { continue };
            if let Some(cached_tokens) = sequence.started() {
                events.push(Event::Started { id: sequence.id(), cached_tokens });
                any = true;
            }
        }
        if any {
            events.flush();
        }
    }

    /// Moves every sequence of a decoded batch.
    fn apply(&mut self, now: Duration, engine: &mut impl Engine, events: &mut impl Events) {
        let entries = std::mem::take(&mut self.plan.entries);
        let (mut drawn, mut ended) = (0, Vec::new());
        for entry in &entries {
            // Nobody left or moved since the plan was made. If somebody did, no other may get the tokens.
            let planned = self.roster.running.get_mut(entry.index).filter(|s| s.placement.seq() == Some(entry.seq));
            let Some(sequence) = planned else { continue };
            if engine.is_spoiled(entry.seq) {
                // Also one whose logits nobody reads yet. What it had computed before is good, and this batch does not count as
                // computed: nobody shares it, and it is not saved.
                ended.push((sequence.id(), false));
                events.push(Event::Failed { id: sequence.id(), error: WorkerError::InvalidLogits });
                continue;
            }
            sequence.kv_tokens += entry.tokens;
            if entry.prefill {
                self.roster.kv.mark_computed(sequence);
                let row = |position: u32| engine.logits(entry.first_row + (position - entry.start) as usize);
                if let Some(delta) = sequence.score(entry.start..entry.start + entry.tokens, row) {
                    events.push(Event::Delta { id: sequence.id(), delta });
                }
            }
            let Some(row) = entry.row else { continue };
            let draws = draw(sequence, row, engine, &mut self.workspace, events);
            drawn += draws.tokens;
            self.counters.verified(draws.drafted, draws.accepted);
            if let Some(tokens) = draws.taken_back {
                self.counters.rewound(tokens);
                sequence.cut_kv(engine.reuse());
                engine.truncate(entry.seq, sequence.kv_tokens);
                continue;
            }
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
            if let Some(index) = self.roster.find(id) {
                self.roster.end(index, save, engine);
            }
        }
    }

    /// The engine's KV cache was full although every sequence had reserved capacity: preempts one.
    fn shed(&mut self, engine: &mut impl Engine, events: &mut impl Events) {
        match self.roster.running.len() {
            0 => {}
            1 => {
                let id = self.roster.end(0, false, engine).id();
                events.push(Event::Failed { id, error: WorkerError::Engine("the KV cache is full".to_owned()) });
            }
            count => self.roster.preempt(self.roster.victim().unwrap_or(count - 1), engine, events),
        }
    }

    fn fail_batch(&mut self, error: &EngineError, engine: &mut impl Engine, events: &mut impl Events) {
        let in_batch = |s: &&Sequence| self.plan.entries.iter().any(|entry| s.placement.seq() == Some(entry.seq));
        let lost: Vec<RequestId> = self.roster.running.iter().filter(in_batch).map(Sequence::id).collect();
        for id in lost {
            if let Some(index) = self.roster.find(id) {
                self.roster.end(index, false, engine);
                events.push(Event::Failed { id, error: WorkerError::Engine(error.to_string()) });
            }
        }
    }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
