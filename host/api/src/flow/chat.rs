//! Reads a chat for its model.
use std::borrow::Cow;

use camshaft_core::family::description::ThinkingState;
use camshaft_template::Conversation;
use serde_json::{Map, Value};

use crate::flow::constrain;
use crate::flow::context::{self, ReadContext};
use crate::flow::error::FlowError;
use crate::flow::prompt::{self, Rendered};
use crate::flow::request::{Endpoint, GenerationRequest};
use crate::wire::error::RequestError;
use crate::wire::format;
use crate::wire::messages::{self, Ending};
use crate::wire::tools::WantedTools;
use crate::wire::types::chat::ChatRequest;
use crate::wire::types::values::Whole;

/// The field that holds the prompt.
pub(crate) const MESSAGES: &str = "messages";

/// # Errors
/// 400 or 403: the model cannot do what is asked, or the caller may not.
pub(crate) fn read(context: ReadContext<'_>, request: &ChatRequest) -> Result<GenerationRequest, FlowError> {
    let (served, fields) = (context.served(), &request.generation);
    served.pool()?;
    let adapters = context::adapters(context.caller, context.found, fields.lora.as_deref(), fields.model.as_deref())?;
    let settings = context.settings(fields, Endpoint::Chat, false)?;
    let format = format::read(fields)?;
    let text = served.text()?;
    let most = context.most_read(&settings, text.info.context_tokens);
    let ChatPrompt { rendered: Rendered { tokens, text: rendered }, tools, ending } = render(context, request, most)?;
    let prompt = context.prompt(tokens, &settings, MESSAGES)?;
    let thinking = match ending {
        Ending::Open => ThinkingState::Off,
        Ending::Next | Ending::Last => {
            let held = format.is_some() || !tools.tools.callable().is_empty();
            served.notation()?.thinking_after(&rendered, held)
        }
    };
    let mut form = constrain::chat(context, (&tools, format), thinking)?;
    form.thinking_budget =
        request.thinking_tokens().and_then(|tokens| served.notation().ok()?.budget(tokens, thinking));
    let (served, vocabulary) = (served.clone(), text.info.vocabulary.clone());
    let top = request.top_logprobs.map_or(0, Whole::get);
    let logprobs = request.logprobs.unwrap_or(false).then_some(top);
    if logprobs.is_none() && top > 0 {
        return Err(RequestError::field("top_logprobs", "top_logprobs is only allowed when logprobs is true").into());
    }
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
/// 400: a message or a tool is not supported, or the template refuses them.
pub(crate) fn render(context: ReadContext<'_>, request: &ChatRequest, most: u32) -> Result<ChatPrompt, FlowError> {
    let served = context.served();
    let messages = messages::read(request)?;
    let tools = WantedTools::read(request)?;
    let ending = Ending::read(request, &messages)?;
    let variables = variables(request);
    context.check()?;
    let (template, family) = (served.template()?, served.notation()?.family);
    let written = template.template.write(messages, &tools.shown, &tools.tools, family);
    let chat = Conversation { messages: &written.messages, tools: &written.tools, variables: &variables };
    let render = |chat: Conversation<'_>| template.render(written.has_tools, chat, context.reading);
    let rendered = prompt::render(served.text()?, (chat, ending), most, context.reading, &render)?;
    Ok(ChatPrompt { rendered, tools, ending })
}

/// Further variables for the chat template: those of `chat_template_kwargs`, and what templates know of `reasoning_effort`.
fn variables(request: &ChatRequest) -> Cow<'_, Map<String, Value>> {
    let mut variables = request.chat_template_kwargs.as_ref().map_or_else(Cow::default, Cow::Borrowed);
    let Some(effort) = request.reasoning_effort else { return variables };
    let effort = effort.for_templates();
    // Templates whose models think or not, know it by one of these names.
    let switches = ["enable_thinking", "thinking"].map(|name| (name, Value::Bool(effort.is_some())));
    for (name, value) in effort.map(|effort| ("reasoning_effort", Value::from(effort))).into_iter().chain(switches) {
        if !variables.contains_key(name) {
            variables.to_mut().insert(name.to_owned(), value);
        }
    }
    variables
}
