//! Checks JSON text as it comes, and finds its end (RFC 8259); writes strings.
use crate::family::nesting::Nesting;

/// How far a value has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// All bytes belong to it, and more must follow.
    More,
    /// It is complete.
    Done,
    /// The next byte cannot belong to it.
    Broken,
}

/// A JSON value of which some bytes have come.
#[derive(Debug, Clone)]
pub(crate) struct Json {
    nesting: Nesting,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Value,
    /// A value, or the end of an empty list.
    FirstItem,
    Key,
    /// A key, or the end of an empty object.
    FirstKey,
    Colon,
    /// After a value: a comma or an end.
    After,
    Text {
        key: bool,
    },
    Escape {
        key: bool,
    },
    Hex {
        key: bool,
        left: u8,
    },
    Number(Number),
    /// The rest of `true`, `false` or `null`.
    Word(&'static [u8]),
}

/// Where in a number: named by what came last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Digits,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

impl Json {
    /// Before a value of any kind.
    pub(crate) fn new() -> Self {
        Self { nesting: Nesting::default(), state: State::Value }
    }

    /// Takes bytes up to the end of the value. Tells how many, and how far it is then. A number without a byte after it is not
    /// complete.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> (usize, Progress) {
        for (at, &byte) in bytes.iter().enumerate() {
            match self.step(byte) {
                Step::Within => {}
                Step::Last => return (at + 1, Progress::Done),
                Step::Before => return (at, Progress::Done),
                Step::Wrong => return (at, Progress::Broken),
            }
        }
        (bytes.len(), Progress::More)
    }

    fn step(&mut self, byte: u8) -> Step {
        match self.state {
            State::Text { key } => self.text(byte, key),
            State::Escape { key } => match byte {
                b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.go(State::Text { key }),
                b'u' => self.go(State::Hex { key, left: 4 }),
                _ => Step::Wrong,
            },
            State::Hex { key, left } if byte.is_ascii_hexdigit() => {
                self.go(if left == 1 { State::Text { key } } else { State::Hex { key, left: left - 1 } })
            }
            State::Hex { .. } => Step::Wrong,
            State::Number(number) => match (number.next(byte), number.may_end()) {
                (Some(next), _) => self.go(State::Number(next)),
                (None, false) => Step::Wrong,
                (None, true) if self.nesting.is_empty() => Step::Before,
                (None, true) => {
                    self.state = State::After;
                    self.step(byte)
                }
            },
            State::Word([expected, rest @ ..]) if byte == *expected => {
                if rest.is_empty() {
                    self.complete()
                } else {
                    self.go(State::Word(rest))
                }
            }
            State::Word(_) => Step::Wrong,
            _ if matches!(byte, b' ' | b'\n' | b'\r' | b'\t') => Step::Within,
            State::Value => self.value(byte),
            State::FirstItem if byte == b']' => self.close(byte),
            State::FirstItem => self.value(byte),
            State::FirstKey if byte == b'}' => self.close(byte),
            State::Key | State::FirstKey if byte == b'"' => self.go(State::Text { key: true }),
            State::Colon if byte == b':' => self.go(State::Value),
            State::After if byte == b',' => self.go(if self.nesting.in_object() { State::Key } else { State::Value }),
            State::After => self.close(byte),
            State::Key | State::FirstKey | State::Colon => Step::Wrong,
        }
    }

    fn text(&mut self, byte: u8, key: bool) -> Step {
        match byte {
            b'"' if key => self.go(State::Colon),
            b'"' => self.complete(),
            b'\\' => self.go(State::Escape { key }),
            ..b' ' => Step::Wrong,
            _ => Step::Within,
        }
    }

    fn value(&mut self, byte: u8) -> Step {
        match byte {
            b'{' | b'[' => {
                self.nesting.open(byte == b'{');
                self.go(if byte == b'{' { State::FirstKey } else { State::FirstItem })
            }
            b'"' => self.go(State::Text { key: false }),
            b'-' => self.go(State::Number(Number::Minus)),
            b'0' => self.go(State::Number(Number::Zero)),
            b'1'..=b'9' => self.go(State::Number(Number::Digits)),
            b't' => self.go(State::Word(b"rue")),
            b'f' => self.go(State::Word(b"alse")),
            b'n' => self.go(State::Word(b"ull")),
            _ => Step::Wrong,
        }
    }

