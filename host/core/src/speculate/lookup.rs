//! Prompt lookup: finds the previous occurrence of the last tokens and drafts what followed it.
use super::drafter::{DraftRequest, Drafter};
use crate::ids::{SeqId, Token};

/// Lengths of the tail to search for, in tokens. Longer tails are tried first.
const MAX_TAIL: usize = 4;
const MIN_TAIL: usize = 2;
/// Search window, in tokens. It keeps a search in a long context down to a few microseconds.
const WINDOW: usize = 16 << 10;

/// Drafts from the sequence's own prompt and output, without a second model (Saxena 2023).
#[derive(Debug, Clone, Copy, Default)]
pub struct PromptLookup;

impl Drafter for PromptLookup {
    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) {
        for request in requests {
            request.draft.extend_from_slice(continuation(request.tokens, request.max_tokens));
        }
    }

    fn forget(&mut self, _: SeqId) {}
}

/// The tokens after the latest earlier occurrence of the longest tail of `tokens`, at most `max`.
fn continuation(tokens: &[Token], max: usize) -> &[Token] {
    let tokens = &tokens[tokens.len().saturating_sub(WINDOW)..];
    for len in (MIN_TAIL..=MAX_TAIL).rev() {
        let Some((before, tail)) = tokens.len().checked_sub(len).map(|at| tokens.split_at(at)) else { continue };
        // The tail may overlap its earlier occurrence, as in a run of one token.
        let found = (0..before.len()).rev().find(|&at| tokens[at..at + len] == *tail);
        if let Some(at) = found {
            let follows = &tokens[at + len..];
            return &follows[..follows.len().min(max)];
        }
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, max: usize, expected: &str) {
        let tokens = |text: &str| -> Vec<Token> { text.bytes().map(|b| Token(u32::from(b))).collect() };
        assert_eq!(continuation(&tokens(text), max), tokens(expected), "{text}");
    }

    #[test]
    fn repeats_what_followed_the_latest_occurrence_of_the_longest_tail() {
        check("abcdX abcdY abcd", 3, "Y a");
        check("the cat. the cat", 8, ". the ca"); // The draft stops at eight tokens.
        check("xxabYY..ab", 4, "YY..");
        check("zzzz", 2, "z");
        check("abc", 4, "");
        check("a", 4, "");
        check("", 4, "");
    }
}
