//! The step plan: which tokens the next batch decodes. One function makes it, another carries it out.
use crate::engine::Batch;
use crate::ids::SeqId;
use crate::sequence::Sequence;
use crate::step_times::Work;

/// One step.
#[derive(Debug, Default)]
pub(crate) struct StepPlan {
    /// Invariant: at most the engine's batch size; rows of a sequence ascend in position without a gap.
    pub(crate) batch: Batch,
    /// Invariant: each sequence at most once, in the order of the batch.
    pub(crate) entries: Vec<BatchEntry>,
}

/// What a batch holds of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchEntry {
    pub(crate) seq: SeqId,
    /// Its place among the sequences that were planned.
    pub(crate) index: usize,
    /// Position of its first token in the batch.
    pub(crate) start: u32,
    /// The row of that token.
    pub(crate) first_row: usize,
    /// Its tokens in the batch, at least one; those of a draft are not counted.
    pub(crate) tokens: u32,
    /// The row whose logits give its next token; `None` while its prompt is not complete.
    pub(crate) row: Option<usize>,
    /// Tokens of its draft, in the rows after that one.
    pub(crate) drafted: u32,
    pub(crate) prefill: bool,
}

/// Rows of prompts whose logits one step gives, beside those that tokens are drawn from: each takes as many numbers as the
/// vocabulary has tokens.
const SCORED_ROWS: u32 = 32;

/// Bounds of a step, in tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepBudget {
    pub(crate) batch_tokens: usize,
    /// Prompt tokens; at least one is planned, so that prefill never stalls.
    pub(crate) prefill_tokens: usize,
}

impl StepPlan {
    /// Plans one token of each decoding sequence with its draft, then chunks of prompts up to the budget, both in the order
    /// of `sequences`. `limits`: for each the position up to which it may compute now.
    pub(crate) fn plan(&mut self, sequences: &[Sequence], limits: &[u32], budget: StepBudget) {
        self.batch.clear();
        self.entries.clear();
        for (index, (sequence, &limit)) in sequences.iter().zip(limits).enumerate() {
            if sequence.decodes_below(limit) && self.batch.len() + sequence.draft.len() < budget.batch_tokens {
                self.add(index, sequence, sequence.kv_tokens + 1, false);
            }
        }
        let mut left = (budget.batch_tokens - self.batch.len()).min(budget.prefill_tokens.max(1));
        let mut scored_left = SCORED_ROWS;
        for (index, (sequence, &limit)) in sequences.iter().zip(limits).enumerate() {
            if sequence.prefills_below(limit) && left > 0 {
                let mut end = limit.min(sequence.kv_tokens.saturating_add(left as u32));
                let unscored = sequence.unscored();
                if !unscored.is_empty() {
                    let from = unscored.start.max(sequence.kv_tokens);
                    end = end.min(from.saturating_add(scored_left));
                    scored_left -= end.min(unscored.end).saturating_sub(from);
                }
                if end > sequence.kv_tokens {
                    left -= (end - sequence.kv_tokens) as usize;
                    self.add(index, sequence, end, true);
                }
            }
        }
    }

    /// What it computes.
    pub(crate) fn work(&self) -> Work {
        self.entries.iter().fold(Work::default(), |work, entry| match entry.prefill {
            true => work.and_prompt(entry.start, entry.tokens),
            false => work.and_rows(entry.start, entry.tokens + entry.drafted),
        })
    }

    /// Adds a sequence's next tokens up to position `end`.
    fn add(&mut self, index: usize, sequence: &Sequence, end: u32, prefill: bool) {
        let Some(seq) = sequence.placement.seq() else { return };
        let (mut row, first_row, unscored) = (None, self.batch.len(), sequence.unscored());
        for position in sequence.kv_tokens..end {
            let last = position as usize + 1 == sequence.tokens.len();
            let wants_logits = last || unscored.contains(&position);
            let pushed = self.batch.push(sequence.tokens[position as usize], position, seq, wants_logits);
            row = last.then_some(pushed);
        }
        // Each draft token gives logits too: the token after it is drawn from them if the draft was right.
        let draft = if row.is_some() && !prefill { &sequence.draft[..] } else { &[] };
        for (position, &token) in (end..).zip(draft) {
            self.batch.push(token, position, seq, true);
        }
        let drafted = draft.len() as u32;
        let start = sequence.kv_tokens;
        self.entries.push(BatchEntry { seq, index, start, first_row, tokens: end - start, row, drafted, prefill });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_counts_rows_with_their_drafts_apart_from_prompts() {
        let entry = |start, tokens, drafted, prefill: bool| {
            let row = (!prefill).then_some(0);
            BatchEntry { seq: SeqId(0), index: 0, start, first_row: 0, tokens, row, drafted, prefill }
        };
        // A token at position 9 with two of its draft, which attend to 10, 11 and 12 entries, and one at position 99.
        let mut entries = vec![entry(9, 1, 2, false), entry(99, 1, 0, false)];
        // Chunks from position 0 and from position 4, whose tokens attend to 1, 2 and 3, and to 5 and 6 entries.
        entries.extend([entry(0, 3, 0, true), entry(4, 2, 0, true)]);
        let plan = StepPlan { entries, ..StepPlan::default() };
        assert_eq!(plan.work(), Work { rows: 4, read: 133.0, prompt: 5, attended: 17.0 });
    }
}
