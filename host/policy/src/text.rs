//! Truncates guests' texts.

/// The longest prefix of `text` that has at most `bytes` bytes and ends between characters.
pub(crate) fn truncated(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// Truncates `text` to at most `chars` characters.
pub(crate) fn truncate_chars(mut text: String, chars: usize) -> String {
    if let Some((at, _)) = text.char_indices().nth(chars) {
        text.truncate(at);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_between_characters() {
        assert_eq!(truncated("añb", 2), "a");
        assert_eq!(truncated("añb", 3), "añ");
        assert_eq!(truncated("añb", 9), "añb");
        assert_eq!(truncate_chars("añb".to_owned(), 2), "añ");
        assert_eq!(truncate_chars("añb".to_owned(), 3), "añb");
    }
}
