//! Compiles what requests ask their answers to look like.
use std::sync::Arc;

use camshaft_core::family::constraint::{ConstraintError, Content, constraint};
use camshaft_core::family::description::{ContentForm, Family, ThinkingState};
use camshaft_core::family::parser::Parser;
use camshaft_core::family::tools::{Tool, Tools};
use camshaft_core::grammar::{Grammar, GrammarError, GrammarFault, GrammarSpec, GrammarStore, InUse};
use camshaft_core::ids::Token;
use camshaft_core::message::ShownToken;
use camshaft_core::thinking::ThinkingBudget;
use camshaft_reader::{Bound, ReadError};
use serde_json::Value;

use crate::flow::error::FlowError;
use crate::flow::incoming::off_thread;
use crate::flow::request::ReadContext;
use crate::wire::format::{Format, WantedFormat};
use crate::wire::tools::{TOOLS, WantedTools};

/// The form of a plain completion's answers.
///
/// # Errors
/// As [`compiled`].
pub(crate) async fn text(context: ReadContext<'_>, wanted: Option<WantedFormat>) -> Result<AnswerForm, FlowError> {
    let Some(WantedFormat { format, path }) = wanted else { return Ok(AnswerForm::default()) };
    let grammar = compiled(context, spec(format), &path).await?;
    Ok(AnswerForm { grammar: Some(grammar), ..AnswerForm::default() })
}

/// The form of a chat's answers, which begin in this state of thinking.
///
/// # Errors
/// 400: the format or the schema of a tool is not supported, or both cannot be had at once. 503: there is no thread to compile it.
pub(crate) async fn chat(
    context: ReadContext<'_>,
    (tools, format): (&WantedTools, Option<WantedFormat>),
    thinking: ThinkingState,
) -> Result<AnswerForm, FlowError> {
    let notation = context.served().notation()?;
    let (family, calls) = (notation.family, !tools.tools.callable().is_empty());
    if let Some(WantedFormat { format: Format::Grammar(_), path }) = &format {
        if calls {
            let message = format!("{path} may not be set together with tools: only JSON may be an answer beside calls");
            return Err(FlowError::field(path.clone(), message));
        }
        if thinking == ThinkingState::Open || family.channels.is_some() {
            let message = format!(
                "{path} is not supported by this model, whose answers begin with thinking or a header: only JSON is"
            );
            return Err(FlowError::field(path.clone(), message));
        }
        return text(context, format).await;
    }
    let (form, content) = match &format {
        Some(WantedFormat { format: Format::Json(schema), .. }) => (ContentForm::Json, Content::Json(schema)),
        _ => (ContentForm::Text, Content::Text),
    };
    let is_plain = !calls && family.channels.is_none() && (family.thinking.is_none() || thinking == ThinkingState::Off);
    let (grammar, tools_in_force) = match &format {
        Some(WantedFormat { format, path }) if is_plain => {
            let grammar = compiled(context, spec(format.clone()), path).await?;
            (Some(grammar), tools.tools.clone())
        }
        _ => {
            let wish = Wish { tools, format: format.as_ref(), content, thinking };
            wish.grammar(context).await?
        }
    };
    Ok(AnswerForm {
        grammar,
        parts: family.parses(&tools_in_force).then_some(Parts { family, tools: tools_in_force, form, thinking }),
        shown: notation.shown.clone(),
        stops: if calls { notation.stops.clone() } else { Vec::new() },
        thinking_budget: None,
    })
}

fn spec(format: Format) -> GrammarSpec {
    match format {
        Format::Json(schema) => GrammarSpec::JsonSchema { schema: schema.to_string() },
        Format::Grammar(spec) => spec,
    }
}

/// How schemas are looked at.
#[derive(Debug, Clone, Copy)]
enum Look {
    Read,
    Compile,
}

/// What a chat asks of its answer.
struct Wish<'a> {
    tools: &'a WantedTools,
    format: Option<&'a WantedFormat>,
    content: Content<'a>,
    thinking: ThinkingState,
}

