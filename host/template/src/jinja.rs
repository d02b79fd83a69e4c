//! Renders a template, within bounds of instructions, bytes and nested calls.
mod dates;
mod json;
mod python;
mod rewrite;

use std::error::Error as _;
use std::io;
use std::time::SystemTime;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind};

use crate::message::Conversation;

/// Bound of the template instructions of one rendering.
const FUEL: u64 = 2_000_000;
/// Bound of nested calls and loops.
const RECURSION: usize = 100;
/// Bound of the rendered bytes.
const OUTPUT_BYTES: usize = 16 << 20;
/// The template of models without one of their own.
pub(crate) const FALLBACK: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}\
                            {% if add_generation_prompt %}assistant:{% endif %}";
const NAME: &str = "chat_template";
/// Variables that only the host may set.
const RESERVED: [&str; 4] = ["messages", "tools", "bos_token", "eos_token"];

/// Why a conversation was not rendered.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    #[error("the template variable {0} may not be set")]
    Reserved(&'static str),
    /// What the template says by `raise_exception`, which is for the client.
    #[error("{0}")]
    Raised(String),
    #[error(transparent)]
    Failed(#[from] Error),
    #[error("a chat template wrote invalid UTF-8")]
    Output(#[from] std::string::FromUtf8Error),
}

/// A compiled template, with the model's special tokens.
pub(crate) struct Jinja {
    environment: Environment<'static>,
}

/// The argument of the template's `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl Jinja {
    /// # Errors
    /// It is not Jinja, or uses an unknown feature.
    pub(crate) fn compile(source: &str, bos: &str, eos: &str) -> Result<Self, Error> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
        environment.set_syntax(syntax.clone());
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        python::imitate(&mut environment);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(RECURSION);
        environment.add_global("bos_token", bos.to_owned());
        environment.add_global("eos_token", eos.to_owned());
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
        });
        environment.add_function("strftime_now", |format: String| dates::format(&format, SystemTime::now().into()));
        environment.add_template_owned(NAME, rewrite::rewrite(source, &syntax)?)?;
        Ok(Self { environment })
    }

    /// Renders the prompt of a conversation.
    pub(crate) fn render(&self, conversation: Conversation<'_>) -> Result<String, RenderError> {
        let Conversation { messages, tools, variables } = conversation;
        if let Some(name) = RESERVED.iter().find(|name| variables.contains_key(**name)) {
            return Err(RenderError::Reserved(name));
        }
        // As Hugging Face does: a template may ask whether there are tools in any way. (One that goes through them finds none.)
        let tools = if tools.is_empty() { Value::from(()) } else { Value::from(Serde(tools)) };
        let mut all = vec![("add_generation_prompt".to_owned(), Value::from(true))];
        all.push(("tools".to_owned(), tools));
        all.extend(variables.iter().map(|(name, value)| (name.clone(), Value::from(Serde(value)))));
        all.push(("messages".to_owned(), Value::from(Serde(messages))));
        let mut output = Capped(Vec::new());
        let template = self.environment.get_template(NAME).map_err(refused)?;
        template.render_captured_to(Value::from_pairs(all), &mut output).map_err(refused)?;
        Ok(String::from_utf8(output.0)?)
    }
}

fn refused(error: Error) -> RenderError {
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(Raised(message)) = inner.downcast_ref::<Raised>() {
            return RenderError::Raised(message.clone());
        }
        source = inner.source();
    }
    RenderError::Failed(error)
}

/// Collects output up to [`OUTPUT_BYTES`].
struct Capped(Vec<u8>);

impl io::Write for Capped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > OUTPUT_BYTES {
            return Err(io::Error::other("the rendered prompt is too long"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod tests;
