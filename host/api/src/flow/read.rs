//! Reads chats and completions for their model.
use std::borrow::Cow;

use camshaft_core::family::description::ThinkingState;
use camshaft_core::ids::Token;
use camshaft_core::vocabulary::Vocabulary;
use camshaft_reader::{Chat, Ending, Rendered};
use camshaft_template::Written;
use serde_json::{Map, Value};

use crate::flow::constrain;
use crate::flow::error::{FlowError, readable};
use crate::flow::generate::Generates;
use crate::flow::request::{Endpoint, GenerationRequest, ReadContext};
use crate::wire::error::RequestError;
use crate::wire::messages;
use crate::wire::tools::WantedTools;
use crate::wire::types::chat::ChatRequest;
use crate::wire::types::completions::CompletionRequest;
use crate::wire::types::generation::GenerationFields;
use crate::wire::types::values::{Input, Whole};
use crate::wire::{format, settings};

/// The field that holds the prompt.
pub(crate) const MESSAGES: &str = "messages";

impl Generates for ChatRequest {
    fn fields(&self) -> &GenerationFields {
        &self.generation
    }

    fn has_ids(&self) -> bool {
        false
    }

    async fn generation(&self, context: ReadContext<'_>) -> Result<GenerationRequest, FlowError> {
        let (served, mut request) = (context.served(), context.begin(&self.generation, Endpoint::Chat, false)?);
        let format = format::read(&self.generation)?;
        let most = context.most_read(&request.settings)?;
        let ChatPrompt { rendered, tools, ending } = render(context, self, most, false).await?;
        let Rendered { tokens, text: rendered } = rendered;
        request.prompts.push(context.prompt(tokens, &request.settings, MESSAGES)?);
        let thinking = match ending {
            Ending::Open => ThinkingState::Off,
            Ending::Next | Ending::Last => {
                let held = format.is_some() || !tools.tools.callable().is_empty();
                served.notation()?.thinking_after(&rendered, held)
            }
        };
        request.form = constrain::chat(context, (&tools, format), thinking).await?;
        request.form.thinking_budget =
            self.thinking_tokens().and_then(|tokens| served.notation().ok()?.budget(tokens, thinking));
        let top = self.top_logprobs.map_or(0, Whole::get);
        request.logprobs = self.logprobs.unwrap_or(false).then_some(top);
        if request.logprobs.is_none() && top > 0 {
            return Err(
                RequestError::field("top_logprobs", "top_logprobs is only allowed when logprobs is true").into()
            );
        }
        request.check_choices()
    }
}

/// The prompt of a chat, and what its answer depends on.
#[derive(Debug)]
pub(crate) struct ChatPrompt {
    pub(crate) rendered: Rendered,
    tools: WantedTools,
    ending: Ending,
}

