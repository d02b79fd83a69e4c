//! Prompt lookup: what followed the last tokens when they stood in the text before.
use super::drafter::{Ask, Drafter};
use crate::ids::{SeqId, Token};

/// Tokens that must have stood there before, at the most and at the least.
const LONGEST: usize = 4;
const SHORTEST: usize = 2;
/// How far back it looks, so that a long context costs no more than a few microseconds.
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

/// What followed the latest earlier place of the longest tail of `tokens`, at most `most` tokens.
fn continuation(tokens: &[Token], most: usize) -> &[Token] {
    let tokens = &tokens[tokens.len().saturating_sub(REACH)..];
    for len in (SHORTEST..=LONGEST).rev() {
        let Some((before, tail)) = tokens.len().checked_sub(len).map(|at| tokens.split_at(at)) else { continue };
        // The tail may overlap its earlier place, as in a run of one token.
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
    fn repeats_what_followed_the_latest_place_of_the_longest_tail() {
        check("abcdX abcdY abcd", 3, "Y a");
        check("the cat. the cat", 8, ". the ca"); // at most eight
        check("xxabYY..ab", 4, "YY..");
        check("zzzz", 2, "z");
        check("abc", 4, "");
        check("a", 4, "");
        check("", 4, "");
    }
}
