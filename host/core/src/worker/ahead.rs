//! Asks the drafter for drafts where they pay and fit.
use super::kv::Kv;
use super::pace::Pace;
use crate::ids::SeqId;
use crate::sequence::Sequence;
use crate::speculate::{DraftRequest, Drafter};

/// Speculative decoding of one worker.
pub struct Speculation {
    pub drafter: Box<dyn Drafter>,
    /// Maximum length of a sequence's draft in one step, in tokens.
    pub draft_tokens: u32,
}

/// What bounds the drafts of a step.
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
    pub(super) fn draft(&mut self, sequences: &mut [Sequence], room: Room<'_>) {
        let Room { limits, batch_tokens, kv, pace } = room;
        let running = sequences.len();
        let decodes = |(s, limit): &(&mut Sequence, &u32)| s.is_decoding() && **limit > s.done;
        let decoding = sequences.iter().zip(limits).filter(|(s, limit)| s.is_decoding() && **limit > s.done).count();
        let break_even = pace.break_even(decoding);
        let mut rows = (batch_tokens as usize).saturating_sub(decoding);
        let mut requests = Vec::new();
        for (s, _) in sequences.iter_mut().zip(limits).filter(decodes) {
            let max = rows.min(s.most_draft().min(self.draft_tokens) as usize);
            let wanted = s.acceptance.draft_len(break_even, max);
            let max_tokens = kv.room_for_draft(s, wanted as u32, running) as usize;
            rows -= max_tokens;
            if let (Some(seq), 1..) = (s.seq, max_tokens) {
                requests.push(DraftRequest { seq, tokens: &s.tokens, max_tokens, draft: &mut s.draft });
            }
        }
        if !requests.is_empty() {
            self.drafter.draft(&mut requests);
        }
        for DraftRequest { max_tokens, draft, .. } in requests {
            draft.truncate(max_tokens);
        }
    }

    pub(super) fn forget(&mut self, seq: SeqId) {
        self.drafter.forget(seq);
    }
}
