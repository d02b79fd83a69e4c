//! Parses the body of a plain completion.
use camshaft_core::limits;

use crate::flow::context::ParseContext;
use crate::flow::error::FlowError;
use crate::flow::request::{Endpoint, GenerationRequest};
use crate::wire::input::{self, InputContent};
use crate::wire::json::Body;
use crate::wire::tokens;

const PROMPT: &str = "prompt";

/// # Errors
/// 400, 403 or 404: the body is malformed, or names a model that is unknown or not allowed.
pub(crate) fn parse(context: ParseContext<'_>, body: &Body) -> Result<GenerationRequest, FlowError> {
    let fields = body.fields();
    let served = &context.model(&fields)?;
    served.pool()?;
    let adapters = context.adapters(&fields, served)?;
    let settings = context.settings(&fields, served, Endpoint::Completion)?;
    let logprobs = fields.integer("logprobs", limits::COMPLETION_LOGPROBS)?;
    let echo = fields.flag("echo")?.unwrap_or(false);
    if echo && logprobs.is_some() {
        return Err(FlowError::field("echo", "echo together with logprobs is not supported"));
    }
    // The spelling of a control token stays text, because a prompt may contain text of third parties. A client that
    // wants control tokens sends token ids.
    let parse_special = fields.flag("parse_special")?.unwrap_or(false);
    let info = &served.text()?.info;
    let mut prompts = Vec::new();
    for input in input::read(&fields, PROMPT, limits::PROMPTS, &info.vocabulary)? {
        context.check()?;
        let (tokens, text) = match input.content {
            InputContent::Text(text) => {
                (context.tokenize(served, (&text, parse_special), info.context_tokens)?, Some(text))
            }
            InputContent::Tokens(tokens) => (tokens, None),
        };
        let mut prompt = context.prompt(tokens, served, &settings, PROMPT)?;
        if echo {
            prompt.echo = text.unwrap_or_else(|| tokens::text(&info.vocabulary, &prompt.tokens));
        }
        prompts.push(prompt);
    }
    let vocabulary = info.vocabulary.clone();
    let served = served.clone();
    GenerationRequest { endpoint: Endpoint::Completion, served, vocabulary, prompts, settings, adapters, logprobs }
        .check_choices()
}
