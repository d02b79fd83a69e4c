//! A sampler's plan: operations that the host runs on each row by itself, and when it calls the sampler none the less.
use super::checks::RowError;
use super::row::Row;
use super::step::Step;
use super::work;

/// Bounds of a plan.
pub const MAX_STEPS: usize = 32;
/// Numbers in the lists of all steps and wake conditions together.
pub(super) const MAX_ENTRIES: usize = 1 << 20;
pub(super) const MAX_SUFFIXES: usize = 64;
/// Bytes, and at least 1.
pub(super) const MAX_SUFFIX_BYTES: usize = 256;

/// A plan refused what was added to it, or does not fit the model.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    #[error("a plan has at most {MAX_STEPS} steps")]
    TooManySteps,
    #[error("the lists of a plan have at most {MAX_ENTRIES} entries together")]
    TooManyEntries,
    #[error("a plan wakes on at most {MAX_SUFFIXES} texts")]
    TooManySuffixes,
    #[error("a text to wake on has {0} bytes, not 1 to {MAX_SUFFIX_BYTES}")]
    SuffixLength(usize),
    #[error("wake-every = 0 tokens")]
    Never,
    #[error("wake-above-entropy = {0} is not a number")]
    Entropy(f32),
    #[error("step {number} of the plan: {error}")]
    Step { number: usize, error: RowError },
    #[error("wake-on-token: {0}")]
    Wake(RowError),
    #[error("the steps of the plan take {work} units of work for a token, over {max}")]
    TooMuchWork { work: u64, max: u64 },
}

/// Steps in order, and wake conditions. Without any of these, the sampler is never called.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    steps: Vec<Step>,
    /// Sorted.
    tokens: Vec<u32>,
    suffixes: Vec<Vec<u8>>,
    every: Option<u32>,
    entropy: Option<f32>,
    /// The size of the vocabulary that it was prepared for.
    prepared: Option<usize>,
}

impl Plan {
    /// # Errors
    /// The plan is full.
    pub fn push(&mut self, step: Step) -> Result<(), PlanError> {
        if self.steps.len() >= MAX_STEPS {
            return Err(PlanError::TooManySteps);
        }
        self.check_room(step.entries())?;
        self.prepared = None;
        self.steps.push(step);
        Ok(())
    }

    /// Wakes the sampler for the token after one of these.
    ///
    /// # Errors
    /// The plan is full.
    pub fn wake_on_tokens(&mut self, ids: &[u32]) -> Result<(), PlanError> {
        self.check_room(ids.len())?;
        self.tokens.extend_from_slice(ids);
        self.tokens.sort_unstable();
        self.tokens.dedup();
        Ok(())
    }

    /// Wakes the sampler for the token after one in which an occurrence of the text ended.
    ///
    /// # Errors
    /// There are too many, or its length is out of bounds.
    pub fn wake_on_suffix(&mut self, text: &[u8]) -> Result<(), PlanError> {
        if text.is_empty() || text.len() > MAX_SUFFIX_BYTES {
            return Err(PlanError::SuffixLength(text.len()));
        }
        if self.suffixes.len() >= MAX_SUFFIXES {
            return Err(PlanError::TooManySuffixes);
        }
        self.suffixes.push(text.to_vec());
        Ok(())
    }

    /// Wakes the sampler for the first token and after each `tokens` more.
    ///
    /// # Errors
    /// The number is 0.
    pub fn wake_every(&mut self, tokens: u32) -> Result<(), PlanError> {
        if tokens == 0 {
            return Err(PlanError::Never);
        }
        self.every = Some(tokens);
        Ok(())
    }

    /// Wakes the sampler if the entropy of what the steps left is above so many nats.
    ///
    /// # Errors
    /// It is not a number.
    pub fn wake_above_entropy(&mut self, nats: f32) -> Result<(), PlanError> {
        if nats.is_nan() {
            return Err(PlanError::Entropy(nats));
        }
        self.entropy = Some(nats);
        Ok(())
    }

    /// Checks and prepares the steps once, so that no token pays for that. The sequence has at most `tokens` tokens.
    ///
    /// # Errors
    /// A step or condition does not fit a vocabulary of `size` tokens, or has a wrong number; or the steps take too much work.
    pub fn prepare(&mut self, size: usize, tokens: usize) -> Result<(), PlanError> {
        for (at, step) in self.steps.iter_mut().enumerate() {
            step.check(size).map_err(|error| PlanError::Step { number: at + 1, error })?;
            step.prepare();
        }
        if let Some(&token) = self.tokens.last()
            && token as usize >= size
        {
            return Err(PlanError::Wake(RowError::UnknownToken { token, size }));
        }
        let (work, max) = (work::of(self.steps.iter(), size, tokens), work::bound(size));
        if work > max {
            return Err(PlanError::TooMuchWork { work, max });
        }
        self.prepared = Some(size);
        Ok(())
    }

    /// Runs the steps.
    ///
    /// # Errors
    /// A step is out of range: not after [`Plan::prepare`].
    pub fn apply(&self, row: &mut Row) -> Result<(), RowError> {
        if self.prepared == Some(row.size()) {
            return self.steps.iter().try_for_each(|step| step.apply_prepared(row));
        }
        self.steps.iter().try_for_each(|step| step.apply(row))
    }

    /// Whether nothing wakes the sampler.
    pub fn sleeps(&self) -> bool {
        self.tokens.is_empty() && self.suffixes.is_empty() && self.every.is_none() && self.entropy.is_none()
    }

    /// Whether the sampler is to be called for this token, after [`Plan::apply`].
    pub fn wakes(&self, row: &Row) -> bool {
        let drawn = row.position() > 0;
        let last = |ids: &[u32]| row.history(1).first().is_some_and(|token| ids.binary_search(&token.0).is_ok());
        self.every.is_some_and(|every| (row.position() as u64).is_multiple_of(u64::from(every)))
            || (drawn && !self.tokens.is_empty() && last(&self.tokens))
            || self.suffixes.iter().any(|suffix| row.ended_in_last(suffix))
            || self.entropy.is_some_and(|nats| row.statistics().entropy > nats)
    }

    fn check_room(&self, more: usize) -> Result<(), PlanError> {
        let entries = self.steps.iter().map(Step::entries).sum::<usize>() + self.tokens.len();
        if entries.saturating_add(more) > MAX_ENTRIES { Err(PlanError::TooManyEntries) } else { Ok(()) }
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
