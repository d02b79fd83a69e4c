//! Shows values that a client sent, in errors and in the log.
use std::borrow::Cow;
use std::fmt;

/// Characters of a value that are shown.
pub(crate) const SHOWN_CHARS: usize = 128;
/// Characters of a whole message, whatever it was made of.
const MESSAGE_CHARS: usize = 2048;

/// A client's value, cut. `{}` writes it as it is, `{:?}` in quotes and with escapes.
#[derive(Clone, Copy)]
pub(crate) struct Shown<'a>(pub(crate) &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&cut(self.0, SHOWN_CHARS))
    }
}

impl fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", cut(self.0, SHOWN_CHARS))
    }
}

/// A message that may contain values of unknown length.
pub(crate) fn message(text: &str) -> Cow<'_, str> {
    cut(text, MESSAGE_CHARS)
}

/// The first `chars` characters, with an ellipsis if there are more.
pub(crate) fn cut(text: &str, chars: usize) -> Cow<'_, str> {
    match text.char_indices().nth(chars) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_a_value_is_shown_up_to_its_bound() {
        let check = |chars: usize, expected: &str| {
            let value = "é".repeat(chars);
            assert_eq!(Shown(&value).to_string(), expected);
            assert_eq!(format!("{:?}", Shown(&value)), format!("{expected:?}"));
        };
        check(0, "");
        check(128, &"é".repeat(128));
        check(129, &format!("{}…", "é".repeat(128)));
        assert_eq!(message(&"x".repeat(MESSAGE_CHARS)).chars().count(), MESSAGE_CHARS);
        assert_eq!(message(&"x".repeat(MESSAGE_CHARS + 1)).chars().count(), MESSAGE_CHARS + 1, "cut, and an ellipsis");
    }
}
