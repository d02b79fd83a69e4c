//! What proposes tokens.
use crate::ids::{SeqId, Token};

/// A sequence that could use a guess.
#[derive(Debug)]
pub struct Ask<'a> {
    pub seq: SeqId,
    /// Prompt and output so far; the guess follows the last one.
    pub tokens: &'a [Token],
    /// Tokens of the guess at the most; not 0.
    pub most: usize,
    /// Empty; gets the guess. None is a fine one.
    pub draft: &'a mut Vec<Token>,
}

/// Guesses how sequences go on. Called on the worker's thread before a step; a wrong guess costs time, nothing else.
pub trait Drafter: Send {
    fn draft(&mut self, asks: &mut [Ask<'_>]);
    /// The sequence's place is free for another.
    fn forget(&mut self, seq: SeqId);
}
