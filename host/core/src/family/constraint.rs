//! The grammar of an answer that may call tools: free text has no marker, and what begins as a call is one that parses.
use serde_json::Value;

use crate::family::content::{markers, unmarked_calls};
use crate::family::description::{ContentForm, Family, Form, ThinkingState};
use crate::family::lark::{Full, Lark, TokenOf, escaped, not_first, string, without};
use crate::family::prefix::SPACE;
use crate::family::rules;
use crate::family::schemas::{self, Fault};
use crate::family::tools::{Tool, Tools};
use crate::limits;

/// Why there is no grammar for some tools.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConstraintError {
    #[error("{family} models cannot write an argument of the name {property:?}, which the tool {tool:?} has")]
    Property { family: &'static str, tool: String, property: String },
    #[error("{family} models can write no value of the argument {property:?} of the tool {tool:?}")]
    Value { family: &'static str, tool: String, property: String },
    #[error("{family} models cannot be held to {keyword:?} of the argument {property:?} of the strict tool {tool:?}")]
    Keyword { family: &'static str, tool: String, property: String, keyword: String },
    #[error("the grammar of the tools and the schema has more than the maximum of {} bytes", limits::GRAMMAR_BYTES)]
    TooLarge,
}

impl From<Full> for ConstraintError {
    fn from(_: Full) -> Self {
        Self::TooLarge
    }
}

/// What an answer's content is.
#[derive(Debug, Clone, Copy)]
pub enum Content<'a> {
    Text,
    /// JSON that follows a schema.
    Json(&'a Value),
}

impl Content<'_> {
    pub fn form(self) -> ContentForm {
        match self {
            Self::Text => ContentForm::Text,
            Self::Json(_) => ContentForm::Json,
        }
    }
}

/// The grammar of an answer with this content or calls of these tools, in llguidance's dialect of Lark; `None` if the answer
/// can only be text. `token` tells which of [`Family::special`] the vocabulary has as control tokens.
///
/// Free text comes first, then calls, and nothing after them. Where a call needs no marker, text does not begin as one. JSON comes
/// instead of calls, not before them. Arguments follow the tool's schema. Whether a schema can be compiled shows when the grammar is.
///
/// # Errors
/// If the family cannot write an argument's name or any value that it may have, or the grammar is too large.
pub fn constraint(
    family: &'static Family,
    tools: &Tools,
    content: Content<'_>,
    thinking: ThinkingState,
    token: TokenOf<'_>,
) -> Result<Option<String>, ConstraintError> {
    let calls = !tools.callable().is_empty();
    let mut lark = Lark::new(family.special, token);
    if let (Content::Text, false) = (content, calls) {
        return Ok(None);
    }
    let unmarked = unmarked_calls(family, tools, content.form());
    let thoughts = thoughts(family, thinking, &mut lark)?;
    text(family, thinking, unmarked, &mut lark)?;
    let begin = family.channels.as_ref().map_or("GAP?".to_owned(), |channels| lark.spelled(channels.answer));
    let answer = match content {
        Content::Json(schema) if !calls => format!("{begin} {}", schemas::json(schema, &mut lark)?),
        Content::Json(schema) if !tools.required() => {
            let calls = only_calls(family, tools, unmarked, &mut lark)?;
            format!("({calls} | {begin} {})", schemas::json(schema, &mut lark)?)
        }
        _ if tools.required() => only_calls(family, tools, unmarked, &mut lark)?,
        _ => text_or_calls(family, tools, &mut lark)?,
    };
    lark.define("start", &format!("{thoughts} {answer}"))?;
    Ok(Some(lark.into_text()))
}

/// Thinking before the answer.
fn thoughts(family: &Family, state: ThinkingState, lark: &mut Lark<'_>) -> Result<String, Full> {
    let Some(thinking) = family.thinking.as_ref().filter(|_| state != ThinkingState::Off) else {
        return Ok(String::new());
    };
    let without = without(&[escaped(thinking.end)]);
    lark.define("THOUGHT", &format!("/(?s:.+)/{without}"))?;
    lark.define("THOUGHTS", &format!("/(?s:.*)/{without}"))?;
    let next = family.channels.as_ref().map_or(String::new(), |channels| lark.spelled(channels.next));
    let end = lark.until("THOUGHT", "THOUGHTS", thinking.end)?;
    lark.define("thoughts_end", &format!("{end} {next}"))?;
    // Lazy, so that free text does not begin like it.
    let begin = if lark.begins_with_token(thinking.begin) {
        lark.spelled(thinking.begin)
    } else {
        lark.lazy(&string(thinking.begin))?
    };
    lark.define("thought", &format!("{begin} thoughts_end"))?;
    Ok(match (state, thinking.repeats) {
        (ThinkingState::Open, true) => "thoughts_end thought*",
        (ThinkingState::Open, false) => "thoughts_end",
        (_, true) => "thought*",
        (_, false) => "thought?",
    }
    .to_owned())
}

/// The terminals of free text.
fn text(family: &Family, thinking: ThinkingState, unmarked: bool, lark: &mut Lark<'_>) -> Result<(), Full> {
    let (markers, _) = markers(family, true, thinking);
    let markers: Vec<String> = markers.iter().map(|marker| escaped(marker)).collect();
    let mut firsts = Vec::new();
    if thinking == ThinkingState::Possible {
        firsts.extend(
            family.thinking.iter().map(|thinking| format!("[ \\t\\n\\x0c\\r]{{0,{SPACE}}}{}", escaped(thinking.begin))),
        );
    }
    if unmarked {
        firsts.push(format!("[ \\t\\n\\x0c\\r]{{0,{SPACE}}}\\{{"));
    }
    let but = without(&markers) + &not_first(&firsts);
    lark.define("TEXT", &format!("/(?s:.+)/{but}"))?;
    lark.define("TEXTS", &format!("/(?s:.*)/{but}"))?;
    lark.define("GAP", "/[ \\n]{1,4}/")
}

/// Calls without any text before them, but a message to the user where there are such and calls may be left out: a model that must
/// call need not say first that it will. `unmarked`: also without a marker.
fn only_calls(
    family: &'static Family,
    tools: &Tools,
    unmarked: bool,
    lark: &mut Lark<'_>,
) -> Result<String, ConstraintError> {
    let trigger = trigger(family);
    let body = all_calls(family, tools, trigger, lark)?;
    let marker = lark.rule(&lark.spelled(trigger))?;
    let Some(channels) = &family.channels else {
        return Ok(format!("GAP? {marker}{} {body}", if unmarked { "?" } else { "" }));
    };
    if tools.required() {
        return Ok(format!("{marker} {body}"));
    }
    let said = lark.until("TEXT", "TEXTS", channels.end)?;
    Ok(format!("({} {said} {})? {marker} {body}", lark.spelled(channels.preamble), lark.spelled(channels.next)))
}

/// Free text, or calls after free text.
fn text_or_calls(family: &'static Family, tools: &Tools, lark: &mut Lark<'_>) -> Result<String, ConstraintError> {
    if let Some(channels) = &family.channels {
        return Ok(format!("({} | {} TEXT?)", only_calls(family, tools, false, lark)?, lark.spelled(channels.answer)));
    }
    let trigger = trigger(family);
    let body = all_calls(family, tools, trigger, lark)?;
    let opening = lark.until("TEXT", "TEXTS", trigger)?;
    let opening = lark.rule(&opening)?;
    Ok(format!("(TEXT? | {opening}{} {body})", if family.calls.unmarked { "?" } else { "" }))
}

/// The marker that begins the calls of an answer.
fn trigger(family: &Family) -> &'static str {
    family.calls.triggers().next().unwrap_or_default()
}

