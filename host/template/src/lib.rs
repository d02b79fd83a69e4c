//! Chat templates: the model's own Jinja, rendered as Hugging Face's `apply_chat_template` renders it.
//!
//! A model's template comes in as text ([`Source`]). Loading it compiles it and renders a few small conversations, which show what it
//! takes ([`Capabilities`]): tools or none, arguments as objects or as text, several calls or one, system texts anywhere or in front
//! only. A conversation is then written for that template ([`ChatTemplate::write`]) and rendered ([`ChatTemplate::render`]) to the
//! prompt's text.
//!
//! **Invariants.** A rendering is bounded by instructions, bytes and a stack of its own ([`jinja`]), except for operators, which cost
//! one instruction whatever they work on: whoever renders watches from outside. What a template cannot show of tools, calls, results
//! and system texts stands in the text of a message instead. A text that it leaves out beside calls is left out, as its model was
//! trained.
#![forbid(unsafe_code)]

mod capabilities;
mod jinja;
mod message;
mod template;
mod write;

pub use capabilities::{Arguments, Capabilities, SystemTexts};
pub use jinja::{RenderError, STACK_BYTES};
pub use message::{CalledFunction, Conversation, Message, Role, ToolCall};
pub use minijinja::Error as CompileError;
pub use template::{ChatTemplate, Source, render_samples};
pub use write::{Written, call_id};
