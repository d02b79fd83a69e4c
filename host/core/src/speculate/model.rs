//! Drafts from a smaller model with the same vocabulary, on its own engine.
use super::drafter::{Ask, Drafter};
use crate::engine::{Batch, Engine};
use crate::ids::{SeqId, Token};

/// Drafts the smaller model's most likely tokens, for all sequences in the same batches.
#[derive(Debug)]
pub struct ModelDrafter<E> {
    engine: E,
    /// The tokens that the engine holds of each sequence.
    held: Vec<Vec<Token>>,
    batch: Batch,
}

/// A sequence that gets a draft: its index among the asks, and the row of its last token.
#[derive(Debug, Clone, Copy)]
struct Active {
    ask: usize,
    row: usize,
}

impl<E: Engine> ModelDrafter<E> {
    pub fn new(engine: E) -> Self {
        let held = vec![Vec::new(); engine.limits().sequences as usize];
        Self { engine, held, batch: Batch::default() }
    }

    /// Adds the tokens that the engine lacks to the batch, as far as they fit. Returns the row of the last token if that
    /// is among them.
    fn catch_up(&mut self, seq: SeqId, tokens: &[Token]) -> Option<usize> {
        let limits = self.engine.limits();
        let held = self.held.get_mut(seq.0 as usize)?;
        if tokens.len() >= limits.context_tokens as usize {
            return None;
        }
        // The last token is always decoded again, for its logits.
        let common = held.iter().zip(tokens).take_while(|(a, b)| a == b).count().min(tokens.len().checked_sub(1)?);
        if common < held.len() {
            held.truncate(common);
            self.engine.truncate(seq, common as u32);
        }
        let room = (limits.batch_tokens as usize).saturating_sub(self.batch.len());
        let end = tokens.len().min(common + room);
        let mut row = None;
        for position in common..end {
            let last = position + 1 == tokens.len();
            let index = self.batch.push(tokens[position], position as u32, seq, last);
            row = last.then_some(index);
        }
        held.extend_from_slice(&tokens[common..end]);
        row
    }

    /// Decodes the batch. If that fails (the KV cache may be full), drops everything the engine holds.
    fn decode(&mut self) -> bool {
        let done = self.batch.is_empty() || self.engine.decode(&self.batch).is_ok();
        if !done {
            for (seq, held) in (0..).zip(&mut self.held) {
                held.clear();
                self.engine.truncate(SeqId(seq), 0);
            }
        }
        done
    }
}

impl<E: Engine + Send> Drafter for ModelDrafter<E> {
    fn draft(&mut self, asks: &mut [Ask<'_>]) {
        self.batch.clear();
        let mut active = Vec::new();
        for (ask, asked) in asks.iter().enumerate() {
            // A sequence that does not catch up in this batch continues in the next one, without a draft until then.
            active.extend(self.catch_up(asked.seq, asked.tokens).map(|row| Active { ask, row }));
        }
        let context = self.engine.limits().context_tokens as usize;
        while self.decode() && !active.is_empty() {
            let guesses: Vec<(usize, Token)> = active
                .iter()
                .filter_map(|&Active { ask, row }| best(self.engine.logits(row)).map(|token| (ask, token)))
                .collect();
            active.clear();
            self.batch.clear();
            for (ask, token) in guesses {
                let Ask { seq, most, draft, .. } = &mut asks[ask];
                draft.push(token);
                let held = &mut self.held[seq.0 as usize];
                if draft.len() < *most && held.len() < context {
                    let row = self.batch.push(token, held.len() as u32, *seq, true);
                    held.push(token);
                    active.push(Active { ask, row });
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

fn best(logits: &[f32]) -> Option<Token> {
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

    fn draft(drafter: &mut ModelDrafter<FakeEngine>, seq: u32, text: &[Token], most: usize) -> Vec<Token> {
        let mut draft = Vec::new();
        drafter.draft(&mut [Ask { seq: SeqId(seq), tokens: text, most, draft: &mut draft }]);
        draft
    }

    fn fresh() -> ModelDrafter<FakeEngine> {
        ModelDrafter::new(FakeEngine::new(LIMITS, 1))
    }

    #[test]
    fn drafts_the_same_after_any_history_of_right_and_wrong_guesses() {
        let mut drafter = fresh();
        let mut text = tokens("hello");
        for round in 0..6 {
            let guess = draft(&mut drafter, 0, &text, 3);
            assert_eq!(guess.len(), 3);
            assert_eq!(guess, draft(&mut fresh(), 0, &text, 3));
            // Every other guess turns out right but for its end.
            text.extend(if round % 2 == 0 { &guess[..2] } else { &[] });
            text.extend(tokens("x"));
        }
        drafter.forget(SeqId(0));
        assert_eq!(drafter.engine.used(), 0);
    }

    #[test]
    fn a_long_prompt_is_caught_up_with_over_several_steps() {
        let mut drafter = fresh();
        let text = tokens(&"y".repeat(40));
        assert!(draft(&mut drafter, 1, &text, 4).is_empty() && draft(&mut drafter, 1, &text, 4).is_empty());
        assert_eq!(draft(&mut drafter, 1, &text, 4).len(), 4);
    }

    #[test]
    fn gives_up_what_it_holds_where_there_is_no_room_and_begins_anew() {
        let mut drafter = fresh();
        let (a, b) = (tokens(&"a".repeat(40)), tokens(&"b".repeat(40)));
        (0..3).for_each(|_| drop(draft(&mut drafter, 0, &a, 2)));
        let guesses: Vec<usize> = (0..6).map(|_| draft(&mut drafter, 1, &b, 2).len()).collect();
        assert_eq!(guesses.last(), Some(&2), "{guesses:?}");
        assert!(drafter.engine.used() <= 64);
        // At the end of its context there is nothing to draft.
        assert!(draft(&mut drafter, 0, &tokens(&"c".repeat(48)), 2).is_empty());
    }
}
