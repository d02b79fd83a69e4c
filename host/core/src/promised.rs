//! What models were promised of the host's memory: those that lose their devices are sized by what the others leave.
use crate::sizes::{self, Budget, Machine, ModelNeeds, Sizes};

/// What everything takes of the host's memory, or was promised of it, while models lose their devices.
#[derive(Debug)]
pub struct Promised {
    machine: Machine,
    /// The process and the prefix cache.
    rest: u64,
    models: Vec<u64>,
}

impl Promised {
    pub fn of(budget: &Budget) -> Self {
        let models = budget.models.iter().map(Sizes::bytes).collect();
        Self { machine: budget.machine, rest: budget.process.saturating_add(budget.cache), models }
    }

    /// Sizes for one model, as `needs` says, in what the others leave. `kept`: what it has there already, and does not give back.
    pub fn divide(&self, model: usize, kept: u64, needs: &ModelNeeds) -> Budget {
        let others = self.models.iter().enumerate().filter(|(index, _)| *index != model);
        let beside = others.map(|(_, &bytes)| bytes).fold(self.rest.saturating_add(kept), u64::saturating_add);
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
        self.models.get_mut(model).map_or(0, |promised| std::mem::replace(promised, bytes))
    }
}
