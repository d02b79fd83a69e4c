//! Drafts what grammars are certain of: a name that a schema requires takes one step then, not one for each of its tokens.
//!
//! Each token is drawn all the same, from its own row: a model that spells the text with other tokens gets those, so that what is
//! drawn does not depend on whether anything was drafted, and neither do log-probabilities. What it seldom spells as it was drafted
//! costs rows for nothing, and is drafted seldom.
use super::pacer::Pacer;
use super::speculation::DraftBounds;
use crate::limits;
use crate::sequence::Sequence;

/// Fills the drafts of the sequences that decode in this step and know what comes next.
pub(super) fn draft(sequences: &mut [Sequence], bounds: &mut DraftBounds<'_>, pacer: &Pacer) {
    let running = sequences.len();
    let break_even = pacer.break_even(bounds.decoding);
    for (s, &limit) in sequences.iter_mut().zip(bounds.limits) {
        if !s.decodes_below(limit) || s.placement.seq().is_none() {
            continue;
        }
        let max = bounds.rows.min(s.max_draft().min(limits::FORCED_TOKENS) as usize);
        let Some(constraint) = &mut s.constraint else { continue };
        let mut draft = constraint.forced(max);
        if draft.is_empty() {
            continue;
        }
        draft.truncate(s.forced_acceptance.draft_len(break_even, draft.len()));
        let capacity = bounds.kv.draft_capacity(s, draft.len() as u32, running) as usize;
        draft.truncate(capacity);
        bounds.rows -= draft.len();
        s.forced = !draft.is_empty();
        s.draft = draft;
    }
}
