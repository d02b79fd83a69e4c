//! A text as Lark writes it.

/// In quotes, with escapes that Lark knows.
pub(super) fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default().replace('\u{7f}', "\\u007f")
}
