//! A model's chat template, rendered as Hugging Face's `apply_chat_template` does it.
mod python;

use std::error::Error as _;

use jiff::Timestamp;
use jiff::fmt::strtime::{BrokenDownTime, Config, PosixCustom};
use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, ErrorKind, context};

use crate::message::Conversation;

/// The template of models without one of their own.
const FALLBACK: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}\
                        {% if add_generation_prompt %}assistant:{% endif %}";
/// Of the template, and of the one for chats with tools.
const NAMES: [&str; 2] = ["chat_template", "chat_template.tool_use"];
/// Variables that only the host may set.
const RESERVED: [&str; 4] = ["messages", "tools", "bos_token", "eos_token"];

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

/// A compiled template, and the one for chats with tools where the model brings one.
#[derive(Debug)]
pub struct ChatTemplate(Environment<'static>);

/// Why a conversation was not rendered.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    #[error("the template variable {0} may not be set")]
    Reserved(&'static str),
    /// What the template says by `raise_exception`, which is for the client.
    #[error("{0}")]
    Raised(String),
    #[error(transparent)]
    Failed(Error),
}

impl From<Error> for RenderError {
    fn from(error: Error) -> Self {
        match error.source().and_then(|cause| cause.downcast_ref()) {
            Some(Self::Raised(message)) => Self::Raised(message.clone()),
            _ => Self::Failed(error),
        }
    }
}

impl ChatTemplate {
    /// Compiles a model's template.
    ///
    /// # Errors
    /// It is not Jinja, or uses an unknown feature.
    pub fn compile(Source { template, with_tools, bos, eos }: Source<'_>) -> Result<Self, Error> {
        let mut environment = Environment::new();
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        python::imitate(&mut environment);
        environment.add_global("bos_token", bos.to_owned());
        environment.add_global("eos_token", eos.to_owned());
        environment.add_global("add_generation_prompt", true);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(RenderError::Raised(message)))
        });
        environment.add_function("strftime_now", |format: &str| strftime(format, Timestamp::now()));
        let sources = [Some(template.unwrap_or(FALLBACK)), with_tools].into_iter().flatten();
        for (name, source) in NAMES.into_iter().zip(sources) {
            environment.add_template_owned(name, rewrite(source, &environment)?)?;
        }
        Ok(Self(environment))
    }

    /// Renders the prompt of a conversation in which the assistant speaks next, unless its variables say otherwise. `has_tools`: as
    /// when it was written for the template.
    ///
    /// # Errors
    /// The template refuses the messages, or fails on them.
    pub fn render(&self, has_tools: bool, conversation: Conversation<'_>) -> Result<String, RenderError> {
        if let Some(name) = RESERVED.iter().find(|name| conversation.variables.contains_key(**name)) {
            return Err(RenderError::Reserved(name));
        }
        // As Hugging Face does: a template may ask whether there are tools in any way. (One that goes through them finds none.)
        let tools = (!conversation.tools.is_empty()).then_some(Serde(conversation.tools));
        let context = context! { messages => Serde(conversation.messages), tools, ..Serde(conversation.variables) };
        let template = self.0.get_template(NAMES[usize::from(has_tools)]).or_else(|_| self.0.get_template(NAMES[0]))?;
        Ok(template.render(context)?)
    }
}

/// The time in UTC. Copies unknown directives, as C's `strftime` does.
fn strftime(format: &str, time: Timestamp) -> String {
    let config = Config::new().custom(PosixCustom::new()).lenient(true);
    BrokenDownTime::from(time).to_string_with_config(&config, format).unwrap_or_default()
}

/// Rewrites what minijinja lacks: `{% generation %}`, which only marks its text for training, and `'%s, %s' % (a, b)`.
fn rewrite(source: &str, environment: &Environment<'_>) -> Result<String, Error> {
    let tokens = tokenize(source, false, environment.syntax().clone()).collect::<Result<Vec<_>, _>>()?;
    let mut rewritten = source.to_owned();
    // From the end: a replacement moves what is behind it.
    for [(before, _), (token, span), (after, _)] in tokens.array_windows().rev() {
        let replacement = match (before, token, after) {
            (Token::BlockStart, Token::Ident("generation"), Token::BlockEnd) => "with",
            (Token::BlockStart, Token::Ident("endgeneration"), Token::BlockEnd) => "endwith",
            (Token::Str(_) | Token::String(_), Token::Mod, Token::ParenOpen) => "|format",
            _ => continue,
        };
        rewritten.replace_range(span.start_offset as usize..span.end_offset as usize, replacement);
    }
    Ok(rewritten)
}

#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod tests;
