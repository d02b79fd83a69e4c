//! The words of a Lark grammar, as `llguidance` splits it into words: where the two disagreed, a bound could be got round.
use serde_json::Value;

use crate::grammar::error::{GrammarError, shown};

/// A word of a grammar.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Word<'a> {
    /// Of a rule or a terminal.
    Name(&'a str),
    /// `+ * ?` and all punctuation.
    Mark(char),
    Text(&'a str),
    /// Without its slashes.
    Pattern(&'a str),
    Number(u64),
    Newline,
    /// `<...>`
    Special(&'a str),
    /// `@...`
    Reference(&'a str),
    /// `%...` without a value.
    Directive(&'a str),
    /// `%json`, `%regex` or `%llguidance` with its value.
    Json(&'a str, Value),
}

/// A word with its bytes in the grammar.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Place<'a> {
    pub(super) word: Word<'a>,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// Splits a grammar into its words.
///
/// # Errors
/// No word begins at a byte.
pub(super) fn words(text: &str) -> Result<Vec<Place<'_>>, GrammarError> {
    let mut words = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let (word, len) = match rest.as_bytes()[0] {
            b' ' | b'\t' => (None, 1),
            b'#' => (None, rest.find('\n').unwrap_or(rest.len())),
            b'/' if rest.starts_with("//") => (None, rest.find('\n').unwrap_or(rest.len())),
            b'\n' => (Some(Word::Newline), 1),
            b'\r' if rest.starts_with("\r\n") => (Some(Word::Newline), 2),
            b'"' => string(rest).ok_or_else(|| error(text, at, "a string that does not end, or an unknown escape"))?,
            b'/' => pattern(rest).ok_or_else(|| error(text, at, "a pattern that does not end"))?,
            b'<' => special(rest).ok_or_else(|| error(text, at, "a \"<\" without its \">\""))?,
            b'@' => named(rest, 1, Word::Reference),
            b'%' => directive(text, at)?,
            b'0'..=b'9' => number(rest),
            b'+' | b'-' if rest.as_bytes().get(1).is_some_and(u8::is_ascii_digit) => number(rest),
            b'-' if rest.starts_with("->") => (Some(Word::Mark('>')), 2),
            b'+' | b'*' | b'?' | b'!' | b'_' | b'a'..=b'z' | b'A'..=b'Z' => name(rest),
            mark @ (b':' | b',' | b'.' | b'(' | b')' | b'{' | b'}' | b'[' | b']' | b'~' | b'|' | b'&' | b'=') => {
                (Some(Word::Mark(char::from(mark))), 1)
            }
            _ => {
                let what: String = rest.chars().take(1).collect();
                return Err(error(text, at, &format!("no word begins with \"{}\"", shown(&what))));
            }
        };
        if let Some(word) = word {
            words.push(Place { word, start: at, end: at + len });
        }
        at += len;
    }
    Ok(words)
}

/// An error at a byte of a grammar.
pub(super) fn error(text: &str, at: usize, why: &str) -> GrammarError {
    GrammarError::invalid(format!("{}: {why}", position(text, at)))
}

/// Line and column of a byte, from 1 on; the column in characters.
pub(crate) fn position(text: &str, at: usize) -> String {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1;
    format!("line {line}, column {column}")
}

type Found<'a> = (Option<Word<'a>>, usize);

/// JSON's strings, also with `\xHH`, on one line; an `i` may follow.
fn string(rest: &str) -> Option<Found<'_>> {
    let bytes = rest.as_bytes();
    let mut at = 1;
    loop {
        match *bytes.get(at)? {
            b'"' => break,
            b'\\' => {
                let hex = match *bytes.get(at + 1)? {
                    b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => 0,
                    b'u' => 4,
                    b'x' => 2,
                    _ => return None,
                };
                let digits = bytes.get(at + 2..at + 2 + hex)?;
                digits.iter().all(u8::is_ascii_hexdigit).then_some(())?;
                at += 2 + hex;
            }
            0..=0x1f | 0x7f => return None,
            _ => at += 1,
        }
    }
    let flag = usize::from(bytes.get(at + 1) == Some(&b'i'));
    Some((Some(Word::Text(&rest[..=at])), at + 1 + flag))
}

/// May have several lines.
fn pattern(rest: &str) -> Option<Found<'_>> {
    let bytes = rest.as_bytes();
    let mut at = 1;
    loop {
        match *bytes.get(at)? {
            b'/' => break,
            b'\\' if *bytes.get(at + 1)? != b'\n' => at += 2,
            b'\\' => return None,
            _ => at += 1,
        }
    }
    let flags = bytes[at + 1..].iter().take_while(|flag| b"imslux".contains(flag)).count();
    Some((Some(Word::Pattern(rest.get(1..at)?)), at + 1 + flags))
}

fn special(rest: &str) -> Option<Found<'_>> {
    let end = rest[1..].find(|c: char| matches!(c, '<' | '>') || c.is_whitespace())? + 1;
    (end > 1 && rest.as_bytes()[end] == b'>').then(|| (Some(Word::Special(&rest[..=end])), end + 1))
}