/// The calls of an answer, after the marker that begins them.
fn all_calls(
    family: &'static Family,
    tools: &Tools,
    trigger: &str,
    lark: &mut Lark<'_>,
) -> Result<String, ConstraintError> {
    let calls = &family.calls;
    let alternatives =
        tools.callable().iter().map(|tool| one_call(family, tool, lark)).collect::<Result<Vec<_>, _>>()?;
    lark.define("call", &alternatives.join(" | "))?;
    let first = calls.first();
    let first = match first.strip_prefix(trigger) {
        // What begins it is optional here, and was read before.
        _ if calls.unmarked => String::new(),
        rest => lark.spelled(rest.unwrap_or(&first)),
    };
    let gap = if let Form::List(_) = calls.form { "\" \"?" } else { "" };
    let more = if tools.parallel() && calls.parallel {
        format!("({} call){{0,{}}}", lark.spelled(&calls.another()), limits::CALLS - 1)
    } else {
        String::new()
    };
    Ok(lark.rule(&format!("{gap} {first} call {more} {}", lark.spelled(&calls.last())))?)
}

fn one_call(family: &'static Family, tool: &Tool, lark: &mut Lark<'_>) -> Result<String, ConstraintError> {
    let calls = &family.calls;
    let before = match &calls.form {
        Form::Named { between, id: Some(id) } => {
            lark.define("CALL_ID", "/[a-zA-Z0-9]{9}/")?;
            let between = between.first().copied().unwrap_or_default();
            format!("{} ({} CALL_ID)? {}", string(&tool.name), lark.spelled(id), lark.spelled(between))
        }
        _ => lark.spelled(&calls.before_arguments(&tool.name)),
    };
    let arguments =
        rules::arguments(&calls.form, (&tool.schema(), tool.strict), lark).map_err(|fault| match fault {
            Fault::Name(property) => {
                ConstraintError::Property { family: family.name, tool: tool.name.clone(), property }
            }
            Fault::Value(property) => ConstraintError::Value { family: family.name, tool: tool.name.clone(), property },
            Fault::Keyword { property, keyword } => {
                ConstraintError::Keyword { family: family.name, tool: tool.name.clone(), property, keyword }
            }
            Fault::TooLarge => ConstraintError::TooLarge,
        })?;
    let after = calls.after_arguments();
    // A token that ends the turn is left to the end of the grammar, which allows it.
    let after = family.stops.iter().fold(after.as_str(), |after, stop| after.strip_suffix(stop).unwrap_or(after));
    Ok(lark.rule(&format!("{before} {arguments} {}", lark.spelled(after)))?)
}
