//! The filter hook as core sees it: a generation's text goes in, piece by piece, and verdicts on it come out.
//!
//! All positions are bytes of the text as the model wrote it: a filter never sees what another one put in its place.
use std::collections::VecDeque;
use std::fmt;

use crate::ids::{PolicyDigest, RequestId, TenantId, Token};
use crate::message::FinishReason;
use crate::policy::{Difference, Endpoint, Fault, Refusal, RequestContext, Target};

/// What filters are told about their generation when they are made.
#[derive(Debug, Clone)]
pub struct FilteringRequest {
    pub request: RequestId,
    pub model: String,
    pub tenant: TenantId,
    pub endpoint: Endpoint,
    /// Index among the choices of one HTTP request.
    pub choice: u32,
    pub context: RequestContext,
}

impl FilteringRequest {
    pub fn target(&self) -> Target<'_> {
        Target { tenant: &self.tenant, model: &self.model, endpoint: self.endpoint }
    }
}

/// What a filter has not decided on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins.
    pub start: usize,
    /// Where that begins which the filter was not asked about before. Equal to the end if only `last` is news.
    pub fresh: usize,
    /// Nothing follows, unless some filter rewinds.
    pub last: bool,
    /// How often the generation was rewound.
    pub rewinds: u32,
    /// The filter was asked in this step before: the time that it has is the same.
    pub goes_on: bool,
}

/// What a filter says of a piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FilterVerdict {
    /// What is before this byte may go out. What is beyond it is held.
    Pass(usize),
    /// What is before the range may go out, and the text in its place.
    Replace(Replacement),
    /// The generation ends at this byte.
    Finish { at: usize, reason: FinishReason },
    /// What begins at this byte must not go out: it is taken back, and the next token there is another one.
    Rewind(usize),
    /// The generation ends with an error that the client reads.
    Refuse(Refusal),
}

/// A range of bytes, and what goes out in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replacement {
    pub start: usize,
    pub end: usize,
    pub text: String,
}

/// One filter of a generation. It lives as long as the sequence, on the worker's thread.
pub trait TextFilter: Send {
    /// Decides on what begins at `piece.start` of `text`.
    ///
    /// # Errors
    /// The policy faulted. It was counted and logged.
    fn check(&mut self, piece: Piece, text: &mut TextWindow) -> Result<FilterVerdict, Fault>;
    /// The verdict is none that the hook allows: counts and logs that as a fault.
    fn refused(&mut self, why: String) -> Fault;
    /// Whether it may ask for the log-probabilities of tokens, which cost a pass over the vocabulary for each.
    fn reads_logprobs(&self) -> bool {
        false
    }
    /// Whether the generation ends with a fault; otherwise it goes on without this filter.
    fn denies(&self) -> bool;
    /// Whether what it says is only counted.
    fn is_monitored(&self) -> bool {
        false
    }
    /// Counts what a monitored filter would have changed, with the refusal if it said one.
    fn differs(&mut self, kind: Difference, refusal: Option<&Refusal>) {
        let _ = (kind, refusal);
    }
}

/// Makes filters. Called on the worker's thread.
pub trait FilterHook: Send + Sync + fmt::Debug {
    /// Instances of the chain with this digest, in file order. If nothing holds that any more, of the newest one, and the log
    /// says so.
    ///
    /// # Errors
    /// A policy faulted and the operator chose `deny`, or there are too many instances.
    fn open(&self, chain: PolicyDigest, request: &FilteringRequest) -> Result<Vec<Box<dyn TextFilter>>, Fault>;
}

/// The text of a generation as the model wrote it, without what went out long ago.
#[derive(Debug, Default)]
pub struct TextWindow {
    text: String,
    /// Bytes that were there before `text`.
    forgotten: usize,
    /// Those that it was drawn as, the last ones.
    tokens: VecDeque<WindowToken>,
}

/// A token, and its own bytes in the text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WindowToken {
    pub token: Token,
    pub begins: usize,
    pub ends: usize,
    /// Under the model's own distribution, if a filter reads it.
    pub logprob: Option<f32>,
}

impl TextWindow {
    /// Length of the whole text, in bytes.
    pub fn end(&self) -> usize {
        self.forgotten + self.text.len()
    }

    /// What follows byte `at`. Empty if that is not kept, or inside a character.
    pub fn since(&self, at: usize) -> &str {
        at.checked_sub(self.forgotten).and_then(|at| self.text.get(at..)).unwrap_or_default()
    }