fn named<'a>(rest: &'a str, from: usize, word: impl FnOnce(&'a str) -> Word<'a>) -> Found<'a> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let len = from + rest[from..].find(|c| !is_part(c)).unwrap_or(rest.len() - from);
    (Some(word(&rest[..len])), len)
}

/// The longest word of a rule, a terminal, an operator or an underscore.
fn name(rest: &str) -> Found<'_> {
    let tail = |from: usize, is_part: fn(u8) -> bool| {
        from + rest.as_bytes()[from..].iter().take_while(|byte| is_part(**byte)).count()
    };
    let of_rule = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-';
    let of_terminal = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_' || byte == b'-';
    let bytes = rest.as_bytes();
    let is = |at: usize, class: fn(&u8) -> bool| bytes.get(at).is_some_and(class);
    let bang = usize::from(bytes[0] == b'!');
    let lead = bang + usize::from(bytes.get(bang).is_some_and(|byte| matches!(byte, b'_' | b'?')));
    if is(lead, u8::is_ascii_lowercase) {
        let len = tail(lead + 1, of_rule);
        return (Some(Word::Name(&rest[..len])), len);
    }
    let lead = usize::from(bytes[0] == b'_');
    if is(lead, u8::is_ascii_uppercase) {
        let len = tail(lead + 1, of_terminal);
        return (Some(Word::Name(&rest[..len])), len);
    }
    (Some(Word::Mark(char::from(bytes[0]))), 1)
}

/// Only what counts can be: the integral part.
fn number(rest: &str) -> Found<'_> {
    let bytes = rest.as_bytes();
    let hex = bytes[0] == b'0' && matches!(bytes.get(1), Some(b'x' | b'X'));
    if hex {
        let len = 2 + bytes[2..].iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        return (Some(Word::Mark('0')), len);
    }
    let sign = usize::from(!bytes[0].is_ascii_digit());
    let digits = bytes[sign..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let value = rest[sign..sign + digits]
        .bytes()
        .fold(0u64, |value, digit| value.saturating_mul(10).saturating_add(u64::from(digit - b'0')));
    (Some(Word::Number(value)), sign + digits)
}

fn directive(text: &str, at: usize) -> Result<Found<'_>, GrammarError> {
    let rest = &text[at..];
    let len = 1 + rest[1..].find(|c: char| !c.is_ascii_lowercase()).unwrap_or(rest.len() - 1);
    let name = &rest[..len];
    if !matches!(name, "%json" | "%regex" | "%llguidance") {
        return Ok((Some(Word::Directive(name)), len));
    }
    let mut values = serde_json::Deserializer::from_str(&rest[len..]).into_iter::<Value>();
    match values.next() {
        Some(Ok(value)) => Ok((Some(Word::Json(name, value)), len + values.byte_offset())),
        Some(Err(why)) => Err(error(text, at, &format!("{name} is followed by no JSON: {why}"))),
        None => Err(error(text, at, &format!("{name} is followed by no JSON"))),
    }
}
