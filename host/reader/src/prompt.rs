//! Tokenizes messages, so that no message can spell a control token.
use camshaft_core::engine::{Encode, Tokenizer};
use camshaft_core::ids::Token;
use camshaft_template::{Conversation, Message};
use serde_json::Value;

use crate::task::{Chat, Ending, ReadError};

/// Private-use characters around a marker's number. Templates do not change their case or split at them.
const OPEN: char = '\u{F8F0}';
const CLOSE: char = '\u{F8F1}';

/// A part of a rendered prompt.
#[derive(Debug, PartialEq, Eq)]
enum PromptPart<'a> {
    /// Text of the template. Spelled control tokens become control tokens.
    Template(&'a str),
    /// Text of the client. Spelled control tokens stay text.
    Content(&'a str),
}

impl<'a> PromptPart<'a> {
    fn text(&self) -> &'a str {
        match *self {
            Self::Template(text) | Self::Content(text) => text,
        }
    }
}

pub(crate) use crate::task::Rendered;

/// Bytes of a prompt's end that an answer has: no family's marker is as long.
const END_BYTES: usize = 256;

/// Renders the conversation, and tokenizes what was rendered; of one that has more tokens than `most` about as many.
///
/// Usually it tokenizes the rendered text as a whole, as in the model's training. But if a client's text, or the texts
/// of neighbouring messages together, spell a control token, it renders the conversation with markers in place of the
/// texts, and tokenizes the texts apart, as plain text.
///
/// # Errors
/// Those of `template`; a template variable spells a control token.
pub(crate) fn render(
    tokenizer: &dyn Tokenizer,
    bos_text: &str,
    chat: Chat,
    template: &dyn Fn(Conversation<'_>) -> Result<String, ReadError>,
) -> Result<Rendered, ReadError> {
    let Chat { mut messages, tools, mut variables, ending, most, whole_text, .. } = chat;
    let mut texts = String::new();
    variables.iter().for_each(|(name, value)| collect_text(name, value, &mut texts));
    if tokenizer.has_control(&texts) {
        let message = "chat_template_kwargs may not contain the text of a control token";
        return Err(ReadError::field("chat_template_kwargs", message));
    }
    if ending != Ending::Next {
        variables.insert("add_generation_prompt".to_owned(), Value::Bool(false));
    }
    let open_end = format!("{OPEN}{}{CLOSE}", rand::random::<u64>());
    if ending == Ending::Open
        && let Some(last) = messages.last_mut()
    {
        last.content.get_or_insert_default().push_str(&open_end);
    }
    let mut written: String = messages.iter().map(|message| message.text().trim()).collect();
    messages.iter().for_each(|message| collect_other_texts(message, &mut written));
    tools.iter().for_each(|tool| collect_text("", tool, &mut written));
    let mut pieces;
    let rendered;
    if tokenizer.has_control(&written) {
        let markers = Markers::new(&messages, &tools, &|text| tokenizer.cuts(text));
        let marked = Conversation { messages: &markers.messages, tools: &markers.tools, variables: &variables };
        rendered = template(marked)?;
        pieces = markers.split(&rendered, &messages);
    } else {
        rendered = template(Conversation { messages: &messages, tools: &tools, variables: &variables })?;
        pieces = vec![PromptPart::Template(&rendered)];
    }
    if ending == Ending::Open {
        cut(&mut pieces, &open_end)?;
    }
    let tokens = tokenize(tokenizer, bos_text, &pieces, most);
    let mut text: String = pieces.iter().map(PromptPart::text).collect();
    if !whole_text {
        text.drain(..text.floor_char_boundary(text.len().saturating_sub(END_BYTES)));
    }
    Ok(Rendered { text, tokens })
}

/// Ends a prompt where the last message's text ends.
fn cut(pieces: &mut Vec<PromptPart<'_>>, end: &str) -> Result<(), ReadError> {
    // A template may repeat the text before, say as the system's.
    let last = pieces.iter().rposition(|piece| piece.text().contains(end));
    let Some(last) = last else {
        let message =
            "continue_final_message is not supported here: the model's chat template leaves the last message out";
        return Err(ReadError::field("continue_final_message", message));
    };
    pieces.truncate(last + 1);
    if let Some(piece) = pieces.last_mut() {
        let (text, at) = (piece.text(), piece.text().rfind(end).unwrap_or(0));
        *piece = match piece {
            PromptPart::Template(_) => PromptPart::Template(&text[..at]),
            PromptPart::Content(_) => PromptPart::Content(&text[..at]),
        };
    }
    Ok(())
}

fn tokenize(tokenizer: &dyn Tokenizer, bos_text: &str, pieces: &[PromptPart<'_>], most: usize) -> Vec<Token> {
    let mut tokens = Vec::new();
    for (i, piece) in pieces.iter().enumerate() {
        // Add no second BOS if the template begins with one.
        let (text, add_special, parse_special) = match *piece {
            PromptPart::Template(text) => {
                let has_bos = !bos_text.is_empty() && text.starts_with(bos_text);
                (text, i == 0 && !has_bos, true)
            }
            PromptPart::Content(text) => (text, i == 0, false),
        };
        let left = most.saturating_sub(tokens.len());
        let encode = Encode { add_special, parse_special, most: left, ..Encode::of(text) };
        tokens.extend(tokenizer.encode(encode).tokens);
        if tokens.len() > most {
            break;
        }
    }
    tokens
}

/// All texts in a template variable, names included.
fn collect_text(name: &str, value: &Value, text: &mut String) {
    text.push_str(name);
    match value {
        Value::String(string) => text.push_str(string),
        Value::Array(list) => list.iter().for_each(|item| collect_text("", item, text)),
        Value::Object(map) => map.iter().for_each(|(name, item)| collect_text(name, item, text)),
        _ => {}
    }
}

/// All texts of a message but its content.
fn collect_other_texts(message: &Message, text: &mut String) {
    for other in [&message.reasoning_content, &message.tool_call_id, &message.name].into_iter().flatten() {
        text.push_str(other);
    }
    for call in &message.tool_calls {
        text.push_str(&call.id);
        collect_text(&call.function.name, &call.function.arguments, text);
    }
}

/// Messages whose contents are replaced by markers, and whose other texts are cut by some, and so are those of tools.
struct Markers {
    nonce: u64,
    messages: Vec<Message>,
    tools: Vec<Value>,
}

/// Where a text is cut, so that it spells no control token.
type Cuts<'a> = &'a dyn Fn(&str) -> Vec<usize>;

impl Markers {
    fn new(messages: &[Message], tools: &[Value], cuts: Cuts<'_>) -> Self {
        let nonce = rand::random();
        let cut = Cut { marker: format!("{OPEN}{nonce}-{CLOSE}"), cuts };
        let mark = |(i, message): (usize, &Message)| {
            let text = message.text();
            // Keep white space at the ends, so that a template that trims treats the marker like the text.
            let end = text.trim_end().len();
            let start = end - text[..end].trim_start().len();
            let marker = if start == end { String::new() } else { format!("{OPEN}{nonce}-{i}{CLOSE}") };
            let marked = format!("{}{marker}{}", &text[..start], &text[end..]);
            let content = message.content.is_some().then_some(marked);
            let mut message = Message { content, ..message.clone() };
            cut.message(&mut message);
            message
        };
        let mut tools = tools.to_vec();
        tools.iter_mut().for_each(|tool| cut.value(tool));
        Self { nonce, messages: messages.iter().enumerate().map(mark).collect(), tools }
    }

    /// Splits a rendered prompt at its markers, and puts the contents of `messages` in the place of those that stand for one.
    fn split<'a>(&self, rendered: &'a str, messages: &'a [Message]) -> Vec<PromptPart<'a>> {
        let opening = format!("{OPEN}{}-", self.nonce);
        let mut pieces = Vec::new();
        let mut rest = rendered;
        while let Some(at) = rest.find(&opening) {
            let after = &rest[at + opening.len()..];
            let Some((number, tail)) = after.split_once(CLOSE) else { break };
            if at > 0 {
                pieces.push(PromptPart::Template(&rest[..at]));
            }
            let message = number.parse::<usize>().ok().and_then(|i| messages.get(i));
            pieces.extend(message.map(|message| PromptPart::Content(message.text().trim())));
            rest = tail;
        }
        if !rest.is_empty() {
            pieces.push(PromptPart::Template(rest));
        }
        pieces
    }
}

/// Cuts texts at control tokens by a marker.
struct Cut<'a> {
    marker: String,
    cuts: Cuts<'a>,
}

impl Cut<'_> {
    /// All texts but the content.
    fn message(&self, message: &mut Message) {
        for text in [&mut message.reasoning_content, &mut message.tool_call_id, &mut message.name].into_iter().flatten()
        {
            self.text(text);
        }
        for call in &mut message.tool_calls {
            self.text(&mut call.id);
            self.text(&mut call.function.name);
            self.value(&mut call.function.arguments);
        }
    }

    fn value(&self, value: &mut Value) {
        match value {
            Value::String(text) => self.text(text),
            Value::Array(list) => list.iter_mut().for_each(|item| self.value(item)),
            Value::Object(map) => {
                let members = std::mem::take(map).into_iter();
                *map = members
                    .map(|(mut name, mut value)| {
                        self.text(&mut name);
                        self.value(&mut value);
                        (name, value)
                    })
                    .collect();
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn text(&self, text: &mut String) {
        let cuts = (self.cuts)(text);
        if cuts.is_empty() {
            return;
        }
        let mut cut = String::with_capacity(text.len() + cuts.len() * self.marker.len());
        let mut begin = 0;
        for at in cuts {
            cut.push_str(&text[begin..at]);
            cut.push_str(&self.marker);
            begin = at;
        }
        cut.push_str(&text[begin..]);
        *text = cut;
    }
}

#[cfg(test)]
mod tests;
