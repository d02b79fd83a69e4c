//! The sequences of a worker and the KV capacity they share: who runs, who waits, who gives way to whom.
use std::collections::HashMap;
use std::time::Duration;

use super::kv::Kv;
use super::restoring::{RestoreBounds, RestoreBudget};
use crate::engine::Engine;
use crate::ids::{RequestId, SeqId, TenantId};
use crate::message::{Event, Events, FinishReason, WorkerError};
use crate::placement::Rank;
use crate::sequence::{Drawn, Sequence};

#[derive(Debug)]
pub(super) struct Roster {
    /// By rank. Paused ones are among them until others need their capacity.
    pub(super) running: Vec<Sequence>,
    /// Not running, in no order.
    pub(super) waiting: Vec<Sequence>,
    pub(super) kv: Kv,
    pub(super) restore_bounds: RestoreBounds,
    /// Sequences that may run at once, paused ones aside.
    pub(super) most: usize,
    /// Sequence ids that were given back since somebody last looked.
    pub(super) freed: Vec<SeqId>,
    /// Counts of events that were not reported yet.
    pub(super) preemptions: u64,
    pub(super) pauses: u64,
}

impl Roster {
    pub(super) fn new(kv: Kv) -> Self {
        Self {
            running: Vec::new(),
            waiting: Vec::new(),
            kv,
            restore_bounds: RestoreBounds::default(),
            most: usize::MAX,
            freed: Vec::new(),
            preemptions: 0,
            pauses: 0,
        }
    }

    pub(super) fn add(&mut self, sequence: Sequence, engine: &mut impl Engine, events: &mut impl Events) {
        self.queue(sequence);
        self.admit_waiting(engine, events);
    }

    /// Running sequences that are not paused.
    pub(super) fn active(&self) -> usize {
        self.running.iter().filter(|s| !s.placement.is_paused()).count()
    }

    /// KV tokens that are free, or come free when others need them.
    pub(super) fn available_tokens(&self) -> u32 {
        self.kv.free_tokens() + self.kv.reclaimable_tokens(&self.running)
    }

    /// Whether a sequence waits for KV capacity.
    pub(super) fn has_ready(&self) -> bool {
        self.waiting.iter().any(|s| s.placement.is_ready())
    }

    pub(super) fn find(&self, id: RequestId) -> Option<usize> {
        self.running.iter().position(|s| s.id() == id)
    }

    /// Ends the sequences whose time is up with what they have.
    pub(super) fn expire(&mut self, now: Duration, engine: &mut impl Engine, events: &mut impl Events) {
        let all = self.running.iter_mut().chain(&mut self.waiting);
        let expired: Vec<RequestId> = all.filter_map(|s| s.is_expired(now).then_some(s.id())).collect();
        for id in expired {
            let Some(mut sequence) = self.remove(id, engine) else { continue };
            let end = sequence.end(FinishReason::Expired);
            if let Drawn::Ended(Some(delta), _) = &end {
                events.push(Event::Delta { id, delta: delta.clone() });
            }
            events.push(match end {
                Drawn::Failed(error) => Event::Failed { id, error },
                Drawn::Ended(_, reason) => Event::Finished { id, reason, usage: sequence.usage() },
                Drawn::Continues(_) | Drawn::Rewound { .. } => {
                    Event::Finished { id, reason: FinishReason::Expired, usage: sequence.usage() }
                }
            });
        }
    }

    /// Takes a sequence out, wherever it is, and gives back what it held.
    pub(super) fn remove(&mut self, id: RequestId, engine: &mut impl Engine) -> Option<Sequence> {
        if let Some(index) = self.find(id) {
            return Some(self.end(index, true, engine));
        }
        let index = self.waiting.iter().position(|s| s.id() == id)?;
        let sequence = self.waiting.remove(index);
        self.kv.end(&sequence, false, engine);
        Some(sequence)
    }

    pub(super) fn queue(&mut self, sequence: Sequence) {
        self.waiting.push(sequence);
    }

