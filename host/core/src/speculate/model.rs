//! Drafts from a smaller model with the same vocabulary, on an engine of its own.
use super::drafter::{DraftRequest, Drafter};
use crate::engine::{Batch, Engine};
use crate::ids::{SeqId, Token};

/// Drafts the smaller model's most likely tokens, for all sequences in one batch per draft position.
#[derive(Debug)]
pub struct ModelDrafter<E> {
    engine: E,
    /// Per sequence id, the tokens whose KV entries the engine holds.
    held: Vec<Vec<Token>>,
    batch: Batch,
}

/// A sequence whose draft is still growing.
#[derive(Debug, Clone, Copy)]
struct Active {
    /// Index of its request.
    request: usize,
    /// Row of its last token in the batch.
    row: usize,
}

impl<E: Engine> ModelDrafter<E> {
    pub fn new(engine: E) -> Self {
        let held = vec![Vec::new(); engine.limits().sequences as usize];
        Self { engine, held, batch: Batch::default() }
    }

    /// Adds the tokens that the engine does not hold to the batch, as far as they fit. Returns the row of the last
    /// token if it fits, and `None` if the sequence has to catch up further.
    fn catch_up(&mut self, seq: SeqId, tokens: &[Token]) -> Option<usize> {
        let limits = self.engine.limits();
        let held = self.held.get_mut(seq.0 as usize)?;
        if tokens.len() >= limits.context_tokens as usize {
            return None;
        }
        // Decode the last token in any case: the draft starts from its logits.
        let common = held.iter().zip(tokens).take_while(|(a, b)| a == b).count().min(tokens.len().checked_sub(1)?);
        if common < held.len() {
            held.truncate(common);
            self.engine.truncate(seq, common as u32);
        }
        let capacity = (limits.batch_tokens as usize).saturating_sub(self.batch.len());
        let end = tokens.len().min(common + capacity);
        let mut row = None;
        for position in common..end {
            let last = position + 1 == tokens.len();
            let index = self.batch.push(tokens[position], position as u32, seq, last);
            row = last.then_some(index);
        }
        held.extend_from_slice(&tokens[common..end]);
        row
    }

    /// Decodes the batch. On failure (the KV cache may be full) it clears the engine, so that the next draft starts
    /// over.
    fn decode(&mut self) -> bool {
        let decoded = self.batch.is_empty() || self.engine.decode(&self.batch).is_ok();
        if !decoded {
            for (seq, held) in (0..).zip(&mut self.held) {
                held.clear();
                self.engine.truncate(SeqId(seq), 0);
            }
        }
        decoded
    }
}

impl<E: Engine + Send> Drafter for ModelDrafter<E> {
    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) {
        self.batch.clear();
        let mut active = Vec::new();
        for (index, request) in requests.iter().enumerate() {
            // A sequence that does not catch up in this batch gets no draft; it continues at the next call.
            let row = self.catch_up(request.seq, request.tokens);
            active.extend(row.map(|row| Active { request: index, row }));
        }
        let context = self.engine.limits().context_tokens as usize;
        while self.decode() && !active.is_empty() {
            let drafted: Vec<(usize, Token)> = active
                .iter()
                .filter_map(|&Active { request, row }| Some((request, most_likely(self.engine.logits(row))?)))
                .collect();
            active.clear();
            self.batch.clear();
            for (request, token) in drafted {
                let DraftRequest { seq, max_tokens, draft, .. } = &mut requests[request];
                draft.push(token);
                let held = &mut self.held[seq.0 as usize];
                if draft.len() < *max_tokens && held.len() < context {
                    let row = self.batch.push(token, held.len() as u32, *seq, true);
                    held.push(token);
                    active.push(Active { request, row });
                }
            }
        }
    }

    fn forget(&mut self, seq: SeqId) {
        if let Some(held) = self.held.get_mut(seq.0 as usize) {
            held.clear();
            self.engine.truncate(seq, 0);
        }
    }
}

fn most_likely(logits: &[f32]) -> Option<Token> {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1))?;
    Some(Token(best.0 as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineLimits;
    use crate::fake::FakeEngine;

    const LIMITS: EngineLimits = EngineLimits { sequences: 2, kv_tokens: 64, batch_tokens: 16, context_tokens: 48 };

    fn tokens(text: &str) -> Vec<Token> {
        text.bytes().map(|b| Token(u32::from(b))).collect()
    }

    fn draft(drafter: &mut ModelDrafter<FakeEngine>, seq: u32, text: &[Token], max_tokens: usize) -> Vec<Token> {
        let mut draft = Vec::new();
        drafter.draft(&mut [DraftRequest { seq: SeqId(seq), tokens: text, max_tokens, draft: &mut draft }]);
        draft
    }

    fn fresh() -> ModelDrafter<FakeEngine> {
        ModelDrafter::new(FakeEngine::new(LIMITS, 1))
    }

    #[test]
    fn drafts_the_same_after_any_history_of_accepted_and_rejected_drafts() {
        let mut drafter = fresh();
        let mut text = tokens("hello");
        for round in 0..6 {
            let drafted = draft(&mut drafter, 0, &text, 3);
            assert_eq!(drafted.len(), 3);
            assert_eq!(drafted, draft(&mut fresh(), 0, &text, 3));
            // Every second draft is accepted except for its last token.
            text.extend(if round % 2 == 0 { &drafted[..2] } else { &[] });
            text.extend(tokens("x"));
        }
        drafter.forget(SeqId(0));
        assert_eq!(drafter.engine.used(), 0);
    }

    #[test]
    fn catches_up_with_a_long_prompt_over_several_steps() {
        let mut drafter = fresh();
        let text = tokens(&"y".repeat(40));
        assert!(draft(&mut drafter, 1, &text, 4).is_empty() && draft(&mut drafter, 1, &text, 4).is_empty());
        assert_eq!(draft(&mut drafter, 1, &text, 4).len(), 4);
    }

    #[test]
    fn clears_a_full_engine_and_starts_over() {
        let mut drafter = fresh();
        let (a, b) = (tokens(&"a".repeat(40)), tokens(&"b".repeat(40)));
        (0..3).for_each(|_| drop(draft(&mut drafter, 0, &a, 2)));
        let lengths: Vec<usize> = (0..6).map(|_| draft(&mut drafter, 1, &b, 2).len()).collect();
        assert_eq!(lengths.last(), Some(&2), "{lengths:?}");
        assert!(drafter.engine.used() <= 64);
        // A sequence at the end of the context gets no draft.
        assert!(draft(&mut drafter, 0, &tokens(&"c".repeat(48)), 2).is_empty());
    }
}
