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
use crate::wire::messages::{self, Conversation, Ending};
use crate::wire::types::known;

/// The field that holds the prompt.
pub(crate) const MESSAGES: &str = "messages";

/// # Errors
/// 400, 403 or 404: the body is malformed, or names a model that is unknown or not allowed.
pub(crate) fn parse(context: ParseContext<'_>, body: &Body) -> Result<GenerationRequest, FlowError> {
    let fields = body.fields();
    context.known(&fields, &known::CHAT);
    let served = &context.model(&fields)?;
    served.pool()?;
    let adapters = context.adapters(&fields, served)?;
    let settings = context.settings(&fields, served, Endpoint::Chat)?;
    let logprobs = logprobs(&fields)?;
    let text = served.text()?;
    let most = context.most_read(&settings, text.info.context_tokens);
    let Rendered { tokens, .. } = render(context, &fields, served, most)?;
    let prompt = context.prompt(tokens, served, &settings, MESSAGES)?;
    let (served, vocabulary) = (served.clone(), text.info.vocabulary.clone());
    GenerationRequest {
        endpoint: Endpoint::Chat,
        served,
        vocabulary,
        prompts: vec![prompt],
        settings,
        adapters,
        logprobs,
        scores_prompts: false,
    }
    .check_choices()
}

/// The prompt of a chat, for every endpoint that reads one; of one that has many more tokens than `most`, only about as many.
///
/// # Errors
/// 400: the messages are malformed, or the template refuses them.
pub(crate) fn render(
    context: ParseContext<'_>,
    fields: &Fields<'_>,
    served: &Served,
    most: u32,
) -> Result<Rendered, FlowError> {
    let messages = messages::read(fields)?;
    let no_variables = Map::new();
    let variables = fields.object("chat_template_kwargs")?.unwrap_or(&no_variables);
    let ending = Ending::read(fields, &messages)?;
    context.check()?;
    let conversation = Conversation { messages: &messages, variables, ending };
    prompt::render(served.text()?, served.template()?, conversation, most, context.aside)
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
