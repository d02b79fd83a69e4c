//! Words, what their tokens were made of, and the work for the worst of texts.

use camshaft_core::engine::Encode;

use super::*;

const NORMALIZER: Normalizer = Normalizer { lowercases: true, strips_accents: true };
/// The first one stands for words that the others do not spell.
const TOKENS: [&str; 12] = ["[UNK]", "▁", "▁te", "▁text", "t", "xt", "▁日", "▁a", "b", "e", "▁hello", "▁,"];

fn wordpiece(tokens: &[&str]) -> WordPiece {
    WordPiece::with(tokens.iter().map(|token| token.as_bytes()), Some(Token(0)), NORMALIZER).unwrap()
}

/// Checks the tokens of `text`, and what each was made of.
fn check(text: &str, expected: &[(&str, &str)]) {
    let mut output = Output::new(&Encode { offsets: true, ..Encode::of("") });
    wordpiece(&TOKENS).tokenize(text, 10, &mut output).unwrap();
    let encoded = output.into_encoded();
    let offsets = encoded.offsets.unwrap();
    assert_eq!(offsets.len(), encoded.tokens.len());
    let spelled = encoded.tokens.iter().map(|token| TOKENS[token.0 as usize]);
    let parts = offsets.iter().map(|&(start, end)| &text[start as usize - 10..end as usize - 10]);
    assert_eq!(spelled.zip(parts).collect::<Vec<_>>(), expected, "{text:?}");
}

#[test]
fn regression_offsets_are_those_of_the_text_that_a_token_was_made_of() {
    check("日 text", &[("▁日", "日"), ("▁text", "text")]);
    check("日本 text", &[("▁日", "日"), ("[UNK]", "本"), ("▁text", "text")]);
    check("  TEXT\n\nhello", &[("▁text", "TEXT"), ("▁hello", "hello")]);
    check("HÉLLO,a\u{301}b", &[("▁hello", "HÉLLO"), ("▁,", ","), ("▁a", "a"), ("b", "b")]);
    check("á\u{200b}b é", &[("▁a", "á"), ("b", "b"), ("▁", ""), ("e", "é")]);
    check("textet", &[("▁text", "text"), ("e", "e"), ("t", "t")]);
    check("", &[]);
    check(" \u{301} \u{0}", &[]);
}

#[test]
fn a_word_that_is_not_spelled_to_its_end_is_unknown_as_a_whole() {
    check("textetq a", &[("[UNK]", "textetq"), ("▁a", "a")]);
    check("aé\u{302}q", &[("[UNK]", "aé\u{302}q")]);
}

#[test]
fn regression_no_byte_is_read_more_often_than_the_longest_token_has_bytes() {
    let long = format!("▁{}", "a".repeat(20));
    let inner = format!("{}b", "a".repeat(20));
    let wordpiece = wordpiece(&["[UNK]", &long, &inner, "▁", "a", "b", "ab"]);
    let longest = long.len().max(inner.len());
    for unit in ["a", "ab", "aaaaaaaaaaaaaaaaaaaab", "c", "aaaaaaaaaaaaaaaaaac", "a c", "é", "一", " ", ","] {
        let text = unit.repeat((1 << 20) / unit.len());
        let mut read = 0;
        wordpiece.tokenize_reading(&text, 0, &mut Output::new(&Encode::of("")), &mut read).unwrap();
        // A word has three bytes more than its characters.
        assert!(read <= longest * 4 * text.len(), "{unit:?}: {read} of {}", text.len());
        if unit.len() == 1 && unit != "a" {
            assert!(read <= 8 * text.len(), "{unit:?}: {read} of {}", text.len());
        }
    }
}
