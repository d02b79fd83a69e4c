//! Parses the body of a chat request.
use std::borrow::Cow;

use camshaft_core::family::description::ThinkingState;
use camshaft_core::limits;
use serde_json::{Map, Value};

use crate::flow::constrain;
use crate::flow::context::ParseContext;
use crate::flow::error::FlowError;
use crate::flow::prompt::{self, Rendered};
use crate::flow::request::{Endpoint, GenerationRequest};
use crate::flow::served::Served;
use crate::wire::echo::Shown;
use crate::wire::fields::Fields;
use crate::wire::format;
use crate::wire::json::Body;
use crate::wire::messages::{self, Conversation, Ending};
use crate::wire::tools::WantedTools;
use crate::wire::types::known;

/// The field that holds the prompt.
pub(crate) const MESSAGES: &str = "messages";

/// What `reasoning_effort` may be.
const EFFORTS: [&str; 6] = [NO_EFFORT, "minimal", "low", "medium", "high", "xhigh"];
const NO_EFFORT: &str = "none";

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
    let format = format::read(&fields)?;
    let text = served.text()?;
    let most = context.most_read(&settings, text.info.context_tokens);
    let ChatPrompt { rendered: Rendered { tokens, text: rendered }, tools, ending } =
        render(context, &fields, served, most)?;
    let prompt = context.prompt(tokens, served, &settings, MESSAGES)?;
    let thinking = match ending {
        Ending::Open => ThinkingState::Off,
        Ending::Next | Ending::Last => {
            let held = format.is_some() || !tools.tools.callable().is_empty();
            served.notation()?.thinking_after(&rendered, held)
        }
    };
    let form = constrain::chat(context, served, (&tools, format), thinking)?;
    let (served, vocabulary) = (served.clone(), text.info.vocabulary.clone());
    GenerationRequest {
        endpoint: Endpoint::Chat,
        served,
        vocabulary,
        prompts: vec![prompt],
        settings,
        adapters,
        form,
        logprobs,
        scores_prompts: false,
    }
    .check_choices()
}

/// The prompt of a chat, and what its answer depends on.
#[derive(Debug)]
pub(crate) struct ChatPrompt {
    pub(crate) rendered: Rendered,
    tools: WantedTools,
    ending: Ending,
}

/// The prompt of a chat, for every endpoint that reads one; of one that has many more tokens than `most`, only about as many.
///
/// # Errors
/// 400: the messages or tools are malformed, or the template refuses them.
pub(crate) fn render(
    context: ParseContext<'_>,
    fields: &Fields<'_>,
    served: &Served,
    most: u32,
) -> Result<ChatPrompt, FlowError> {
    let messages = messages::read(fields)?;
    let tools = WantedTools::read(fields)?;
    let variables = variables(fields)?;
    let ending = Ending::read(fields, &messages)?;
    context.check()?;
    let (template, written) = (served.template()?, served.notation()?.written(messages, &tools));
    let conversation =
        Conversation { messages: &written.messages, tools: &written.tools, variables: &variables, ending };
    let rendered = prompt::render(served.text()?, template, conversation, most, context.aside)?;
    Ok(ChatPrompt { rendered, tools, ending })
}

/// Further variables for the chat template: those of `chat_template_kwargs`, and what templates know of `reasoning_effort`.
fn variables<'a>(fields: &Fields<'a>) -> Result<Cow<'a, Map<String, Value>>, FlowError> {
    const EFFORT: &str = "reasoning_effort";
    let mut variables = fields.object("chat_template_kwargs")?.map_or_else(Cow::default, Cow::Borrowed);
    let Some(effort) = fields.text(EFFORT)? else { return Ok(variables) };
    if !EFFORTS.contains(&effort) {
        let message = format!("{EFFORT} must be one of {}, got {:?}", EFFORTS.join(", "), Shown(effort));
        return Err(FlowError::field(EFFORT, message));
    }
    let thinks = effort != NO_EFFORT;
    let effort = thinks.then(|| (EFFORT, Value::from(effort)));
    // Templates whose models think or not, know it by one of these names.
    let switches = ["enable_thinking", "thinking"].map(|name| (name, Value::Bool(thinks)));
    for (name, value) in effort.into_iter().chain(switches) {
        if !variables.contains_key(name) {
            variables.to_mut().insert(name.to_owned(), value);
        }
    }
    Ok(variables)
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
