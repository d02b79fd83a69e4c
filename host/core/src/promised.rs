//! What models were promised of the host's memory: those that come later, or lose their devices, are sized by what the others leave.
use std::collections::BTreeMap;

use crate::sizes::{self, Budget, Machine, ModelNeeds, Sizes};

/// What everything takes of the host's memory, or was promised of it.
#[derive(Debug)]
pub struct Promised {
    machine: Machine,
    /// The process and the prefix cache.
    rest: u64,
    /// By the models' numbers.
    models: BTreeMap<usize, u64>,
}

impl Promised {
    /// Of the models that are loaded first, which have the numbers from 0.
    pub fn of(budget: &Budget) -> Self {
        let models = budget.models.iter().map(Sizes::bytes).enumerate().collect();
        Self { machine: budget.machine, rest: budget.process.saturating_add(budget.cache), models }
    }

    /// What everything but one model takes.
    pub fn beside(&self, model: usize) -> u64 {
        let others = self.models.iter().filter(|(number, _)| **number != model);
        others.map(|(_, &bytes)| bytes).fold(self.rest, u64::saturating_add)
    }

    /// Sizes for one model, as `needs` says, in what the others leave. `kept`: what it has there already, and does not give back.
    pub fn divide(&self, model: usize, kept: u64, needs: &ModelNeeds) -> Budget {
        let beside = self.beside(model).saturating_add(kept);
        sizes::divide(self.machine, beside, &[], std::slice::from_ref(needs), Some(0))
    }

    /// The process and the prefix cache may take as much from now on.
    pub fn set_rest(&mut self, process: u64, cache: u64) {
        self.rest = process.saturating_add(cache);
    }

    /// One model has this much from now on.
    ///
    /// Returns what it had.
    pub fn promise(&mut self, model: usize, bytes: u64) -> u64 {
        self.models.insert(model, bytes).unwrap_or_default()
    }

    /// A model is gone.
    pub fn release(&mut self, model: usize) {
        self.models.remove(&model);
    }

    /// A number that no model has had.
    pub fn next_number(&mut self) -> usize {
        let number = self.models.last_key_value().map_or(0, |(last, _)| last + 1);
        self.models.insert(number, 0);
        number
    }
}
