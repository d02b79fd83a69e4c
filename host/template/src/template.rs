//! A model's chat template: one for all chats, or one for chats with tools beside it.
use std::fmt;

use serde_json::Map;

use crate::capabilities::Capabilities;
use crate::jinja::{FALLBACK, Jinja, RenderError};
use crate::message::{Conversation, Message, Role};

/// What a template is made of.
#[derive(Debug, Clone, Copy, Default)]
pub struct Source<'a> {
    /// `None`: [`FALLBACK`].
    pub template: Option<&'a str>,
    /// For chats with tools, where the model brings one (`tokenizer.chat_template.tool_use`).
    pub with_tools: Option<&'a str>,
    /// The texts of the model's special tokens, which templates write.
    pub bos: &'a str,
    pub eos: &'a str,
}

/// A compiled template, with what it takes.
pub struct ChatTemplate {
    plain: Variant,
    with_tools: Option<Variant>,
}

struct Variant {
    jinja: Jinja,
    capabilities: Capabilities,
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").field("capabilities", &self.plain.capabilities).finish_non_exhaustive()
    }
}

impl Variant {
    fn compile(template: &str, source: Source<'_>) -> Result<Self, minijinja::Error> {
        let jinja = Jinja::compile(template, source.bos, source.eos)?;
        let capabilities = Capabilities::find(&jinja);
        Ok(Self { jinja, capabilities })
    }
}

impl ChatTemplate {
    /// Compiles a model's template, and finds out what it takes.
    ///
    /// # Errors
    /// It is not Jinja, or uses an unknown feature.
    pub fn compile(source: Source<'_>) -> Result<Self, minijinja::Error> {
        let plain = Variant::compile(source.template.unwrap_or(FALLBACK), source)?;
        let with_tools = source.with_tools.map(|template| Variant::compile(template, source)).transpose()?;
        Ok(Self { plain, with_tools })
    }

    /// What it takes of a chat, with tools or without.
    pub fn capabilities(&self, has_tools: bool) -> &Capabilities {
        &self.variant(has_tools).capabilities
    }

    /// Renders the prompt of a conversation in which the assistant speaks next, unless its variables say otherwise. `has_tools`: as
    /// when it was written for the template.
    ///
    /// # Errors
    /// The template refuses the messages, or fails on them, or the system gives no stack.
    pub fn render(&self, has_tools: bool, conversation: Conversation<'_>) -> Result<String, RenderError> {
        self.variant(has_tools).jinja.render(conversation)
    }

    fn variant(&self, has_tools: bool) -> &Variant {
        self.with_tools.as_ref().filter(|_| has_tools).unwrap_or(&self.plain)
    }
}

/// Turns of the conversation that tries out a template.
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
