//! The step plan: which tokens are decoded together next. Data, made by one function and carried out by another.
use crate::engine::Batch;
use crate::ids::SeqId;
use crate::sequence::{Phase, Sequence};

/// One step.
#[derive(Debug, Default)]
pub struct StepPlan {
    /// Invariant: at most the engine's batch size; rows of a sequence ascend in position without a gap.
    pub batch: Batch,
    /// Invariant: each sequence at most once, in the order of the batch.
    pub parts: Vec<Part>,
}

/// What a step does for one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    pub seq: SeqId,
    /// Tokens of it in the batch, at least one.
    pub tokens: u32,
    /// The row whose logits give its next token; `None` while its prompt is not complete.
    pub row: Option<usize>,
    pub prefill: bool,
}

/// Bounds of a step, in tokens.
#[derive(Debug, Clone, Copy)]
pub struct StepBudget {
    pub batch_tokens: usize,
    /// Prompt tokens; at least one is let through so that prefill always goes on.
    pub prefill_tokens: usize,
}

impl StepPlan {
    /// Plans decode tokens of all running sequences first, then prompt chunks in order of arrival up to the budget.
    /// `sequences` are in order of arrival.
    pub fn plan<'a>(&mut self, sequences: impl Iterator<Item = &'a Sequence> + Clone, budget: StepBudget) {
        self.batch.clear();
        self.parts.clear();
        for sequence in sequences.clone() {
            if let Phase::Decode { next } = sequence.phase {
                if self.batch.len() >= budget.batch_tokens {
                    break;
                }
                let row = self.batch.push(next, sequence.position(), sequence.seq, true);
                self.parts.push(Part { seq: sequence.seq, tokens: 1, row: Some(row), prefill: false });
            }
        }
        let mut left = (budget.batch_tokens - self.batch.len()).min(budget.prefill_tokens.max(1));
        for sequence in sequences {
            let Phase::Prefill { done } = sequence.phase else { continue };
            if left == 0 {
                break;
            }
            let prompt = &sequence.start.prompt;
            let chunk = left.min(prompt.len() - done as usize);
            left -= chunk;
            let end = done as usize + chunk;
            let mut row = None;
            for (position, &token) in (done..).zip(&prompt[done as usize..end]) {
                let last = position as usize + 1 == prompt.len();
                let index = self.batch.push(token, position, sequence.seq, last);
                row = last.then_some(index);
            }
            self.parts.push(Part { seq: sequence.seq, tokens: chunk as u32, row, prefill: true });
        }
    }
}
