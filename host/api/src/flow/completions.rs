//! Parses the body of a plain completion.
use camshaft_core::ids::Token;
use camshaft_core::limits;

use crate::flow::constrain;
use crate::flow::context::ParseContext;
use crate::flow::error::FlowError;
use crate::flow::request::{Endpoint, GenerationRequest};
use crate::flow::served::Served;
use crate::wire::fields::Fields;
use crate::wire::format;
use crate::wire::input::{self, InputContent};
use crate::wire::json::Body;
use crate::wire::tokens;
use crate::wire::types::known;

const PROMPT: &str = "prompt";
const SUFFIX: &str = "suffix";

/// # Errors
/// 400, 403 or 404: the body is malformed, or names a model that is unknown or not allowed.
pub(crate) fn parse(context: ParseContext<'_>, body: &Body) -> Result<GenerationRequest, FlowError> {
    let fields = body.fields();
    context.known(&fields, &known::COMPLETIONS);
    let served = &context.model(&fields)?;
    served.pool()?;
    let adapters = context.adapters(&fields, served)?;
    let settings = context.settings(&fields, served, Endpoint::Completion)?;
    let logprobs = fields.integer("logprobs", limits::COMPLETION_LOGPROBS)?;
    let form = constrain::text(context, served, format::read(&fields)?)?;
    let echo = fields.flag("echo")?.unwrap_or(false);
    // The spelling of a control token stays text, because a prompt may contain text of third parties. A client that
    // wants control tokens sends token ids.
    let parse_special = fields.flag("parse_special")?.unwrap_or(false);
    let info = &served.text()?.info;
    let gap = suffix(context, &fields, served)?;
    let most = context.most_read(&settings, info.context_tokens);
    let mut prompts = Vec::new();
    for input in input::read(&fields, PROMPT, limits::PROMPTS, &info.vocabulary)? {
        context.check()?;
        let (mut tokens, text) = match input.content {
            InputContent::Text(text) => (context.tokenize(served, (&text, parse_special), most)?, Some(text)),
            InputContent::Tokens(tokens) => (tokens, None),
        };
        if let Some(gap) = &gap {
            tokens = gap.around(tokens);
        }
        let all = tokens.len();
        let mut prompt = context.prompt(tokens, served, &settings, PROMPT)?;
        if echo {
            // What was cut off is no part of it.
            let text = text.filter(|_| prompt.tokens.len() == all);
            prompt.echo = text.unwrap_or_else(|| tokens::text(&info.vocabulary, &prompt.tokens));
        }
        prompts.push(prompt);
    }
    let vocabulary = info.vocabulary.clone();
    let (served, scores_prompts) = (served.clone(), echo && logprobs.is_some());
    GenerationRequest {
        endpoint: Endpoint::Completion,
        served,
        vocabulary,
        prompts,
        settings,
        adapters,
        form,
        logprobs,
        scores_prompts,
    }
    .check_choices()
}

/// A text with a gap, which the model fills in: the tokens before its beginning, and all that comes behind it.
struct Gap {
    /// What the vocabulary begins a text with, and the token before the beginning.
    begin: Vec<Token>,
    /// How many of those the vocabulary puts before a text itself.
    own: usize,
    end: Vec<Token>,
}

impl Gap {
    /// The prompt for a text that begins with these tokens.
    fn around(&self, mut tokens: Vec<Token>) -> Vec<Token> {
        // A client that sends tokens says itself what a text begins with.
        let begin = match tokens.starts_with(&self.begin[..self.own]) {
            true => &self.begin[..],
            false => &self.begin[self.own..],
        };
        let text = tokens.split_off((begin.len() + self.own).saturating_sub(self.begin.len()));
        [begin, &text, &self.end].concat()
    }
}

/// Reads `suffix`: what comes behind the gap.
///
/// # Errors
/// 400 for a model without tokens for a gap, and beside fields that speak of the prompt as one text.
fn suffix(context: ParseContext<'_>, fields: &Fields<'_>, served: &Served) -> Result<Option<Gap>, FlowError> {
    let Some(text) = fields.text(SUFFIX)?.filter(|text| !text.is_empty()) else { return Ok(None) };
    let info = &served.text()?.info;
    let Some(infill) = info.infill else {
        let message = "suffix is not supported by this model: its vocabulary has no tokens for a gap in a text";
        return Err(FlowError::field(SUFFIX, message));
    };
    for name in ["echo", "truncate_prompt_tokens"] {
        if fields.get(name).is_some_and(|value| *value != serde_json::Value::Bool(false)) {
            return Err(FlowError::field(SUFFIX, format!("suffix may not be set together with {name}")));
        }
    }
    let mut begin = context.tokenize(served, ("", false), info.context_tokens)?;
    let own = begin.len();
    begin.push(infill.prefix);
    let after = context.tokenize(served, (text, false), info.context_tokens)?;
    let after = after.strip_prefix(&begin[..own]).unwrap_or(&after);
    let end = [&[infill.suffix][..], after, &[infill.middle]].concat();
    Ok(Some(Gap { begin, own, end }))
}
