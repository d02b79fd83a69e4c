//! What WordPiece's vocabularies make of a character before they look for tokens, as llama.cpp does it.
use std::sync::LazyLock;

use unicode_normalization::char::decompose_canonical;

use super::classes::{AGE, class_of};
use crate::model::Model;

const LOWERCASE: &str = "tokenizer.ggml.normalizer.lowercase";
const STRIP_ACCENTS: &str = "tokenizer.ggml.normalizer.strip_accents";

/// Ideographs are words by themselves. Hiragana, Katakana and Hangul are not.
const IDEOGRAPHS: &str = concat!(
    r"[\x{4e00}-\x{9fff}\x{3400}-\x{4dbf}\x{20000}-\x{2a6df}\x{2a700}-\x{2b73f}\x{2b740}-\x{2b81f}",
    // From U+2B820 on in BERT's own tokenizer, but not in those that came after it.
    r"\x{2b920}-\x{2ceaf}\x{f900}-\x{faff}\x{2f800}-\x{2fa1f}]",
);

/// What a character becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    Nothing,
    /// Ends a word.
    Blank,
    /// A part of a word.
    Part(char),
    /// A word by itself.
    Alone(char),
}

/// What the tables say of a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Class {
    Unassigned,
    Letter,
    Blank,
    Control,
    Mark,
    Alone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Normalizer {
    pub(super) lowercases: bool,
    pub(super) strips_accents: bool,
}

impl Normalizer {
    pub(super) fn new(model: &Model) -> Self {
        let flag = |key: &str, otherwise: bool| model.metadata(key).map_or(otherwise, |value| value == "true");
        let lowercases = flag(LOWERCASE, true);
        Self { lowercases, strips_accents: flag(STRIP_ACCENTS, lowercases) }
    }

    pub(super) fn read(self, c: char) -> Read {
        let classes: &[Class] = &CLASSES;
        let c = if self.strips_accents && !c.is_ascii() { base(c, classes) } else { c };
        let class = classes[c as usize];
        let part = if self.lowercases && class != Class::Unassigned { lowercase(c) } else { c };
        match class {
            Class::Blank => Read::Blank,
            Class::Control => Read::Nothing,
            Class::Mark if self.strips_accents => Read::Nothing,
            Class::Alone => Read::Alone(part),
            Class::Mark | Class::Letter | Class::Unassigned => Read::Part(part),
        }
    }
}

/// The first character of the canonical decomposition.
fn base(c: char, classes: &[Class]) -> char {
    let mut base = None;
    if classes[c as usize] != Class::Unassigned {
        decompose_canonical(c, |part| base = base.or(Some(part)));
    }
    base.unwrap_or(c)
}

/// A character's lower case, if that is one character.
pub(super) fn lowercase(c: char) -> char {
    let mut lower = c.to_lowercase();
    match (lower.next(), lower.next()) {
        (Some(lower), None) => lower,
        _ => c,
    }
}

/// The class of every character. Those that came after the Unicode version of llama.cpp's tables are unassigned.
static CLASSES: LazyLock<Vec<Class>> = LazyLock::new(|| {
    let mut classes = vec![Class::Unassigned; char::MAX as usize + 1];
    // What comes later overrides what came before. Symbols beyond ASCII are letters.
    let sets = [
        (format!(r"[\P{{Cn}}&&{AGE}]"), Class::Letter),
        (format!(r"[\p{{M}}&&{AGE}]"), Class::Mark),
        (format!(r"[\p{{P}}&&{AGE}]"), Class::Alone),
        (r"[\p{S}&&\x00-\x7e]".to_owned(), Class::Alone),
        (IDEOGRAPHS.to_owned(), Class::Alone),
        (r"[\p{Cc}\p{Cf}\p{Co}\x{fffd}]".to_owned(), Class::Control),
        (r"\p{White_Space}".to_owned(), Class::Blank),
    ];
    for (set, class) in sets {
        for range in class_of(&set).iter() {
            classes[range.start() as usize..=range.end() as usize].fill(class);
        }
    }
    classes
});
