//! Chat templates: the model's own Jinja, rendered as Hugging Face's `apply_chat_template` renders it.
//!
//! A model's template comes in as text ([`Source`]). Rendering a few small conversations shows what it takes ([`Capabilities`]): tools or
//! none, arguments as objects or as text, several calls or one, system texts anywhere or in front only. A conversation is then written for
//! that template ([`TemplateTraits::write`]) and rendered ([`ChatTemplate::render`]) to the prompt's text.
//!
//! **Invariants.** A template comes with a model's file and may be hostile: it may take all memory and time, and overflow the stack.
//! Whoever renders does so where that is bounded, in a process that may be killed. What a template cannot show of tools, calls,
//! results and system texts stands in the text of a message instead. A text that it leaves out beside calls is left out, as its
//! model was trained.
#![forbid(unsafe_code)]

mod capabilities;
mod message;
mod template;
mod write;

pub use capabilities::{CallForm, Capabilities, SystemTexts, TemplateTraits};
pub use message::{CalledFunction, Conversation, Message, Role, ToolCall};
pub use template::{ChatTemplate, RenderError, Source};
pub use write::{Written, call_id};
