//! The seam to whatever proposes tokens.
use crate::ids::{SeqId, Token};

/// A sequence that could use a draft.
#[derive(Debug)]
pub struct Ask<'a> {
    pub seq: SeqId,
    /// Prompt and output so far; the draft follows the last token.
    pub tokens: &'a [Token],
    /// Maximum length of the draft; not 0.
    pub most: usize,
    /// Empty; receives the draft, which may stay empty.
    pub draft: &'a mut Vec<Token>,
}

/// Proposes how sequences continue. Called on the worker's thread before a step; a wrong draft costs only time.
pub trait Drafter: Send {
    fn draft(&mut self, asks: &mut [Ask<'_>]);
    /// The sequence id is free for another sequence.
    fn forget(&mut self, seq: SeqId);
}
