//! Renders chat templates: the model's own Jinja, as Hugging Face's `apply_chat_template` does.
mod cost;
mod json;
mod strftime;

use std::borrow::Cow;
use std::error::Error as _;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use camshaft_core::engine::ModelInfo;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, ErrorKind};

use crate::flow::error::FlowError;
use crate::flow::reading::{Reading, TemplateHealth};
use crate::wire::messages::Conversation;

/// Bound of the template instructions of one rendering. Past it the request is refused.
const FUEL: u64 = 2_000_000;
/// Stack of one rendering. Values that are nested as deep as the instructions allow are dropped one inside the other: a test
/// does so on it. It is address space, of which what is not touched takes no memory.
pub const STACK_BYTES: usize = 1 << 30;
/// Where the system does not give it: a smaller one, with as many instructions as that takes.
const LESS: u64 = 4;
/// Instructions for which the stack of any thread is large enough.
const SHORT_FUEL: u64 = 1000;
/// Bound of nested calls and loops. Past it the request is refused.
const RECURSION: usize = 100;
/// Bound of the rendered bytes. Past it the request is refused.
const OUTPUT_BYTES: usize = 16 << 20;
/// The template of models without one of their own.
pub(crate) const FALLBACK: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}\
                                   {% if add_generation_prompt %}assistant:{% endif %}";
const NAME: &str = "chat_template";
/// Variables that only the host may set.
const RESERVED: [&str; 4] = ["messages", "tools", "bos_token", "eos_token"];

/// A compiled template, with the model's special tokens.
pub(crate) struct ChatTemplate {
    environment: Environment<'static>,
    /// The same with [`SHORT_FUEL`].
    short: Environment<'static>,
    health: Arc<TemplateHealth>,
    stacks: [Stack; 2],
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChatTemplate")
    }
}

/// The argument of the template's `raise_exception`, which is for the client.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// Compiles the template of the model that is served as `model`, or [`FALLBACK`] for one that has none.
    ///
    /// # Errors
    /// The template is not Jinja, or uses an unknown feature.
    pub(crate) fn compile(model: &str, info: &ModelInfo) -> Result<Self, Error> {
        let mut environment = Environment::new();
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        cost::meter(&mut environment);
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(RECURSION);
        environment.add_global("bos_token", info.bos_text.clone());
        environment.add_global("eos_token", info.eos_text.clone());
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(Raised(message)))
        });
        environment.add_function("strftime_now", |format: String| strftime::format(&format, unix_seconds()));
        let source = info.chat_template.clone().unwrap_or_else(|| FALLBACK.to_owned());
        environment.add_template_owned(NAME, source)?;
        let mut short = environment.clone();
        short.set_fuel(Some(SHORT_FUEL));
        Ok(Self { environment, short, health: Arc::new(TemplateHealth::new(model)), stacks: STACKS })
    }

    /// Renders the prompt of a conversation in which the assistant speaks next, unless its variables say otherwise.
    ///
    /// # Errors
    /// 400: the template refuses the messages, or fails on them. 503: it ran away before, or there is no memory for a stack.
    pub(crate) fn render(&self, conversation: Conversation<'_>, reading: &Reading) -> Result<String, FlowError> {
        let Conversation { messages, tools, variables: kwargs, .. } = conversation;
        if let Some(name) = RESERVED.iter().find(|name| kwargs.contains_key(**name)) {
            let param = format!("chat_template_kwargs.{name}");
            return Err(FlowError::field(param, format!("the template variable {name} may not be set")));
        }
        let run = |fuel| {
            // As Hugging Face does: a template may ask whether there are tools in any way.
            let tools = if tools.is_empty() { Value::from(()) } else { Value::from(Serde(tools)) };
            let mut variables = vec![("add_generation_prompt".to_owned(), Value::from(true))];
            variables.push(("tools".to_owned(), tools));
            variables.extend(kwargs.iter().map(|(name, value)| (name.clone(), Value::from(Serde(value)))));
            variables.push(("messages".to_owned(), Value::from(Serde(messages))));
            self.run(fuel, Value::from_pairs(variables))
        };
        // Most conversations are short, and a thread takes as long as they do.
        let rendered = reading.render(&self.health, || match run(SHORT_FUEL) {
            Err(error) if is_out_of_fuel(&error) => on_a_stack(self.stacks, run),
            rendered => Ok(rendered),
        })?;
        let output = rendered.map_err(FlowError::TemplateStack)?.map_err(refused)?;
        String::from_utf8(output).map_err(FlowError::TemplateOutput)
    }

    fn run(&self, fuel: u64, variables: Value) -> Result<Vec<u8>, Error> {
        let environment = match fuel {
            FUEL => Cow::Borrowed(&self.environment),
            SHORT_FUEL => Cow::Borrowed(&self.short),
            _ => {
                let mut environment = self.environment.clone();
                environment.set_fuel(Some(fuel));
                Cow::Owned(environment)
            }
        };
        let mut output = Capped(Vec::new());
        environment.get_template(NAME)?.render_captured_to(variables, &mut output)?;
        Ok(output.0)
    }
}

/// A stack, and the instructions for which it is large enough.
#[derive(Debug, Clone, Copy)]
struct Stack {
    bytes: usize,
    fuel: u64,
}

/// Those that are tried, in this order.
const STACKS: [Stack; 2] =
    [Stack { bytes: STACK_BYTES, fuel: FUEL }, Stack { bytes: STACK_BYTES / LESS as usize, fuel: FUEL / LESS }];

/// Runs `render` on a thread that has the first of these stacks that the system gives.
///
/// # Errors
/// It gives none of them.
fn on_a_stack<T: Send>(stacks: [Stack; 2], render: impl Fn(u64) -> T + Sync) -> io::Result<T> {
    let run = |stack: Stack| {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("chat-template".to_owned()).stack_size(stack.bytes);
            let rendering = thread.spawn_scoped(scope, || render(stack.fuel))?;
            Ok(rendering.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    };
    let [first, second] = stacks;
    run(first).or_else(|_: io::Error| run(second))
}

/// A template that includes others wraps their errors.
fn is_out_of_fuel(error: &Error) -> bool {
    let mut error: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(inner) = error {
        if inner.downcast_ref::<Error>().is_some_and(|inner| inner.kind() == ErrorKind::OutOfFuel) {
            return true;
        }
        error = inner.source();
    }
    false
}

fn refused(error: Error) -> FlowError {
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(Raised(message)) = inner.downcast_ref::<Raised>() {
            return FlowError::field("messages", message.clone());
        }
        source = inner.source();
    }
    FlowError::Template(error)
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

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod tests;
