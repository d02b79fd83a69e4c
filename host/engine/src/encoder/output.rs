//! The tokens that a text has become so far, and how many somebody wants.
use std::ops::Range;

use camshaft_core::engine::{Encode, Encoded};
use camshaft_core::ids::Token;
use camshaft_core::vocabulary::{Offsets, Vocabulary};

/// The rest of a text is not read: there are more tokens than anybody wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full;

#[derive(Debug)]
pub(super) struct Output {
    pub(super) tokens: Vec<Token>,
    /// What each token was made of; `None` if nobody asked or nobody knows.
    offsets: Option<Vec<Offsets>>,
    /// Tokens that somebody wants.
    most: usize,
}

impl Output {
    pub(super) fn new(encode: &Encode<'_>) -> Self {
        let Encode { offsets, most, .. } = *encode;
        Self { tokens: Vec::new(), offsets: offsets.then(Vec::new), most }
    }

    /// Costs no more than a look-up, so that loops ask in each round.
    pub(super) fn check_room(&self) -> Result<(), Full> {
        if self.tokens.len() > self.most { Err(Full) } else { Ok(()) }
    }

    /// Tokens that are wanted yet.
    pub(super) fn room(&self) -> usize {
        self.most.saturating_sub(self.tokens.len())
    }

    pub(super) fn wants_offsets(&self) -> bool {
        self.offsets.is_some()
    }

    /// Appends a token, and the part of the text that it was made of.
    pub(super) fn push(&mut self, token: Token, part: Range<usize>) {
        self.tokens.push(token);
        if let Some(offsets) = &mut self.offsets {
            offsets.push((part.start as u32, part.end as u32));
        }
    }

    /// Drops what was appended after the first `length` tokens.
    pub(super) fn truncate(&mut self, length: usize) {
        self.tokens.truncate(length);
        if let Some(offsets) = &mut self.offsets {
            offsets.truncate(length);
        }
    }

    /// Finds out what the tokens from the one numbered `first` on were made of, if nobody said. They are those of `text`,
    /// which begins at `start` in the whole text.
    pub(super) fn locate(&mut self, vocabulary: &Vocabulary, text: &str, start: usize, first: usize) {
        let Some(offsets) = self.offsets.as_mut().filter(|offsets| offsets.len() < self.tokens.len()) else { return };
        match vocabulary.offsets(text, &self.tokens[first..]) {
            Some(found) => offsets.extend(found.iter().map(|&(from, to)| (start as u32 + from, start as u32 + to))),
            None => self.offsets = None,
        }
    }

    pub(super) fn into_encoded(self) -> Encoded {
        Encoded { tokens: self.tokens, offsets: self.offsets }
    }
}
