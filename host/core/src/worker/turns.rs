//! Whose turn it is at the engine: a step computes the sequences of one set of adapters, and the sets take turns.
//!
//! Tenants take turns first, then the sets of a tenant, so that a tenant with many sets takes no more steps from the others than
//! one with few. A set keeps its turn for some steps, because changing adapters costs the engine time.
use crate::adapters::AdapterSet;
use crate::ids::{AdapterDigest, TenantId};
use crate::sequence::Sequence;

/// Steps of a turn while other sets wait.
const TURN_STEPS: u32 = 4;
/// A set that has waited for as many turns as there are sets, times this, goes before all others, whoever its tenants are.
const PATIENCE: u64 = 2;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// What the last step was computed under.
    adapters: AdapterSet,
    /// Steps of the present turn.
    steps: u32,
    /// Turns so far.
    turns: u64,
    /// The turn in which each set, and each tenant, was last served, or first waited, while several sets have sequences. At most
    /// one of each for each sequence.
    sets: Vec<(AdapterSet, u64)>,
    tenants: Vec<(TenantId, u64)>,
}

impl Turns {
    /// What the next step is computed under.
    pub(super) fn adapters(&self) -> &AdapterSet {
        &self.adapters
    }

    /// Chooses the set of the next step among those of the sequences that could compute up to their `limits`. The others
    /// compute nothing in it: their limits become what they have. Returns whether the engine has to change adapters.
    pub(super) fn choose(&mut self, sequences: &[Sequence], limits: &mut [u32]) -> bool {
        let ready = |(s, limit): &(&Sequence, &u32)| **limit > s.kv_tokens;
        let waiting = || sequences.iter().zip(&*limits).filter(ready).map(|(s, _)| s);
        let Some(first) = waiting().next() else { return false };
        let next = if waiting().all(|s| s.start.adapters == first.start.adapters) {
            self.sets.clear();
            self.tenants.clear();
            self.steps = 0;
            first.start.adapters.clone()
        } else {
            let waiting: Vec<&Sequence> = waiting().collect();
            self.next(&waiting)
        };
        for (s, limit) in sequences.iter().zip(limits).filter(|(s, _)| s.start.adapters != next) {
            *limit = s.kv_tokens;
        }
        let switches = next != self.adapters;
        if switches {
            self.adapters = next;
        }
        switches
    }

    /// The engine let go of an adapter, and with it of the set that it was in.
    pub(super) fn forget(&mut self, adapter: AdapterDigest) {
        if self.adapters.contains(adapter) {
            self.adapters = AdapterSet::default();
        }
    }

    /// The set of the next step, where several have sequences that could compute.
    fn next(&mut self, waiting: &[&Sequence]) -> AdapterSet {
        let begun = self.turns;
        self.sets.retain(|(set, _)| waiting.iter().any(|s| s.start.adapters == *set));
        self.tenants.retain(|(tenant, _)| waiting.iter().any(|s| s.start.tenant == *tenant));
        for s in waiting {
            // Whoever is new waits behind all who are there, or new ones would keep others waiting for ever.
            note(&mut self.sets, &s.start.adapters, begun);
            note(&mut self.tenants, &s.start.tenant, begun);
        }
        let goes_on = waiting.iter().any(|s| s.start.adapters == self.adapters) && self.steps < TURN_STEPS;
        let chosen = if goes_on { self.adapters.clone() } else { self.longest_waiting(waiting) };
        if !goes_on || self.steps == 0 {
            self.begin_turn(waiting, &chosen);
        }
        self.steps += 1;
        chosen
    }

    /// The set that has waited for longest, of the tenant that has.
    fn longest_waiting(&self, waiting: &[&Sequence]) -> AdapterSet {
        let longest = self.sets.iter().map(|(_, since)| *since).min().unwrap_or_default();
        let is_overdue = self.turns.saturating_sub(longest) > PATIENCE * self.sets.len() as u64;
        let key = |s: &&&Sequence| {
            let tenant = if is_overdue { 0 } else { stamp(&self.tenants, &s.start.tenant) };
            (tenant, stamp(&self.sets, &s.start.adapters))
        };
        waiting.iter().min_by_key(key).map(|s| s.start.adapters.clone()).unwrap_or_default()
    }

    /// The set is served from now on, and with it all tenants who have sequences in it.
    fn begin_turn(&mut self, waiting: &[&Sequence], chosen: &AdapterSet) {
        self.turns += 1;
        self.steps = 0;
        self.sets.iter_mut().filter(|(set, _)| set == chosen).for_each(|(_, served)| *served = self.turns);
        for s in waiting.iter().filter(|s| s.start.adapters == *chosen) {
            self.tenants.iter_mut().filter(|(of, _)| *of == s.start.tenant).for_each(|(_, at)| *at = self.turns);
        }
    }
}

fn note<T: Clone + PartialEq>(stamps: &mut Vec<(T, u64)>, of: &T, now: u64) {
    if !stamps.iter().any(|(known, _)| known == of) {
        stamps.push((of.clone(), now));
    }
}

fn stamp<T: PartialEq>(stamps: &[(T, u64)], of: &T) -> u64 {
    stamps.iter().find(|(known, _)| known == of).map_or(0, |(_, at)| *at)
}