impl Wish<'_> {
    /// The grammar, and the tools as it has them: of a function that is not strict, what is not supported of the schema is left out.
    async fn grammar(&self, context: ReadContext<'_>) -> Result<(Option<HeldGrammar>, Arc<Tools>), FlowError> {
        let notation = context.served().notation()?;
        let token = |marker: &str| notation.token(marker);
        let mut tools = self.tools.tools.clone();
        // To read a schema shows most of what is not supported, and takes less than to compile it. A tool may be relaxed twice.
        let mut looks = [Look::Read, Look::Compile, Look::Compile].into_iter();
        loop {
            let text = match constraint(notation.family, &tools, self.content, self.thinking, &token) {
                Ok(Some(text)) => text,
                Ok(None) => return Ok((None, tools)),
                // One that takes any object has no arguments that cannot be written.
                Err(error) => match self.unwritable(&error).filter(|(_, tool)| !tool.strict) {
                    Some((index, _)) => {
                        tools = Arc::new(tools.relaxed(index));
                        continue;
                    }
                    None => return Err(self.refused(&error)),
                },
            };
            let error = match compile(context, GrammarSpec::Lark { text }).await? {
                Ok(grammar) => return Ok((Some(grammar), tools)),
                Err(error) => error,
            };
            if let Some(WantedFormat { format, path }) = self.format {
                let alone = Grammar::new(spec(format.clone()));
                examine(context, &alone).await?.map_err(|error| refused(&error, path))?;
            }
            let found = loop {
                let Some(look) = looks.next() else { return Err(refused(&error, TOOLS)) };
                let found = self.unsupported(context, &tools, look).await?;
                if !found.is_empty() {
                    break found;
                }
            };
            tools = Arc::new(found.into_iter().fold((*tools).clone(), |tools, index| tools.relaxed(index)));
        }
    }

    /// The functions that are not strict, and whose schemas are not supported.
    ///
    /// # Errors
    /// 400: that of a strict one is not.
    async fn unsupported(&self, context: ReadContext<'_>, tools: &Tools, look: Look) -> Result<Vec<usize>, FlowError> {
        let mut unsupported = Vec::new();
        for (index, tool) in tools.callable().iter().enumerate() {
            let grammar = Grammar::new(GrammarSpec::JsonSchema { schema: Value::Object(tool.schema()).to_string() });
            let verdict = match look {
                Look::Read => GrammarStore::read(&grammar),
                Look::Compile => examine(context, &grammar).await?,
            };
            let Err(error) = verdict else { continue };
            if tool.strict {
                return Err(refused(&error, &self.tools.schema_path(index)));
            }
            unsupported.push(index);
        }
        Ok(unsupported)
    }

    /// The tool whose arguments cannot be written in the family's notation.
    fn unwritable(&self, error: &ConstraintError) -> Option<(usize, &Tool)> {
        let name = match error {
            ConstraintError::Property { tool, .. }
            | ConstraintError::Value { tool, .. }
            | ConstraintError::Keyword { tool, .. } => tool,
            ConstraintError::TooLarge => return None,
        };
        self.tools.tools.callable().iter().enumerate().find(|(_, tool)| tool.name == *name)
    }

    fn refused(&self, error: &ConstraintError) -> FlowError {
        let path = self.unwritable(error).map(|(index, _)| self.tools.schema_path(index));
        FlowError::field(path.unwrap_or_else(|| TOOLS.to_owned()), error.to_string())
    }
}

/// Compiles a grammar that a field asks for.
///
/// # Errors
/// 400: it is not supported, or over a bound. 429 and 503: it cannot be compiled now.
async fn compiled(context: ReadContext<'_>, spec: GrammarSpec, path: &str) -> Result<HeldGrammar, FlowError> {
    compile(context, spec).await?.map_err(|error| refused(&error, path))
}

/// Compiles a grammar, unless it is here.
async fn compile(context: ReadContext<'_>, spec: GrammarSpec) -> Result<Result<HeldGrammar, GrammarError>, FlowError> {
    let grammar = Arc::new(Grammar::new(spec));
    let store = &context.served().generator()?.grammars;
    if !store.has(&grammar) {
        let _turn = context.served().grammar_turns.take(&context.caller.principal.tenant).await?;
        if let Err(error) = try_out(context, &grammar).await? {
            return Ok(Err(error));
        }
        let (store, compiles) = (store.clone(), grammar.clone());
        let compiled = off_thread(usize::MAX, move || Ok(store.compile(&compiles))).await?;
        return held(grammar, compiled);
    }
    held(grammar.clone(), store.compile(&grammar))
}

