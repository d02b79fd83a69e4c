//! Who gets a guess at the next tokens, and how long a one: where it pays and there is room.
use super::kv::Kv;
use super::pace::Pace;
use crate::ids::SeqId;
use crate::sequence::Sequence;
use crate::speculate::{Ask, Drafter};

/// Speculative decoding of one worker.
pub struct Speculation {
    pub drafter: Box<dyn Drafter>,
    /// Tokens guessed for a sequence in one step, at the most.
    pub draft_tokens: u32,
}

/// What bounds the guesses of a step.
pub(super) struct Room<'a> {
    /// How far each sequence may compute.
    pub(super) limits: &'a [u32],
    /// What a step holds.
    pub(super) batch_tokens: u32,
    pub(super) kv: &'a mut Kv,
    pub(super) pace: &'a Pace,
}

impl std::fmt::Debug for Speculation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Speculation").field("draft_tokens", &self.draft_tokens).finish_non_exhaustive()
    }
}

impl Speculation {
    /// Fills the drafts of the sequences that decode in this step.
    pub(super) fn guess(&mut self, sequences: &mut [Sequence], room: Room<'_>) {
        let Room { limits, batch_tokens, kv, pace } = room;
        let running = sequences.len();
        let decodes = |(s, limit): &(&mut Sequence, &u32)| s.is_decoding() && **limit > s.done;
        let decoding = sequences.iter().zip(limits).filter(|(s, limit)| s.is_decoding() && **limit > s.done).count();
        let least = pace.least_chance(decoding);
        let mut rows = (batch_tokens as usize).saturating_sub(decoding);
        let mut asks = Vec::new();
        for (s, _) in sequences.iter_mut().zip(limits).filter(decodes) {
            let most = rows.min(s.most_draft().min(self.draft_tokens) as usize);
            let wanted = s.odds.wanted(least, most);
            let most = kv.room_for_draft(s, wanted as u32, running) as usize;
            rows -= most;
            if let (Some(seq), 1..) = (s.seq, most) {
                asks.push(Ask { seq, tokens: &s.tokens, most, draft: &mut s.draft });
            }
        }
        if !asks.is_empty() {
            self.drafter.draft(&mut asks);
        }
        for Ask { most, draft, .. } in asks {
            draft.truncate(most);
        }
    }

    pub(super) fn forget(&mut self, seq: SeqId) {
        self.drafter.forget(seq);
    }
}
