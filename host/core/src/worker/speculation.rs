//! Which sequences get a draft of their next tokens, and how long a one: where it pays and fits.
use super::kv::Kv;
use super::pacer::Pacer;
use crate::ids::SeqId;
use crate::sequence::Sequence;
use crate::speculate::{DraftRequest, Drafter};
use crate::step_times::Work;

/// Speculative decoding of one worker.
pub struct Speculation {
    pub drafter: Box<dyn Drafter>,
    /// Maximum length of a draft.
    pub draft_tokens: u32,
}

/// What bounds the drafts of a step.
pub(super) struct DraftBounds<'a> {
    /// The position up to which each sequence may compute.
    pub(super) limits: &'a [u32],
    /// Rows of a batch.
    pub(super) batch_tokens: u32,
    pub(super) kv: &'a mut Kv,
    pub(super) pacer: &'a Pacer,
}

impl std::fmt::Debug for Speculation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Speculation").field("draft_tokens", &self.draft_tokens).finish_non_exhaustive()
    }
}

impl Speculation {
    /// Fills the drafts of the sequences that decode in this step.
    pub(super) fn draft(&mut self, sequences: &mut [Sequence], bounds: DraftBounds<'_>) {
        let DraftBounds { limits, batch_tokens, kv, pacer } = bounds;
        let running = sequences.len();
        let decoding = sequences.iter().zip(limits).filter(|&(s, &limit)| s.decodes_below(limit));
        let decoding = decoding.fold(Work::default(), |work, (s, _)| work.and_rows(s.kv_tokens, 1));
        let break_even = pacer.break_even(decoding);
        let mut rows = (batch_tokens as usize).saturating_sub(decoding.rows);
        let mut requests = Vec::new();
        for (s, _) in sequences.iter_mut().zip(limits).filter(|(s, limit)| s.decodes_below(**limit)) {
            let max = rows.min(s.max_draft().min(self.draft_tokens) as usize);
            let wanted = s.acceptance.draft_len(break_even, max);
            let max_tokens = kv.draft_capacity(s, wanted as u32, running) as usize;
            rows -= max_tokens;
            if let (Some(seq), 1..) = (s.placement.seq(), max_tokens) {
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