fn held(
    grammar: Arc<Grammar>,
    compiled: Result<InUse, GrammarError>,
) -> Result<Result<HeldGrammar, GrammarError>, FlowError> {
    match compiled {
        Err(error) if error.fault == GrammarFault::Busy => Err(FlowError::Overloaded),
        compiled => Ok(compiled.map(|compiled| HeldGrammar::new(grammar, compiled))),
    }
}

/// Finds out whether a grammar can be compiled.
async fn examine(context: ReadContext<'_>, grammar: &Grammar) -> Result<Result<(), GrammarError>, FlowError> {
    let served = context.served();
    if let Some(verdict) = served.generator()?.grammars.verdict(grammar) {
        return Ok(verdict);
    }
    let _turn = served.grammar_turns.take(&context.caller.principal.tenant).await?;
    try_out(context, grammar).await
}

/// Has a grammar compiled where that may take all time and memory, unless somebody has lately. The tenant has its turn.
async fn try_out(context: ReadContext<'_>, grammar: &Grammar) -> Result<Result<(), GrammarError>, FlowError> {
    if let Err(error) = grammar.spec().check_size() {
        return Ok(Err(error));
    }
    let store = &context.served().generator()?.grammars;
    if let Some(verdict) = store.verdict(grammar) {
        return Ok(verdict);
    }
    let verdict = match context.try_grammar(grammar).await {
        Ok(()) => Ok(()),
        Err(FlowError::Read(ReadError::Grammar(error))) if error.fault != GrammarFault::Busy => Err(error),
        Err(FlowError::Read(ReadError::Grammar(_))) => return Err(FlowError::Overloaded),
        // Others took the time that it did not have.
        Err(FlowError::Read(ReadError::Ended(_, Bound::Wait))) => return Err(ReadError::GrammarsBusy.into()),
        Err(FlowError::Read(error @ ReadError::Ended(..))) => Err(GrammarError::too_large(error.to_string())),
        Err(error) => return Err(error),
    };
    store.judge(grammar, &verdict);
    Ok(verdict)
}

fn refused(error: &GrammarError, path: &str) -> FlowError {
    let place = error.place(path);
    FlowError::field(place.clone(), format!("{place}: {}", error.reason))
}

/// Estimated copies of a grammar's text, and of its tools' schemas, in memory.
const COPIES: usize = 4;

/// What an answer's text must look like: the grammar that it follows, and what takes it apart.
#[derive(Debug, Clone, Default)]
pub(crate) struct AnswerForm {
    /// `None`: it may be anything.
    pub(crate) grammar: Option<HeldGrammar>,
    /// `None`: all of it is content.
    pub(crate) parts: Option<Parts>,
    /// Control tokens that are part of the text.
    pub(crate) shown: Arc<[ShownToken]>,
    /// Tokens that end it, besides the model's.
    pub(crate) stops: Vec<Token>,
    /// How much of it may be thinking.
    pub(crate) thinking_budget: Option<ThinkingBudget>,
}

/// A grammar that is compiled as long as the request lives, so that its worker need not.
#[derive(Debug, Clone)]
pub(crate) struct HeldGrammar {
    pub(crate) grammar: Arc<Grammar>,
    _compiled: InUse,
}

impl HeldGrammar {
    pub(crate) fn new(grammar: Arc<Grammar>, compiled: InUse) -> Self {
        Self { grammar, _compiled: compiled }
    }
}

/// What an answer may be made of.
#[derive(Debug, Clone)]
pub(crate) struct Parts {
    pub(crate) family: &'static Family,
    pub(crate) tools: Arc<Tools>,
    pub(crate) form: ContentForm,
    pub(crate) thinking: ThinkingState,
}

impl Parts {
    pub(crate) fn parser(&self) -> Parser {
        Parser::new(self.family, self.tools.clone(), self.form, self.thinking)
    }
}

impl AnswerForm {
    /// What it takes in memory.
    pub(crate) fn held_bytes(&self) -> usize {
        self.grammar.as_ref().map_or(0, |held| held.grammar.spec().text_bytes().saturating_mul(COPIES))
    }
}
