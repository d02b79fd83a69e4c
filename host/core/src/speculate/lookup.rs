//! Prompt lookup: drafts what followed the last tokens at their previous occurrence.
use super::drafter::{Ask, Drafter};
use crate::ids::{SeqId, Token};

/// Lengths of the tail that is searched for.
const MAX_TAIL: usize = 4;
const MIN_TAIL: usize = 2;
/// How far back the search goes, so that a long context costs only a few microseconds.
const REACH: usize = 16 << 10;

/// Drafts from the sequence's own prompt and output (Saxena 2023), without a second model.
#[derive(Debug, Clone, Copy, Default)]
pub struct PromptLookup;

impl Drafter for PromptLookup {
    fn draft(&mut self, asks: &mut [Ask<'_>]) {
        for ask in asks {
            ask.draft.extend_from_slice(continuation(ask.tokens, ask.most));
        }
    }

    fn forget(&mut self, _: SeqId) {}
}

/// What followed the latest earlier occurrence of the longest tail of `tokens`, at most `most` tokens.
fn continuation(tokens: &[Token], most: usize) -> &[Token] {
    let tokens = &tokens[tokens.len().saturating_sub(REACH)..];
    for len in (MIN_TAIL..=MAX_TAIL).rev() {
        let Some((before, tail)) = tokens.len().checked_sub(len).map(|at| tokens.split_at(at)) else { continue };
        // The tail may overlap its earlier occurrence, as in a run of one token.
        let found = (0..before.len()).rev().find(|&at| tokens[at..at + len] == *tail);
        if let Some(at) = found {
            let follows = &tokens[at + len..];
            return &follows[..follows.len().min(most)];
        }
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, most: usize, expected: &str) {
        let tokens = |text: &str| -> Vec<Token> { text.bytes().map(|b| Token(u32::from(b))).collect() };
        assert_eq!(continuation(&tokens(text), most), tokens(expected), "{text}");
    }

    #[test]
    fn repeats_what_followed_the_latest_occurrence_of_the_longest_tail() {
        check("abcdX abcdY abcd", 3, "Y a");
        check("the cat. the cat", 8, ". the ca"); // at most eight
        check("xxabYY..ab", 4, "YY..");
        check("zzzz", 2, "z");
        check("abc", 4, "");
        check("a", 4, "");
        check("", 4, "");
    }
}