    fn close(&mut self, byte: u8) -> Step {
        if byte != if self.nesting.in_object() { b'}' } else { b']' } {
            return Step::Wrong;
        }
        self.nesting.close();
        self.complete()
    }

    fn complete(&mut self) -> Step {
        self.state = State::After;
        if self.nesting.is_empty() { Step::Last } else { Step::Within }
    }

    fn go(&mut self, state: State) -> Step {
        self.state = state;
        Step::Within
    }
}

/// Text as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

/// Appends text as the inside of a JSON string.
pub(crate) fn push_escaped(text: &str, out: &mut String) {
    let quoted = quoted(text);
    out.push_str(quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default());
}

/// What a byte is to a value.
enum Step {
    Within,
    Last,
    /// The value ended before it.
    Before,
    Wrong,
}

impl Number {
    fn next(self, byte: u8) -> Option<Self> {
        use Number::*;
        Some(match (self, byte) {
            (Minus, b'0') => Zero,
            (Minus, b'1'..=b'9') | (Digits, b'0'..=b'9') => Digits,
            (Zero | Digits, b'.') => Point,
            (Point | Fraction, b'0'..=b'9') => Fraction,
            (Zero | Digits | Fraction, b'e' | b'E') => Exponent,
            (Exponent, b'+' | b'-') => ExponentSign,
            (Exponent | ExponentSign | ExponentDigits, b'0'..=b'9') => ExponentDigits,
            _ => return None,
        })
    }

    fn may_end(self) -> bool {
        matches!(self, Self::Zero | Self::Digits | Self::Fraction | Self::ExponentDigits)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::de::IgnoredAny;

    use super::*;

    fn check(text: &str, used: usize, progress: Progress) {
        assert_eq!(Json::new().feed(text.as_bytes()), (used, progress), "{text:?}");
        let (mut json, mut at, mut found) = (Json::new(), 0, Progress::More);
        while at < text.len() && found == Progress::More {
            let (used, now) = json.feed(&text.as_bytes()[at..=at]);
            (at, found) = (at + used, now);
        }
        assert_eq!((at, found), (used, progress), "{text:?}, byte by byte");
    }

    #[test]
    fn finds_the_end_of_a_value() {
        check(r#"{"a": [1, -0.5e+3, {}], "b\"}": "\u00e9}"} rest"#, 42, Progress::Done);
        check(" [] ", 3, Progress::Done);
        check("12,", 2, Progress::Done);
        check("0\n", 1, Progress::Done);
        check("true}", 4, Progress::Done);
        check("{\"a\":{\"b\":[nul", 14, Progress::More);
        check("12", 2, Progress::More);
    }

    #[test]
    fn stops_at_the_first_byte_that_cannot_belong_to_a_value() {
        for (text, used) in [
            ("{a", 1),
            ("{]", 1),
            ("[}", 1),
            ("{\"a\" 1", 5),
            ("{\"a\":1,}", 7),
            ("[1,]", 3),
            ("[01]", 2),
            ("[1.]", 3),
            ("\"\n", 1),
            ("\"\\x", 2),
            ("\"\\u00g", 5),
            ("nil", 1),
            ("-a", 1),
            ("'a'", 0),
        ] {
            check(text, used, Progress::Broken);
        }
    }

    #[test]
    fn takes_any_number_of_levels() {
        for levels in [127, 128, 129, 10_000] {
            check(&("[".repeat(levels) + &"]".repeat(levels)), 2 * levels, Progress::Done);
            check(&("{\"a\":".repeat(levels) + "1" + &"}".repeat(levels)), 6 * levels + 1, Progress::Done);
            check(&("[".repeat(levels) + "}"), levels, Progress::Broken);
        }
        check(&"[".repeat(2 << 20), 2 << 20, Progress::More);
    }

    proptest! {
        #[test]
        fn agrees_with_serde_json(text in r#"[\[\]{}",:0-9.eE+\-\\utrfalsn ]{0,24}"#) {
            let parsed = serde_json::from_str::<IgnoredAny>(&text).is_ok();
            let (used, progress) = Json::new().feed(format!("{text}\n").as_bytes());
            let complete = progress == Progress::Done && text.get(used..).is_none_or(|rest| rest.trim().is_empty());
            prop_assert_eq!(parsed, complete, "{} {:?}", used, progress);
        }
    }
}