    /// The last `max` bytes before byte `at`, less what is not a whole character.
    pub fn before(&self, at: usize, max: usize) -> &str {
        let end = at.saturating_sub(self.forgotten).min(self.text.len());
        let mut start = end.saturating_sub(max);
        while start < end && !self.text.is_char_boundary(start) {
            start += 1;
        }
        self.text.get(start..end).unwrap_or_default()
    }

    /// The tokens of which bytes lie in a range of the text, in order, and those without bytes that were drawn there.
    pub fn tokens(&self, start: usize, len: usize) -> impl Iterator<Item = &WindowToken> {
        let end = start.saturating_add(len).min(self.end());
        let first = self.tokens.partition_point(|token| token.ends <= start && token.begins < start);
        self.tokens.range(first..).take_while(move |token| len > 0 && token.begins < end)
    }

    pub(crate) fn note(&mut self, token: WindowToken) {
        self.tokens.push_back(token);
    }

    /// Drops the last tokens.
    pub(crate) fn take_back(&mut self, count: usize) {
        self.tokens.truncate(self.tokens.len().saturating_sub(count));
    }

    /// Keeps the last tokens.
    pub(crate) fn forget_tokens(&mut self, kept: usize) {
        self.tokens.drain(..self.tokens.len().saturating_sub(kept));
    }

    /// The text of a range; empty if it does not lie between characters.
    pub(crate) fn between(&self, start: usize, end: usize) -> &str {
        self.since(start).get(..end.saturating_sub(start)).unwrap_or_default()
    }

    /// Whether a character begins at byte `at`, or the text ends there.
    pub(crate) fn is_boundary(&self, at: usize) -> bool {
        at.checked_sub(self.forgotten).is_some_and(|at| self.text.is_char_boundary(at))
    }

    pub(crate) fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Drops what follows byte `at`, which lies between characters.
    pub(crate) fn cut(&mut self, at: usize) {
        if self.is_boundary(at) {
            self.text.truncate(at - self.forgotten);
        }
    }

    /// Keeps what follows byte `at` and at least `kept` bytes before it.
    pub(crate) fn forget(&mut self, at: usize, kept: usize) {
        let gone = at.saturating_sub(self.forgotten).min(self.text.len());
        // Not at every token: what stays has to move.
        if gone < 2 * kept {
            return;
        }
        let mut end = gone - kept;
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        self.text.drain(..end);
        self.forgotten += end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_a_range_are_those_with_bytes_in_it_and_those_drawn_there() {
        let mut window = TextWindow::default();
        window.push("abcdefgh");
        for (token, begins, ends) in [(1, 0, 2), (2, 2, 2), (3, 2, 5), (4, 5, 8), (5, 8, 8), (6, 8, 9)] {
            window.note(WindowToken { token: Token(token), begins, ends, logprob: None });
        }
        let of = |window: &TextWindow, start, len| -> Vec<u32> {
            window.tokens(start, len).map(|token| token.token.0).collect()
        };
        assert_eq!(of(&window, 0, 8), [1, 2, 3, 4], "what is not text yet is not there");
        assert_eq!(of(&window, 0, usize::MAX), [1, 2, 3, 4]);
        assert_eq!(of(&window, 1, 1), [1]);
        assert_eq!(of(&window, 2, 1), [2, 3]);
        assert_eq!(of(&window, 3, 1), [3]);
        assert_eq!((of(&window, 3, 0), of(&window, 8, 5), of(&window, usize::MAX, 1)), (vec![], vec![], vec![]));
        window.take_back(3);
        assert_eq!(of(&window, 0, 8), [1, 2, 3]);
        window.forget_tokens(2);
        assert_eq!(of(&window, 0, 8), [2, 3]);
        window.take_back(9);
        assert!(of(&window, 0, 8).is_empty());
    }

    #[test]
    fn a_window_forgets_and_cuts_between_characters() {
        let mut window = TextWindow::default();
        window.push(&"é".repeat(10));
        assert_eq!((window.end(), window.before(20, 3), window.before(4, 100)), (20, "é", "éé"));
        assert!(window.is_boundary(20) && !window.is_boundary(3) && !window.is_boundary(21));
        window.forget(9, 5);
        assert_eq!((window.end(), window.since(0)), (20, "é".repeat(10).as_str()), "not worth it yet");
        window.forget(18, 5);
        assert_eq!((window.since(12).len(), window.since(0), window.before(18, 100).len()), (8, "", 6));
        window.cut(15);
        assert_eq!(window.end(), 20, "inside a character");
        window.cut(16);
        assert_eq!((window.end(), window.between(14, 16)), (16, "é"));
    }
}
