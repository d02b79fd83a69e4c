//! Tokenizes messages, so that no message can spell a control token.
use camshaft_core::engine::Encode;
use camshaft_core::ids::Token;
use serde_json::{Map, Value};

use crate::flow::aside::Aside;
use crate::flow::backend::TextModel;
use crate::flow::error::{FlowError, readable};
use crate::flow::template::ChatTemplate;
use crate::wire::messages::Message;

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

/// A conversation as the model reads it.
#[derive(Debug)]
pub(crate) struct Rendered {
    pub(crate) text: String,
    pub(crate) tokens: Vec<Token>,
}

/// Renders the conversation, and tokenizes what was rendered.
///
/// Usually it tokenizes the rendered text as a whole, as in the model's training. But if a client's text, or the texts
/// of neighbouring messages together, spell a control token, it renders the conversation with markers in place of the
/// texts, and tokenizes the texts apart, as plain text.
///
/// # Errors
/// 400 as [`ChatTemplate::render`], and for template variables that spell a control token.
pub(crate) fn render(
    model: &TextModel,
    template: &ChatTemplate,
    messages: &[Message],
    kwargs: &Map<String, Value>,
    aside: &Aside,
) -> Result<Rendered, FlowError> {
    let tokenizer = model.tokenizer.as_ref();
    let mut variables = String::new();
    kwargs.iter().for_each(|(name, value)| collect_text(name, value, &mut variables));
    if tokenizer.has_control(&variables) {
        let message = "chat_template_kwargs may not contain the text of a control token";
        return Err(FlowError::field("chat_template_kwargs", message));
    }
    let written: String = messages.iter().map(|message| message.content.trim()).collect();
    let rendered = |pieces: &[PromptPart<'_>]| tokenize(model, pieces, aside).ok_or(FlowError::Cancelled);
    if tokenizer.has_control(&written) {
        let markers = Markers::new(messages);
        let marked = template.render(&markers.messages, kwargs, aside)?;
        let pieces = markers.split(&marked, messages);
        let text = pieces.iter().map(|(PromptPart::Template(text) | PromptPart::Content(text))| *text).collect();
        Ok(Rendered { tokens: rendered(&pieces)?, text })
    } else {
        let text = template.render(messages, kwargs, aside)?;
        Ok(Rendered { tokens: rendered(&[PromptPart::Template(&text)])?, text })
    }
}

/// `None` if nobody waits for the tokens any more.
fn tokenize(model: &TextModel, pieces: &[PromptPart<'_>], aside: &Aside) -> Option<Vec<Token>> {
    let bos_text = &model.info.bos_text;
    let (abandoned, most) = (Some(aside.abandoned()), readable(model.info.context_tokens));
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
        let encode = Encode { add_special, parse_special, abandoned, most: left, ..Encode::of(text) };
        let more = model.tokenizer.encode(encode)?.tokens;
        if tokens.is_empty() {
            tokens = more
        } else {
            tokens.extend(more)
        }
        if tokens.len() > most {
            break;
        }
    }
    Some(tokens)
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

/// Messages whose texts are replaced by markers.
struct Markers {
    nonce: u64,
    messages: Vec<Message>,
}

impl Markers {
    fn new(messages: &[Message]) -> Self {
        let nonce = rand::random();
        let mark = |(i, message): (usize, &Message)| {
            let text = &message.content;
            // Keep white space at the ends, so that a template that trims treats the marker like the text.
            let end = text.trim_end().len();
            let start = end - text[..end].trim_start().len();
            let marker = if start == end { String::new() } else { format!("{OPEN}{nonce}-{i}{CLOSE}") };
            Message { role: message.role, content: format!("{}{marker}{}", &text[..start], &text[end..]) }
        };
        Self { nonce, messages: messages.iter().enumerate().map(mark).collect() }
    }

    /// Splits a rendered prompt at its markers, and puts the texts of `messages` in their place.
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
            pieces.extend(message.map(|message| PromptPart::Content(message.content.trim())));
            rest = tail;
        }
        if !rest.is_empty() {
            pieces.push(PromptPart::Template(rest));
        }
        pieces
    }
}
