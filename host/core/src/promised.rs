//! What models were promised of the host's memory: those that come later, or lose their devices, are sized by what the others leave.
use std::collections::BTreeMap;

use crate::sizes::{self, Budget, Machine, ModelNeeds, Sizes};

/// What everything takes of the host's memory, or was promised of it.
#[derive(Debug)]
pub struct Promised {
    machine: Machine,
    /// The process and the prefix cache.
    rest: u64,
    /// By the models' numbers, and those of what they have beside their weights and may give back before them.
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

    /// A model takes another number of bytes from now on.
    ///
    /// # Errors
    /// They are more than it had, and more than the others leave: how many those leave.
    pub fn resize(&mut self, model: usize, bytes: u64) -> Result<(), u64> {
        let left = self.machine.memory.saturating_sub(self.beside(model));
        let had = self.models.get(&model).copied().unwrap_or_default();
        if bytes > had && bytes > left {
            return Err(left);
        }
        self.promise(model, bytes);
        Ok(())
    }

    /// A model is gone.
    pub fn release(&mut self, model: usize) {
        self.models.remove(&model);
    }

    /// Promises bytes beside all that others were promised, under a number of their own.
    ///
    /// # Errors
    /// There are fewer: how many.
    pub fn take(&mut self, bytes: u64) -> Result<usize, u64> {
        let left = self.machine.memory.saturating_sub(self.beside(usize::MAX));
        if bytes > left {
            return Err(left);
        }
        let number = self.next_number();
        self.promise(number, bytes);
        Ok(number)
    }

    /// Has bytes of what a model was promised be under a number of their own: they can be released before the model.
    pub fn split(&mut self, model: usize, bytes: u64) -> usize {
        let all = self.models.get_mut(&model);
        let bytes = all.map_or(0, |all| {
            let bytes = bytes.min(*all);
            *all -= bytes;
            bytes
        });
        let number = self.next_number();
        self.promise(number, bytes);
        number
    }

    /// A number that no model has.
    pub fn next_number(&mut self) -> usize {
        let number = self.models.last_key_value().map_or(0, |(last, _)| last + 1);
        self.models.insert(number, 0);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: Machine = Machine { memory: 1000, cores: 1 };

    fn promised() -> Promised {
        Promised { machine: MACHINE, rest: 100, models: BTreeMap::from([(0, 400)]) }
    }

    #[test]
    fn what_is_left_can_be_taken_and_not_a_byte_more() {
        let mut promised = promised();
        assert_eq!(promised.take(501), Err(500));
        let taken = promised.take(500).unwrap();
        assert_eq!(promised.take(1), Err(0));
        promised.release(taken);
        assert!(promised.take(500).is_ok());
    }

    #[test]
    fn a_model_grows_into_what_the_others_leave_and_not_a_byte_further() {
        let mut promised = promised();
        promised.take(300).unwrap();
        assert_eq!(promised.resize(0, 601), Err(600));
        assert_eq!(promised.beside(usize::MAX), 800, "nothing has changed");
        promised.resize(0, 600).unwrap();
        promised.resize(0, 200).unwrap();
        assert_eq!(promised.beside(usize::MAX), 600);
    }

    #[test]
    fn a_part_of_a_model_is_released_before_it_and_after_it() {
        let mut promised = promised();
        let part = promised.split(0, 150);
        assert_eq!(promised.beside(usize::MAX), 500, "nothing is counted twice");
        promised.release(part);
        assert_eq!(promised.beside(usize::MAX), 350);
        let all = promised.split(0, 251);
        promised.release(0);
        assert_eq!(promised.beside(usize::MAX), 350);
        promised.release(all);
        assert_eq!(promised.beside(usize::MAX), 100);
    }
}
