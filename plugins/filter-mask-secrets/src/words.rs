//! Divides a text into words, of which a secret never lies in two.

/// What is longer counts as several words.
pub(crate) const MAX_BYTES: usize = 512;

/// What a text begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// A word, or characters that belong to none, which end before this byte.
    Complete { end: usize },
    /// A word that may go on with what follows the text.
    Open,
}

fn in_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'%' | b'+' | b'-' | b'@')
}

/// The first word of a text that is not empty. Groups of digits with single spaces between them are one word. `last`: nothing
/// follows.
pub(crate) fn first(text: &str, last: bool) -> Word {
    let bytes = text.as_bytes();
    let outside = bytes.iter().take_while(|&&byte| !in_word(byte)).count();
    if outside > 0 {
        return Word::Complete { end: outside };
    }
    let (mut at, mut digits) = (0, true);
    loop {
        if at >= MAX_BYTES {
            return Word::Complete { end: at };
        }
        match bytes.get(at) {
            None if last => return Word::Complete { end: at },
            None => return Word::Open,
            Some(&byte) if in_word(byte) => {
                digits &= byte.is_ascii_digit() || byte == b'-';
                at += 1;
            }
            // A space behind digits: more digits may follow.
            Some(b' ') if digits && bytes[at - 1].is_ascii_digit() => match bytes.get(at + 1) {
                Some(byte) if byte.is_ascii_digit() => at += 1,
                None if !last => return Word::Open,
                _ => return Word::Complete { end: at },
            },
            Some(_) => return Word::Complete { end: at },
        }
    }
}
