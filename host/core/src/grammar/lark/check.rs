//! The checks of a Lark grammar.
use serde_json::Value;

use super::lexer::{Place, Word, error, position, words};
use crate::grammar::error::{GrammarError, shown};
use crate::grammar::schema;
use crate::limits;

/// The options of `%llguidance` that a client may set.
const OPTIONS: &[&str] = &["no_forcing", "allow_initial_skip", "ignore_once"];
/// Attributes of rules that the compiler knows and this server does not do.
const ATTRIBUTES: &[&str] = &["max_tokens", "temperature", "stop", "stop_capture", "capture"];

/// The member of a JSON schema with settings of the compiler, and those of them that a grammar may set: how its JSON is spaced.
pub(crate) const JSON_OPTIONS: &str = "x-guidance";
const SPACING: &[&str] = &["whitespace_flexible", "item_separator", "key_separator"];

fn spacing(schema: &Value) -> Option<Value> {
    let mut options = schema.get(JSON_OPTIONS)?.as_object()?.clone();
    options.retain(|name, value| SPACING.contains(&name.as_str()) && (value.is_boolean() || value.is_string()));
    Some(Value::Object(options)).filter(|options| options.get(SPACING[0]).is_some())
}

/// The grammar with its JSON schemas checked. `dress` adds what the compiler is to know of each.
///
/// # Errors
/// It is too long, not what `llguidance` reads, over a bound, or not supported. Errors name line and column.
pub(crate) fn check(text: &str, dress: impl Fn(&mut Value)) -> Result<String, GrammarError> {
    if text.len() > limits::GRAMMAR_BYTES {
        let max = limits::GRAMMAR_BYTES;
        return Err(GrammarError::too_large(format!("a grammar of {} bytes, at most {max}", text.len())));
    }
    let words = words(text)?;
    check_nesting(text, &words)?;
    let (mut out, mut copied) = (String::with_capacity(text.len()), 0);
    for (at, Place { word, start, end }) in words.iter().enumerate() {
        let here = |error: GrammarError| GrammarError::new(error.fault, format!("{}: {error}", position(text, *start)));
        let refused = |why: &str| Err(here(GrammarError::unsupported(why)));
        match word {
            Word::Special(name) if !name.starts_with("<[") => {
                return refused(&format!("{}: special tokens are named by number, as <[128000]>", shown(name)));
            }
            Word::Reference(_) => return refused("references to other grammars are not supported"),
            Word::Directive("%ignore" | "%import" | "%if") => {}
            Word::Directive(name) => return refused(&format!("{} is not supported", shown(name))),
            Word::Name(name) if ATTRIBUTES.contains(name) && is_attribute(&words[..at]) => {
                return refused(&format!("{name} is not supported"));
            }
            Word::Json("%llguidance", value) => check_options(value).map_err(here)?,
            Word::Json("%regex", _) => {}
            Word::Json(name, value) => {
                let mut schema = schema::check_value(value).map_err(here)?.schema;
                if let (Value::Object(schema), Some(spacing)) = (&mut schema, spacing(value)) {
                    schema.insert(JSON_OPTIONS.to_owned(), spacing);
                }
                dress(&mut schema);
                out.push_str(&text[copied..*start]);
                out.push_str(&format!("{name} {schema}"));
                copied = *end;
            }
            _ => {}
        }
    }
    out.push_str(&text[copied..]);
    Ok(out)
}

/// Whether what follows these words is an attribute of a rule: in brackets behind the first name of a line.
fn is_attribute(before: &[Place<'_>]) -> bool {
    let line = before.iter().rposition(|place| place.word == Word::Newline).map_or(before, |at| &before[at + 1..]);
    let is = |place: &Place<'_>, mark: char| place.word == Word::Mark(mark);
    match line {
        [first, bracket, rest @ ..] => {
            matches!(first.word, Word::Name(_)) && is(bracket, '[') && !rest.iter().any(|place| is(place, ']'))
        }
        _ => false,
    }
}

/// The compiler goes into each group, and into each negation.
fn check_nesting(text: &str, words: &[Place<'_>]) -> Result<(), GrammarError> {
    let (mut groups, mut negations) = (0usize, 0usize);
    for Place { word, start, .. } in words {
        negations = if *word == Word::Mark('~') { negations + 1 } else { 0 };
        match word {
            Word::Mark('(' | '[' | '{') => groups += 1,
            Word::Mark(')' | ']' | '}') => groups = groups.saturating_sub(1),
            _ => {}
        }
        let max = limits::GRAMMAR_NESTING;
        if groups + negations > max {
            let why = format!("{}: over {max} groups within each other", position(text, *start));
            return Err(GrammarError::too_large(why));
        }
    }
    // Else a bracket that nothing opened would hide one that nothing closes.
    if groups > 0 { Err(error(text, text.len(), "a bracket is not closed")) } else { Ok(()) }
}

fn check_options(value: &Value) -> Result<(), GrammarError> {
    let unknown = value.as_object().and_then(|map| map.keys().find(|key| !OPTIONS.contains(&key.as_str())));
    match unknown {
        Some(name) => {
            let known = OPTIONS.join(", ");
            Err(GrammarError::unsupported(format!(
                "option \"{}\" is not supported; those that are: {known}",
                shown(name)
            )))
        }
        None => Ok(()),
    }
}
