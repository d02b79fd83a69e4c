//! Reads a Lark grammar before it is compiled: checks the JSON schemas in it, and refuses what the compiler takes and this server does
//! not do. Whatever else is wrong with it, the compiler says.
use serde_json::{Deserializer, Value};

use super::error::{GrammarError, line_and_column, shown};
use super::schema;

/// Attributes of rules that would have no effect, or hide text that was drawn.
const ATTRIBUTES: &[&str] = &["capture", "max_tokens", "stop", "stop_capture", "temperature"];
/// The options of `%llguidance` that a client may set.
const OPTIONS: &[&str] = &["no_forcing", "allow_initial_skip", "ignore_once"];

/// The text in quotes. JSON's escapes are Lark's, which wants one character more escaped.
pub(crate) fn lark_string(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default().replace('\u{7f}', "\\u007f")
}

/// The grammar with its JSON schemas as the compiler may have them.
///
/// # Errors
/// A part of it is not supported. Errors name line and column.
pub(super) fn check(text: &str) -> Result<String, GrammarError> {
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let here =
            |error: GrammarError| GrammarError::new(error.fault, format!("{}: {error}", line_and_column(text, at)));
        let (len, replacement) = word(text, at).map_err(here)?;
        out.push_str(replacement.as_deref().unwrap_or(&text[at..at + len]));
        at += len;
    }
    Ok(out)
}

/// The length of what begins here, and what is to stand in its place, if anything.
type Word = (usize, Option<String>);

fn word(text: &str, at: usize) -> Result<Word, GrammarError> {
    let (before, rest) = text.split_at(at);
    let next = rest.chars().next().unwrap_or_default();
    let len = match next {
        '"' | '/' if !rest.starts_with("//") => delimited(rest, next),
        '#' | '/' => rest.find('\n').unwrap_or(rest.len()),
        '<' if !rest.starts_with("<[") => {
            let name = shown(rest.split_inclusive('>').next().unwrap_or_default());
            let why = format!("{name}: special tokens are named by number, as <[128000]>");
            return Err(GrammarError::unsupported(why));
        }
        '@' => return Err(GrammarError::unsupported("references to other grammars are not supported")),
        '[' => match refused_attribute(before, rest) {
            Some(name) => return Err(GrammarError::unsupported(format!("{name} is not supported"))),
            None => 1,
        },
        '%' => return directive(rest),
        _ => next.len_utf8(),
    };
    Ok((len, None))
}

/// The length of a string or a pattern, with its delimiters.
fn delimited(rest: &str, delimiter: char) -> usize {
    let mut chars = rest.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => _ = chars.next(),
            c if c == delimiter => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// An attribute that is not supported, in the brackets behind a rule's name.
fn refused_attribute(before: &str, brackets: &str) -> Option<&'static str> {
    let line = before.rsplit('\n').next()?.trim();
    let is_rule = line.trim_end_matches("::_").chars().all(|c| c.is_ascii_alphanumeric() || "_-!?".contains(c));
    let mut attributes = brackets[1..].split(']').next().filter(|_| is_rule)?.split(',');
    attributes.find_map(|attribute| {
        let name = attribute.split('=').next()?.trim();
        ATTRIBUTES.iter().find(|known| **known == name).copied()
    })
}

fn directive(rest: &str) -> Result<Word, GrammarError> {
    let len = 1 + rest[1..].find(|c: char| !c.is_ascii_lowercase()).unwrap_or(rest.len() - 1);
    let (name, behind) = rest.split_at(len);
    match name {
        "%ignore" | "%import" | "%if" | "%regex" => return Ok((len, None)),
        "%json" | "%llguidance" => {}
        _ => return Err(GrammarError::unsupported(format!("{} is not supported", shown(name)))),
    }
    let mut values = Deserializer::from_str(behind).into_iter::<Value>();
    let Some(Ok(value)) = values.next() else {
        return Err(GrammarError::invalid(format!("{name} is followed by no JSON")));
    };
    let len = len + values.byte_offset();
    if name == "%json" {
        let schema = schema::with_spacing(schema::check(&value)?, &value);
        return Ok((len, Some(format!("{name} {schema}"))));
    }
    let mut options = value.as_object().into_iter().flatten().map(|(option, _)| option);
    if let Some(option) = options.find(|option| !OPTIONS.contains(&option.as_str())) {
        let why = format!("option \"{}\" is not supported; those that are: {}", shown(option), OPTIONS.join(", "));
        return Err(GrammarError::unsupported(why));
    }
    Ok((len, None))
}

#[cfg(test)]
#[path = "lark_tests.rs"]
mod tests;