    /// How many sequences of each tenant run, and the KV tokens that they have to themselves or together with others; without
    /// those that are paused.
    fn holdings(&self) -> HashMap<&TenantId, (usize, u32)> {
        let mut holdings = HashMap::new();
        for sequence in self.running.iter().filter(|s| !s.placement.is_paused()) {
            let (count, tokens) = holdings.entry(&sequence.start.tenant).or_default();
            (*count, *tokens) = (*count + 1, *tokens + self.kv.held_tokens(sequence));
        }
        holdings
    }

    /// The sequence to admit next: of the highest class, those that no scheduler preempted, and of them one of the tenant that
    /// holds the least.
    fn next_waiting(&self) -> Option<usize> {
        let mut ready = (0..self.waiting.len()).filter(|&index| self.waiting[index].placement.is_ready());
        let first = ready.next()?;
        let Some(second) = ready.next() else { return Some(first) };
        let holdings = self.holdings();
        [first, second].into_iter().chain(ready).min_by_key(|&index| {
            let Sequence { start, rank, .. } = &self.waiting[index];
            let holding = holdings.get(&start.tenant).map_or(0, |(_, tokens)| *tokens);
            (start.priority, matches!(rank, Rank::Demoted(_)), holding, *rank)
        })
    }

    /// Admits waiting sequences in strict order: the first one for which there is no capacity blocks the rest.
    pub(super) fn admit_waiting(&mut self, engine: &mut impl Engine, events: &mut impl Events) {
        while let Some(next) = self.next_waiting() {
            let mut sequence = self.waiting.remove(next);
            if !self.admit(&mut sequence, engine, events) {
                self.queue(sequence);
                break;
            }
            events.push(Event::Admitted { id: sequence.id() });
            let at = self.running.partition_point(|other| other.rank < sequence.rank);
            self.running.insert(at, sequence);
        }
    }

    /// Admits a sequence. Paused ones give up what they hold, the one paused for longest first, if that is enough.
    fn admit(&mut self, sequence: &mut Sequence, engine: &mut impl Engine, events: &mut impl Events) -> bool {
        loop {
            let (running, active) = (self.running.len(), self.active());
            if active >= self.most {
                return false;
            }
            if self.kv.admit(sequence, running, active, engine.reuse()) {
                return true;
            }
            match self.longest_paused() {
                Some(paused) if self.kv.could_admit(sequence, &self.running, active) => {
                    self.preempt(paused, engine, events);
                }
                _ => return false,
            }
        }
    }

    /// Makes sure that there is KV capacity for every running sequence's next token, by preempting some if need be.
    pub(super) fn make_capacity(&mut self, engine: &mut impl Engine, events: &mut impl Events) {
        let mut index = 0;
        while index < self.running.len() {
            if self.running[index].placement.is_paused() || self.kv.grow(&self.running[index]) {
                index += 1;
                continue;
            }
            // A sequence alone always has capacity.
            let Some(victim) = self.victim() else { return };
            self.preempt(victim, engine, events);
            if victim < index {
                index -= 1;
            }
        }
    }

    /// Who gives up its KV entries if capacity is short: who is paused, then the lowest class, of it the tenant that holds the
    /// most with more than one sequence, and of its sequences the latest; without any such tenant the latest of all. So many
    /// answers of one tenant grow at its own cost, and a single long one of another stays.
    pub(super) fn victim(&self) -> Option<usize> {
        let holdings = self.holdings();
        let key = |&i: &usize| {
            let Sequence { start, rank, .. } = &self.running[i];
            let many = holdings.get(&start.tenant).filter(|(count, _)| *count > 1);
            (start.priority, many.map(|(_, tokens)| *tokens), *rank)
        };
        self.longest_paused().or_else(|| (0..self.running.len()).max_by_key(key))
    }

    /// Takes a running sequence off the engine; it waits to be admitted again.
    pub(super) fn preempt(&mut self, index: usize, engine: &mut impl Engine, events: &mut impl Events) {
        let mut sequence = self.take_out(index, engine);
        if sequence.placement.is_paused() {
            self.kv.release(&mut sequence, engine);
        } else {
            self.preemptions += 1;
            self.kv.preempt(&mut sequence, engine);
        }
        events.push(Event::Preempted { id: sequence.id() });
        self.queue(sequence);
    }

