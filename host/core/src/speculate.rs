//! Speculative decoding: a guess at a sequence's next tokens is decoded in the step that gives the next one.
//!
//! Verification draws from each row as if nothing had been guessed (through the request's own sampler chain and seeded
//! generator) and goes on to the next row only while what was drawn is what was guessed. So every token is drawn from the
//! distribution that it would have been drawn from without (Leviathan et al. 2023, for a drafter that proposes one token
//! with certainty), greedy or not, and any sampler policy composes with it.
mod lookup;
mod model;
mod odds;

pub use lookup::PromptLookup;
pub use model::ModelDrafter;
pub(crate) use odds::{Odds, Price};

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