/// The prompt of a chat, for every endpoint that reads one; of one that has many more tokens than `most`, only about as many.
/// `whole_text`: of the prompt, not only its end.
///
/// # Errors
/// 400: a message or a tool is not supported, or the template refuses them.
pub(crate) async fn render(
    context: ReadContext<'_>,
    request: &ChatRequest,
    most: u32,
    whole_text: bool,
) -> Result<ChatPrompt, FlowError> {
    let served = context.served();
    let messages = messages::read(request)?;
    let tools = WantedTools::read(request)?;
    let ending = messages::ending(request, &messages)?;
    let variables = variables(request).into_owned();
    let (template, family) = (served.template()?, served.notation()?.family);
    let Written { messages, tools: shown, has_tools } = template.write(messages, &tools.shown, &tools.tools, family);
    let most = readable(most);
    let chat = Chat { messages, tools: shown, variables, has_tools, ending, most, whole_text };
    Ok(ChatPrompt { rendered: context.chat(chat).await?, tools, ending })
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

const PROMPT: &str = "prompt";
const SUFFIX: &str = "suffix";

impl Generates for CompletionRequest {
    fn fields(&self) -> &GenerationFields {
        &self.generation
    }

    fn has_ids(&self) -> bool {
        self.prompt.as_ref().is_some_and(|prompt| prompt.has_ids())
    }

    async fn generation(&self, context: ReadContext<'_>) -> Result<GenerationRequest, FlowError> {
        let echo = self.echo.unwrap_or(false);
        let mut request = context.begin(&self.generation, Endpoint::Completion, echo)?;
        request.form = constrain::text(context, format::read(&self.generation)?).await?;
        // The spelling of a control token stays text, because a prompt may contain text of third parties. A client that
        // wants control tokens sends token ids.
        let parse_special = self.parse_special.unwrap_or(false);
        let vocabulary = request.vocabulary.clone();
        let gap = suffix(context, self).await?;
        let most = context.most_read(&request.settings)?;
        let inputs: Vec<_> = self.prompt.iter().flat_map(|prompt| inputs(prompt, PROMPT)).collect();
        let mut read = context.tokenize((texts_of(&inputs), parse_special), most).await?.into_iter();
        for (_, input) in inputs {
            let (mut tokens, text) = match input {
                OneInput::Text(text) => (read.next().unwrap_or_default(), Some(text)),
                OneInput::Tokens(ids, path) => (settings::tokens(ids, &path, vocabulary.size())?, None),
            };
            if let Some(gap) = &gap {
                tokens = gap.around(tokens);
            }
            let all = tokens.len();
            let mut prompt = context.prompt(tokens, &request.settings, PROMPT)?;
            if echo {
                // What was cut off is no part of it.
                let text = text.filter(|_| prompt.tokens.len() == all).map(str::to_owned);
                prompt.echo = text.unwrap_or_else(|| text_of(&vocabulary, &prompt.tokens));
            }
            request.prompts.push(prompt);
        }
        request.logprobs = self.logprobs.map(Whole::get);
        request.scores_prompts = echo && request.logprobs.is_some();
        request.check_choices()
    }
}

/// A text or a list of token ids.
#[derive(Debug, Clone)]
pub(crate) enum OneInput<'a> {
    Text(&'a str),
    /// With their path in the body.
    Tokens(&'a [u32], String),
}

/// The texts and lists of ids of the field `name`, each with its path in the body.
pub(crate) fn inputs<'a>(input: &'a Input, name: &str) -> Vec<(String, OneInput<'a>)> {
    let path = |i: usize| format!("{name}[{i}]");
    let ids = |ids: &'a [u32], path: String| (path.clone(), OneInput::Tokens(ids, path));
    match input {
        Input::Text(text) => vec![(name.to_owned(), OneInput::Text(text))],
        Input::Tokens(list) => vec![ids(list, name.to_owned())],
        Input::Texts(texts) => texts.iter().enumerate().map(|(i, text)| (path(i), OneInput::Text(text))).collect(),
        Input::TokenLists(lists) => lists.iter().enumerate().map(|(i, list)| ids(list, path(i))).collect(),
    }
}

/// The texts among them.
pub(crate) fn texts_of(inputs: &[(String, OneInput<'_>)]) -> Vec<String> {
    let text = |(_, input): &(String, OneInput<'_>)| match input {
        OneInput::Text(text) => Some((*text).to_owned()),
        OneInput::Tokens(..) => None,
    };
    inputs.iter().filter_map(text).collect()
}

/// The text of tokens. Replaces bytes that are not UTF-8.
pub(crate) fn text_of(vocabulary: &Vocabulary, tokens: &[Token]) -> String {
    let bytes: Vec<u8> =
        tokens.iter().flat_map(|&token| vocabulary.token_bytes(token).unwrap_or_default()).copied().collect();
    String::from_utf8_lossy(&bytes).into_owned()
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

/// What comes behind the gap.
///
/// # Errors
/// 400 for a model without tokens for a gap, and beside fields that speak of the prompt as one text.
async fn suffix(context: ReadContext<'_>, request: &CompletionRequest) -> Result<Option<Gap>, FlowError> {
    let Some(text) = request.suffix.as_ref().filter(|text| !text.is_empty()) else { return Ok(None) };
    let info = &context.served().text()?.info;
    let Some(infill) = info.infill else {
        let message = "suffix is not supported by this model: its vocabulary has no tokens for a gap in a text";
        return Err(FlowError::field(SUFFIX, message));
    };
    let beside = [
        ("echo", request.echo == Some(true)),
        ("truncate_prompt_tokens", request.generation.truncate_prompt_tokens.is_some()),
    ];
    if let Some((name, _)) = beside.into_iter().find(|(_, is_set)| *is_set) {
        return Err(RequestError::field(SUFFIX, format!("suffix may not be set together with {name}")).into());
    }
    let texts = vec![String::new(), text.clone()];
    let mut read = context.tokenize((texts, false), info.context_tokens).await?.into_iter();
    let (mut begin, after) = (read.next().unwrap_or_default(), read.next().unwrap_or_default());
    let own = begin.len();
    begin.push(infill.prefix);
    let after = after.strip_prefix(&begin[..own]).unwrap_or(&after);
    let end = [&[infill.suffix][..], after, &[infill.middle]].concat();
    Ok(Some(Gap { begin, own, end }))
}
