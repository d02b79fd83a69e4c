//! Divides a text into words, of which a secret never lies in two.

/// What is longer counts as several words.
pub(crate) const MAX_BYTES: usize = 512;

/// What a text begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// A word, or characters that belong to none, which end before this byte.
    Complete { end: usize },
    /// The beginning of a word that is too long, which ends before this byte.
    Cut { end: usize },
    /// A word that may go on with what follows the text.
    Open,
}

/// What stands between the groups of a number: also spaces and hyphens at which no line breaks.
const SEPARATORS: [&str; 5] = [" ", "-", "\u{a0}", "\u{202f}", "\u{2011}"];

/// The length of the separator that a text begins with, or 0.
pub(crate) fn separator(text: &[u8]) -> usize {
    SEPARATORS.iter().find(|separator| text.starts_with(separator.as_bytes())).map_or(0, |separator| separator.len())
}

pub(crate) fn in_word(character: char) -> bool {
    is_letter(character) || character.is_ascii_digit() || matches!(character, '.' | '_' | '%' | '+' | '-' | '@')
}

/// A letter of a script that has spaces between words: Latin, Greek, Cyrillic and others. Words of other scripts would be held
/// for a sentence.
pub(crate) fn is_letter(character: char) -> bool {
    match character {
        '\0'..='\u{7f}' => character.is_ascii_alphabetic(),
        // Accents that follow their letters.
        '\u{300}'..='\u{36f}' => true,
        '\u{80}'..='\u{dff}' | '\u{1e00}'..='\u{1fff}' => character.is_alphanumeric(),
        _ => false,
    }
}

/// The first word of a text that is not empty. Groups of digits with single separators between them are in one word. `last`:
/// nothing follows.
pub(crate) fn first(text: &str, last: bool) -> Word {
    let outside = text.chars().take_while(|&character| !in_word(character)).map(char::len_utf8).sum();
    if outside > 0 {
        return Word::Complete { end: outside };
    }
    let mut at = 0;
    loop {
        if at >= MAX_BYTES {
            return Word::Cut { end: at };
        }
        let rest = &text[at..];
        match rest.chars().next() {
            None if last => return Word::Complete { end: at },
            None => return Word::Open,
            Some(character) if in_word(character) => at += character.len_utf8(),
            // Behind digits, more digits may follow.
            Some(_) if text.as_bytes()[at - 1].is_ascii_digit() => match separator(rest.as_bytes()) {
                0 => return Word::Complete { end: at },
                length => match rest.as_bytes().get(length) {
                    Some(byte) if byte.is_ascii_digit() => at += length,
                    None if !last => return Word::Open,
                    _ => return Word::Complete { end: at },
                },
            },
            Some(_) => return Word::Complete { end: at },
        }
    }
}
