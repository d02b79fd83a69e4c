//! Parses the body of a chat request.
use camshaft_core::limits;
use serde_json::Map;

use crate::flow::context::ParseContext;
use crate::flow::error::FlowError;
use crate::flow::prompt::{self, Rendered};
use crate::flow::request::{Endpoint, GenerationRequest};
use crate::flow::served::Served;
use crate::wire::fields::Fields;
use crate::wire::json::Body;
use crate::wire::messages;

/// The field that holds the prompt.
pub(crate) const MESSAGES: &str = "messages";

/// # Errors
/// 400, 403 or 404: the body is malformed, or names a model that is unknown or not allowed.
pub(crate) fn parse(context: ParseContext<'_>, body: &Body) -> Result<GenerationRequest, FlowError> {
    let fields = body.fields();
    let served = &context.model(&fields)?;
    served.pool()?;
    let adapters = context.adapters(&fields, served)?;
    let settings = context.settings(&fields, served, Endpoint::Chat)?;
    let logprobs = logprobs(&fields)?;
    let Rendered { tokens, .. } = render(context, &fields, served)?;
    let prompt = context.prompt(tokens, served, &settings, MESSAGES)?;
    let (served, vocabulary) = (served.clone(), served.text()?.info.vocabulary.clone());
    GenerationRequest {
        endpoint: Endpoint::Chat,
        served,
        vocabulary,
        prompts: vec![prompt],
        settings,
        adapters,
        logprobs,
    }
    .check_choices()
}

/// The prompt of a chat, for every endpoint that reads one.
///
/// # Errors
/// 400: the messages are malformed, or the template refuses them.
pub(crate) fn render(context: ParseContext<'_>, fields: &Fields<'_>, served: &Served) -> Result<Rendered, FlowError> {
    let messages = messages::read(fields)?;
    let no_variables = Map::new();
    let variables = fields.object("chat_template_kwargs")?.unwrap_or(&no_variables);
    context.check()?;
    prompt::render(served.text()?, served.template()?, &messages, variables, context.aside)
}

/// `logprobs` enables them; `top_logprobs` is the number of alternatives per token.
fn logprobs(fields: &Fields<'_>) -> Result<Option<u32>, FlowError> {
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", limits::TOP_LOGPROBS)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(FlowError::field("top_logprobs", "top_logprobs is only allowed when logprobs is true")),
    }
}
