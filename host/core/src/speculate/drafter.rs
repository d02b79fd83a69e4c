//! The interface of a drafter.
use crate::ids::{SeqId, Token};

/// A worker's request to draft tokens for one sequence.
#[derive(Debug)]
pub struct DraftRequest<'a> {
    pub seq: SeqId,
    /// Prompt and output so far. The draft continues after the last token.
    pub tokens: &'a [Token],
    /// Maximum length of the draft, at least 1.
    pub max_tokens: usize,
    /// Empty. The drafter appends its draft, or nothing.
    pub draft: &'a mut Vec<Token>,
}

/// Proposes the next tokens of sequences. The worker calls it on its own thread; a wrong draft costs only time.
pub trait Drafter: Send {
    /// Drafts for all sequences of the next step at once. Called at most once per step.
    fn draft(&mut self, requests: &mut [DraftRequest<'_>]);
    /// Drops what it holds for `seq`. The worker calls it before it gives the id to another sequence.
    fn forget(&mut self, seq: SeqId);
}