    /// A scheduler wants a sequence to make room: it goes on after all of its class that no scheduler preempted.
    pub(super) fn demote(&mut self, id: RequestId, rank: Rank, engine: &mut impl Engine, events: &mut impl Events) {
        if let Some(index) = self.find(id) {
            self.running[index].rank = rank;
            self.preempt(index, engine, events);
        } else if let Some(sequence) = self.waiting.iter_mut().find(|s| s.id() == id) {
            sequence.rank = rank;
        }
    }

    /// Ends a running sequence and gives back what it held. `save`: others may use its KV entries.
    pub(super) fn end(&mut self, index: usize, save: bool, engine: &mut impl Engine) -> Sequence {
        let sequence = self.take_out(index, engine);
        self.kv.end(&sequence, save, engine);
        sequence
    }

    /// Removes a running sequence whose KV entries are about to go: whoever shares its prefix reuses them before.
    fn take_out(&mut self, index: usize, engine: &mut impl Engine) -> Sequence {
        for other in (0..self.running.len()).filter(|&other| other != index) {
            self.kv.reuse(other, &mut self.running, &mut RestoreBudget::none(), engine);
        }
        let sequence = self.running.remove(index);
        self.freed.extend(sequence.placement.seq());
        sequence
    }

    /// A reader is behind. Its sequence keeps its KV entries until somebody needs the capacity.
    pub(super) fn pause(&mut self, id: RequestId, now: u64, engine: &mut impl Engine, events: &mut impl Events) {
        if let Some(index) = self.find(id) {
            let sequence = &mut self.running[index];
            if sequence.placement.is_paused() {
                return;
            }
            sequence.paused_at = Some(now);
            self.kv.pause(sequence);
            self.pauses += 1;
            // Others may wait for a prompt that is being computed.
            if !sequence.is_decoding() {
                self.preempt(index, engine, events);
            }
        } else if let Some(sequence) = self.waiting.iter_mut().find(|s| s.id() == id) {
            if !sequence.placement.pause() {
                return;
            }
            sequence.paused_at = Some(now);
        } else {
            return;
        }
        events.push(Event::Paused { id });
        self.bound_paused(engine, events);
        self.admit_waiting(engine, events);
    }

    /// A reader has caught up.
    pub(super) fn resume(&mut self, id: RequestId, engine: &mut impl Engine, events: &mut impl Events) {
        let mut all = self.running.iter_mut().chain(&mut self.waiting);
        let Some(sequence) = all.find(|s| s.id() == id && s.placement.is_paused()) else { return };
        self.kv.resume(sequence);
        events.push(Event::Resumed { id });
        self.admit_waiting(engine, events);
    }

    /// Index of the running sequence that was paused first of all that are.
    fn longest_paused(&self) -> Option<usize> {
        let paused = (0..self.running.len()).filter(|&index| self.running[index].placement.is_paused());
        paused.min_by_key(|&index| self.running[index].paused_at)
    }

    /// As many sequences may be paused as may run. Past that, the one paused for longest ends.
    fn bound_paused(&mut self, engine: &mut impl Engine, events: &mut impl Events) {
        let all = || self.running.iter().chain(&self.waiting).filter(|s| s.placement.is_paused());
        if all().count() <= self.kv.sequences() as usize {
            return;
        }
        let Some(id) = all().min_by_key(|s| s.paused_at).map(|s| s.id()) else { return };
        if self.remove(id, engine).is_some() {
            events.push(Event::Failed { id, error: WorkerError::SlowReader });
        }
    }
    /// Brings in what is saved of each running sequence, and lists how far each may compute. False if the rest of it has to
    /// wait.
    pub(super) fn restore(&mut self, limits: &mut Vec<u32>, engine: &mut impl Engine) -> bool {
        let mut budget = RestoreBudget::of_step(self.restore_bounds, engine.restores_in_place());
        let mut all = true;
        limits.clear();
        for index in 0..self.running.len() {
            let complete = self.kv.reuse(index, &mut self.running, &mut budget, engine);
            let sequence = &self.running[index];
            let computes = complete && !sequence.placement.is_paused();
            limits.push(if computes { self.kv.limit(sequence) } else { sequence.kv_tokens });
            all &= complete;
        }
        all
    }
}
