//! Conversations that try out a model's chat template before it is served.
use serde_json::Map;

use crate::message::{Conversation, Message, Role};
use crate::template::{ChatTemplate, Source};

/// Turns of the longest conversation.
const TURNS: usize = 64;
/// Bytes of each of its messages.
const MESSAGE_BYTES: usize = 4 << 10;

/// Renders what is rendered when a template is loaded, and a long conversation. A template may refuse them: the outcome does not
/// matter, but what it costs does. To be called where memory and time are bounded, because no count of instructions bounds them.
pub fn render_samples(source: Source<'_>) {
    // The server itself reports a template that does not compile.
    let Ok(template) = ChatTemplate::compile(source) else { return };
    let conversation = Conversation { messages: &long(), tools: &[], variables: &Map::new() };
    let _ = template.render(false, conversation);
}

fn long() -> Vec<Message> {
    let long = "a ".repeat(MESSAGE_BYTES / 2);
    let role = |turn: usize| if turn.is_multiple_of(2) { Role::User } else { Role::Assistant };
    (0..TURNS).map(|turn| Message::new(role(turn), &*long)).chain([Message::new(Role::User, "Go on")]).collect()
}
