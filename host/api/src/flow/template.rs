//! A model's chat template, and how it fares.
use std::sync::Arc;

use camshaft_core::engine::ModelInfo;
use camshaft_template::{ChatTemplate, CompileError, Conversation, RenderError, Source};

use crate::flow::error::FlowError;
use crate::flow::reading::{Reading, TemplateHealth};

/// See the module.
#[derive(Debug)]
pub(crate) struct ModelTemplate {
    pub(crate) template: ChatTemplate,
    health: Arc<TemplateHealth>,
}

/// The template of a model. One that does not compile is an error of the model's chats only: say it at the model's load.
///
/// # Errors
/// It is not Jinja, or uses an unknown feature.
pub fn compile_template(info: &ModelInfo) -> Result<ChatTemplate, CompileError> {
    ChatTemplate::compile(source(info))
}

/// Tries out a model's chat template, where memory and time are bounded.
pub fn render_samples(info: &ModelInfo) {
    camshaft_template::render_samples(source(info));
}

fn source(info: &ModelInfo) -> Source<'_> {
    let (template, with_tools) = (info.chat_template.as_deref(), info.tool_template.as_deref());
    Source { template, with_tools, bos: &info.bos_text, eos: &info.eos_text }
}

impl ModelTemplate {
    /// `model`: the name that it is served by.
    ///
    /// # Errors
    /// As [`compile_template`].
    pub(crate) fn compile(model: &str, info: &ModelInfo) -> Result<Self, CompileError> {
        Ok(Self { template: compile_template(info)?, health: Arc::new(TemplateHealth::new(model)) })
    }

    /// Renders a conversation that was written for the template.
    ///
    /// # Errors
    /// 400: the template refuses the messages, or fails on them. 503: it ran away before, or there is no memory for a stack.
    pub(crate) fn render(
        &self,
        has_tools: bool,
        conversation: Conversation<'_>,
        reading: &Reading,
    ) -> Result<String, FlowError> {
        let rendered = reading.render(&self.health, || self.template.render(has_tools, conversation))?;
        rendered.map_err(|error| match error {
            RenderError::Reserved(name) => FlowError::field(format!("chat_template_kwargs.{name}"), error.to_string()),
            RenderError::Raised(message) => FlowError::field("messages", message),
            RenderError::Failed(error) => FlowError::Template(error),
            RenderError::Stack(error) => FlowError::TemplateStack(error),
            RenderError::Output(error) => FlowError::TemplateOutput(error),
        })
    }
}
