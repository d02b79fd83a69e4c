//! Bounds how many tokens a model thinks: near the bound the marker that ends its thinking gets likelier where a sentence ends, at the
//! bound it is forced.
use serde::{Deserialize, Serialize};

use crate::ids::Token;

/// The last part of a budget, in which the marker gets likelier: this many of its tokens, and no more than [`WINDOW`].
const PART: u32 = 8;
const WINDOW: u32 = 256;
/// What is added to the logit of the marker's first token, at most.
const MOST_BIAS: f32 = 12.0;

/// What a generation may spend on thinking.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ThinkingBudget {
    /// Tokens of thinking, without markers.
    pub tokens: u32,
    /// The markers around thinking, without white space around them.
    pub begin: String,
    pub end: String,
    /// Tokens that spell the marker at the end. At least one.
    pub close: Vec<u32>,
    /// The prompt ends within thinking.
    pub is_open: bool,
    /// Thinking may begin anywhere, and not only the answer.
    pub repeats: bool,
}

/// What a budget asks of the next token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Urge {
    Nothing,
    /// To add this to the logit of [`ThinkingBudget::close`]'s first token.
    Likelier(f32),
    /// To draw the tokens of [`ThinkingBudget::close`].
    Close,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing was written but white space, and the beginning of a marker.
    Before,
    Inside,
    /// Thinking is over, but may begin again if it repeats.
    Outside,
}

/// Where a generation is in its thinking.
#[derive(Debug)]
pub(crate) struct Thinking {
    budget: ThinkingBudget,
    state: State,
    spent: u32,
    /// The end of the text that may be the beginning of a marker.
    tail: Vec<u8>,
    /// Leading tokens of [`ThinkingBudget::close`] that were drawn last.
    closing: usize,
}

impl Thinking {
    pub(crate) fn new(budget: ThinkingBudget) -> Self {
        let state = if budget.is_open { State::Inside } else { State::Before };
        Self { budget, state, spent: 0, tail: Vec::new(), closing: 0 }
    }

    pub(crate) fn close(&self) -> &[u32] {
        &self.budget.close
    }

    /// The same, with nothing drawn.
    pub(crate) fn restart(&mut self) {
        let budget = self.budget.clone();
        *self = Self::new(budget);
    }

    /// A token was drawn that adds these bytes to the text.
    pub(crate) fn accept(&mut self, token: Token, bytes: &[u8]) {
        self.spent += u32::from(self.state == State::Inside);
        self.tail.extend_from_slice(bytes);
        self.closing = if self.budget.close.get(self.closing) == Some(&token.0) { self.closing + 1 } else { 0 };
        // Where it is a control token, it may add no text.
        if self.state == State::Inside && self.closing == self.budget.close.len() {
            self.state = State::Outside;
            return self.tail.clear();
        }
        loop {
            let (marker, after) = match self.state {
                State::Inside => (self.budget.end.as_bytes(), State::Outside),
                State::Before if !self.budget.repeats => {
                    let space = self.tail.len() - self.tail.trim_ascii_start().len();
                    self.tail.drain(..space);
                    let written = &self.tail[..];
                    if !written.starts_with(self.budget.begin.as_bytes()) {
                        if !self.budget.begin.as_bytes().starts_with(written) {
                            self.state = State::Outside;
                        }
                        return;
                    }
                    (self.budget.begin.as_bytes(), State::Inside)
                }
                State::Outside if !self.budget.repeats => return self.tail.clear(),
                State::Before | State::Outside => (self.budget.begin.as_bytes(), State::Inside),
            };
            let found = self.tail.windows(marker.len()).position(|window| window == marker);
            let Some(at) = found else {
                let kept = self.tail.len().saturating_sub(marker.len());
                self.tail.drain(..kept);
                return;
            };
            self.tail.drain(..at + marker.len());
            self.state = after;
        }
    }

    pub(crate) fn urge(&self) -> Urge {
        if self.state != State::Inside {
            return Urge::Nothing;
        }
        let left = self.budget.tokens.saturating_sub(self.spent);
        if left == 0 {
            return Urge::Close;
        }
        let window = (self.budget.tokens / PART).clamp(1, WINDOW);
        let ends_a_sentence = matches!(self.tail.trim_ascii_end().last(), Some(b'.' | b'!' | b'?'))
            || self.tail.ends_with(b"\n")
            || self.tail.ends_with("。".as_bytes());
        if left > window || !ends_a_sentence {
            return Urge::Nothing;
        }
        Urge::Likelier(MOST_BIAS * (1.0 - left as f32 / (window + 1) as f32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thinking(tokens: u32, is_open: bool, repeats: bool) -> Thinking {
        let (begin, end) = ("<think>".to_owned(), "</think>".to_owned());
        Thinking::new(ThinkingBudget { tokens, begin, end, close: vec![7, 8], is_open, repeats })
    }

    fn after(mut thinking: Thinking, tokens: &[&str]) -> Urge {
        tokens.iter().for_each(|token| thinking.accept(Token(0), token.as_bytes()));
        thinking.urge()
    }

    #[test]
    fn thinking_is_closed_when_its_tokens_are_spent() {
        assert_eq!(after(thinking(2, true, false), &["a"]), Urge::Nothing);
        assert_eq!(after(thinking(2, true, false), &["a", "b"]), Urge::Close);
        assert_eq!(after(thinking(0, true, false), &[]), Urge::Close);
        assert_eq!(after(thinking(2, true, false), &["a", "b", "</think>"]), Urge::Nothing);
        assert_eq!(
            after(thinking(2, true, false), &["a", "</thi", "nk>", "b", "c"]),
            Urge::Nothing,
            "split over tokens"
        );
    }

    #[test]
    fn a_marker_that_adds_no_text_is_known_by_its_tokens() {
        let mut thinking = thinking(0, true, false);
        thinking.accept(Token(7), b"");
        assert_eq!(thinking.urge(), Urge::Close);
        thinking.accept(Token(8), b"");
        assert_eq!(thinking.urge(), Urge::Nothing);
    }

    #[test]
    fn only_what_follows_a_marker_is_thinking() {
        assert_eq!(after(thinking(0, false, false), &["a", "<think>"]), Urge::Nothing, "in the midst of a text");
        assert_eq!(after(thinking(0, false, false), &["\n", "<th", "ink>"]), Urge::Close);
        assert_eq!(after(thinking(1, false, false), &["<think>", "b"]), Urge::Close);
        assert_eq!(after(thinking(1, false, true), &["x<think>a</think>y<think>"]), Urge::Nothing);
        assert_eq!(after(thinking(1, false, true), &["x<think>a</think>", "y<think>", "b"]), Urge::Close, "again");
        let mut again = thinking(1, true, false);
        again.accept(Token(0), b"a");
        again.restart();
        assert_eq!(again.urge(), Urge::Nothing);
    }

    #[test]
    fn the_marker_gets_likelier_where_sentences_end_near_the_bound() {
        let urge = |written: usize, last: &str| {
            let mut thinking = thinking(80, true, false);
            (0..written - 1).for_each(|_| thinking.accept(Token(0), b"a "));
            thinking.accept(Token(0), last.as_bytes());
            thinking.urge()
        };
        let bias = |urge| match urge {
            Urge::Likelier(bias) => bias,
            other => panic!("{other:?}"),
        };
        assert_eq!(urge(69, "."), Urge::Nothing, "not near yet");
        assert_eq!(urge(75, "a"), Urge::Nothing);
        let (early, late) = (bias(urge(70, ". ")), bias(urge(79, "\n")));
        assert!(0.0 < early && early < late && late < MOST_BIAS, "{early} {late}");
    }
}
