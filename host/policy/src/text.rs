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

/// Escapes control characters (line breaks, terminal sequences), so that a guest cannot forge log lines.
pub(crate) fn on_one_line(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect::<Vec<_>>() } else { vec![c] }).collect()
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

    #[test]
    fn shows_control_characters() {
        assert_eq!(on_one_line("a\n\u{1b}[2Jé"), "a\\n\\u{1b}[2Jé");
    }
}
