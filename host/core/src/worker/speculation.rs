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
    /// Rows of the batch that are left.
    pub(super) rows: usize,
    /// What decodes without drafts.
    pub(super) decoding: Work,
    pub(super) kv: &'a mut Kv,
}

impl<'a> DraftBounds<'a> {
    /// `batch_tokens`: rows of a batch.
    pub(super) fn new(sequences: &[Sequence], limits: &'a [u32], batch_tokens: u32, kv: &'a mut Kv) -> Self {
        let decoding = sequences.iter().zip(limits).filter(|&(s, &limit)| s.decodes_below(limit));
        let decoding = decoding.fold(Work::default(), |work, (s, _)| work.and_rows(s.kv_tokens, 1));
        Self { limits, rows: (batch_tokens as usize).saturating_sub(decoding.rows), decoding, kv }
    }
}

impl std::fmt::Debug for Speculation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Speculation").field("draft_tokens", &self.draft_tokens).finish_non_exhaustive()
    }
}

impl Speculation {
    /// Fills the drafts of the sequences that decode in this step and have none.
    pub(super) fn draft(&mut self, sequences: &mut [Sequence], bounds: DraftBounds<'_>, pacer: &Pacer) {
        let DraftBounds { limits, mut rows, decoding, kv } = bounds;
        let running = sequences.len();
        let break_even = pacer.break_even(decoding);
        let mut requests = Vec::new();
        let open = |s: &Sequence, limit: u32| s.decodes_below(limit) && s.draft.is_empty();
        for (s, _) in sequences.iter_mut().zip(limits).filter(|(s, limit)| open(s, **limit)) {
            let max = rows.min(s.max_draft().min(self.draft_tokens) as usize);
            let wanted = s.acceptance.draft_len(break_even, max);
            let max_tokens = kv.draft_capacity(s, wanted as u32, running) as usize;
            rows -= max_tokens;
            if let (Some(seq), 1..) = (s.placement.seq(), max_tokens) {
                let request = DraftRequest { seq, tokens: &s.tokens, max_tokens, draft: &mut s.draft };
                requests.push((request, s.constraint.as_mut()));
            }
        }
        let (mut requests, constraints): (Vec<_>, Vec<_>) = requests.into_iter().unzip();
        if !requests.is_empty() {
            self.drafter.draft(&mut requests);
        }
        for (DraftRequest { max_tokens, draft, .. }, constraint) in requests.into_iter().zip(constraints) {
            draft.truncate(max_tokens);
            if let Some(constraint) = constraint {
                constraint.trim(draft);
            }
        }
    }

    pub(super) fn forget(&mut self, seq: SeqId) {
        self.drafter.forget(seq);
    }
}
