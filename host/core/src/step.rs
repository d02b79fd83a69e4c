//! The step plan: which tokens are decoded together next. Data, made by one function and carried out by another.
use crate::engine::Batch;
use crate::ids::SeqId;
use crate::sequence::Sequence;

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
    /// Tokens of it in the batch, at least one; guessed ones are not counted.
    pub tokens: u32,
    /// The row whose logits give its next token; `None` while its prompt is not complete.
    pub row: Option<usize>,
    /// Guessed tokens, in the rows after that one.
    pub drafted: u32,
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
    /// Plans decode tokens of all running sequences first, with what is guessed to follow them, then prompt chunks in order of arrival up to the budget.
    /// `sequences` are in order of arrival; `limits` says for each how far it may compute now.
    pub fn plan(&mut self, sequences: &[Sequence], limits: &[u32], budget: StepBudget) {
        self.batch.clear();
        self.parts.clear();
        for (sequence, &limit) in sequences.iter().zip(limits) {
            if sequence.is_decoding()
                && limit > sequence.done
                && self.batch.len() + sequence.draft.len() < budget.batch_tokens
            {
                self.add(sequence, sequence.done + 1, false);
            }
        }
        let mut left = (budget.batch_tokens - self.batch.len()).min(budget.prefill_tokens.max(1));
        for (sequence, &limit) in sequences.iter().zip(limits) {
            if !sequence.is_decoding() && limit > sequence.done && left > 0 {
                let end = limit.min(sequence.done.saturating_add(left as u32));
                left -= (end - sequence.done) as usize;
                self.add(sequence, end, true);
            }
        }
    }

    /// Adds a sequence's tokens from where it is to `end`.
    fn add(&mut self, sequence: &Sequence, end: u32, prefill: bool) {
        let Some(seq) = sequence.seq else { return };
        let mut row = None;
        for position in sequence.done..end {
            let last = position as usize + 1 == sequence.tokens.len();
            let index = self.batch.push(sequence.tokens[position as usize], position, seq, last);
            row = last.then_some(index);
        }
        // Logits follow each guess, too: there the token after it is drawn if it was right.
        let draft = if row.is_some() && !prefill { &sequence.draft[..] } else { &[] };
        for (position, &token) in (end..).zip(draft) {
            self.batch.push(token, position, seq, true);
        }
        let drafted = draft.len() as u32;
        self.parts.push(Part { seq, tokens: end - sequence.done, row, drafted, prefill });
    }
}
