//! A model's chat template: one for all chats, or one for chats with tools beside it.
use serde::{Deserialize, Serialize};

use crate::capabilities::Capabilities;
use crate::jinja::{FALLBACK, Jinja, RenderError};
use crate::message::Conversation;

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

/// A compiled template: for chats without tools, and for those with tools.
#[derive(Debug)]
pub struct ChatTemplate([Jinja; 2]);

/// What a template takes of a chat, found out by rendering small conversations with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateTraits([Capabilities; 2]);

impl ChatTemplate {
    /// Compiles a model's template.
    ///
    /// # Errors
    /// It is not Jinja, or uses an unknown feature.
    pub fn compile(source: Source<'_>) -> Result<Self, minijinja::Error> {
        let compile = |template| Jinja::compile(template, source.bos, source.eos);
        let plain = source.template.unwrap_or(FALLBACK);
        Ok(Self([compile(plain)?, compile(source.with_tools.unwrap_or(plain))?]))
    }

    /// Finds out what it takes.
    pub fn traits(&self) -> TemplateTraits {
        TemplateTraits(self.0.each_ref().map(Capabilities::find))
    }

    /// Renders the prompt of a conversation in which the assistant speaks next, unless its variables say otherwise. `has_tools`: as
    /// when it was written for the template.
    ///
    /// # Errors
    /// The template refuses the messages, or fails on them.
    pub fn render(&self, has_tools: bool, conversation: Conversation<'_>) -> Result<String, RenderError> {
        self.0[usize::from(has_tools)].render(conversation)
    }
}

impl TemplateTraits {
    /// Of a chat with tools, or without.
    pub fn capabilities(&self, has_tools: bool) -> &Capabilities {
        &self.0[usize::from(has_tools)]
    }
}
