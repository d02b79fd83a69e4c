//! A checked generation request, and the context in which a request is read for its model: the server's bounds, the caller, and who waits.
use std::sync::Arc;

use camshaft_core::engine::Encoded;
use camshaft_core::grammar::Grammar;
use camshaft_core::ids::Token;
use camshaft_core::limits;
use camshaft_core::policy::{self, Target};
use camshaft_core::vocabulary::Vocabulary;
use camshaft_reader::{Answer, Asker, Chat, ReadError, Rendered, Task, Texts};

use crate::flow::adapters::{self, Adapter, ChosenAdapters};
use crate::flow::api::{Api, ApiLimits, Caller, Found};
use crate::flow::budget::{self, TOKEN_BYTES};
use crate::flow::catalog::Served;
use crate::flow::constrain::AnswerForm;
use crate::flow::error::{FlowError, TokenCount, readable};
use crate::wire::settings::{Bounds, GenerationSettings, Truncate};
use crate::wire::types::generation::{GenerationFields, LoraEntry};

/// What a choice takes besides its text: its parameters and its channel.
const CHOICE_BYTES: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Chat,
    Completion,
}

/// A checked request, ready to be submitted.
#[derive(Debug)]
pub(crate) struct GenerationRequest {
    pub(crate) endpoint: Endpoint,
    pub(crate) served: Arc<Served>,
    /// The model's.
    pub(crate) vocabulary: Arc<Vocabulary>,
    /// At least one.
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) settings: GenerationSettings,
    pub(crate) adapters: ChosenAdapters,
    /// What the answers must look like.
    pub(crate) form: AnswerForm,
    /// Number of alternatives to report per token; `None`: no log-probabilities.
    pub(crate) logprobs: Option<u32>,
    /// Report the log-probabilities of the prompts' tokens, too.
    pub(crate) scores_prompts: bool,
}

#[derive(Debug)]
pub(crate) struct Prompt {
    /// At least one token, and at least one less than the context.
    pub(crate) tokens: Arc<[Token]>,
    /// Maximum number of tokens that each choice may generate within the context.
    pub(crate) max_tokens: u32,
    /// The prompt's text if the response echoes it, otherwise empty.
    pub(crate) echo: String,
}

impl Endpoint {
    /// The name that validators see.
    pub(crate) fn for_policies(self) -> policy::Endpoint {
        match self {
            Endpoint::Chat => policy::Endpoint::Chat,
            Endpoint::Completion => policy::Endpoint::Completion,
        }
    }
}

impl GenerationRequest {
    /// # Errors
    /// 400 if prompts and `n` together make too many choices.
    pub(crate) fn check_choices(self) -> Result<Self, FlowError> {
        let choices = self.prompts.len() as f64 * f64::from(self.settings.best_of);
        if limits::CHOICES.contains(choices) {
            return Ok(self);
        }
        let max = limits::CHOICES.max;
        let name = if self.settings.best_of > self.settings.n { "best_of" } else { "n" };
        Err(FlowError::field(name, format!("prompts times {name} must be at most {max} choices, got {choices}")))
    }

    /// The model's name, as the client has it.
    pub(crate) fn model_name(&self) -> &str {
        self.adapters.name.as_deref().unwrap_or(&self.served.model.id)
    }

    /// The prompts of all choices that are generated, those of a prompt one after the other.
    pub(crate) fn choices(&self) -> impl Iterator<Item = &Prompt> {
        self.prompts.iter().flat_map(|prompt| std::iter::repeat_n(prompt, self.settings.best_of as usize))
    }

    /// Whether more choices are generated than answered.
    pub(crate) fn chooses(&self) -> bool {
        self.settings.best_of > self.settings.n
    }

    /// Number of alternatives that the worker reports per token.
    pub(crate) fn told_logprobs(&self) -> Option<u32> {
        self.logprobs.or(self.chooses().then_some(0))
    }

    /// Log-probabilities of a prompt that come before those of what is generated.
    pub(crate) fn scored(&self, prompt: &Prompt) -> usize {
        if self.scores_prompts { prompt.tokens.len() - 1 } else { 0 }
    }

    /// Upper bound of the tokens that the request uses, prompts and output together.
    pub(crate) fn max_total_tokens(&self) -> u64 {
        self.prompt_tokens() + self.choices().map(|prompt| u64::from(prompt.max_tokens)).sum::<u64>()
    }

    /// What the request takes in memory until it ends, besides the text that it generates.
    pub(crate) fn held_bytes(&self) -> usize {
        let of_choice = |prompt: &Prompt| {
            let kept = self.told_logprobs().filter(|_| !self.settings.stream);
            let tokens = self.scored(prompt).saturating_add(prompt.max_tokens as usize);
            let logprobs = kept.map_or(0, |count| budget::logprob_bytes(tokens, count));
            CHOICE_BYTES.saturating_add(budget::text_bytes(prompt.echo.len())).saturating_add(logprobs)
        };
        let tokens = self.prompt_tokens() as usize * TOKEN_BYTES;
        self.choices().map(of_choice).fold(tokens.saturating_add(self.form.held_bytes()), usize::saturating_add)
    }

    /// Length of all prompts together. A prompt with several choices counts once.
    pub(crate) fn prompt_tokens(&self) -> u64 {
        self.prompts.iter().map(|prompt| prompt.tokens.len() as u64).sum()
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadContext<'a> {
    pub(crate) api: &'a Api,
    pub(crate) caller: &'a Caller,
    pub(crate) found: &'a Found,
    /// Of the body, and of what was added to it.
    pub(crate) bytes: usize,
}

impl<'a> ReadContext<'a> {
    /// The model.
    pub(crate) fn served(&self) -> &'a Arc<Served> {
        &self.found.served
    }

    /// The prompt of a chat.
    ///
    /// # Errors
    /// 400: the template refuses the messages, or fails on them. 503: nobody can read it now.
    pub(crate) async fn chat(&self, chat: Chat) -> Result<Rendered, FlowError> {
        match self.read(Task::Chat(Box::new(chat))).await? {
            Answer::Chat(rendered) => Ok(rendered),
            _ => Err(another_answer()),
        }
    }

    /// The tokens of texts, one list for each.
    ///
    /// # Errors
    /// 503: nobody can read them now.
    pub(crate) async fn encode(&self, texts: Texts) -> Result<Vec<Encoded>, FlowError> {
        let count = texts.texts.len();
        if count == 0 {
            return Ok(Vec::new());
        }
        match self.read(Task::Texts(texts)).await? {
            Answer::Texts(encoded) if encoded.len() == count => Ok(encoded),
            _ => Err(another_answer()),
        }
    }

    /// The tokens of prompts, with what the model expects around each. Of one that has more than [`readable`] of `most`, about as many.
    ///
    /// # Errors
    /// As [`ReadContext::encode`].
    pub(crate) async fn tokenize(
        &self,
        (texts, parse_special): (Vec<String>, bool),
        most: u32,
    ) -> Result<Vec<Vec<Token>>, FlowError> {
        let texts = Texts { texts, add_special: true, parse_special, offsets: false, most: readable(most) };
        Ok(self.encode(texts).await?.into_iter().map(|encoded| encoded.tokens).collect())
    }

    /// Finds out whether a grammar can be compiled.
    ///
    /// # Errors
    /// It cannot, or nobody can find out now.
    pub(crate) async fn try_grammar(&self, grammar: &Grammar) -> Result<(), FlowError> {
        self.read(Task::Grammar(Box::new(grammar.clone()))).await.map(drop)
    }

    async fn read(&self, task: Task) -> Result<Answer, FlowError> {
        let asker = Asker { tenant: &self.caller.principal.tenant, bytes: self.bytes };
        Ok(self.served().text()?.reader.read(asker, task).await?)
    }

    /// A request with all but its prompts and what its answers look like. `echo`: it may be about its prompt alone.
    ///
    /// # Errors
    /// 400 or 403: the model does not generate, a parameter is out of the server's bounds, or an adapter is not to be had.
    pub(crate) fn begin(
        &self,
        fields: &GenerationFields,
        endpoint: Endpoint,
        echo: bool,
    ) -> Result<GenerationRequest, FlowError> {
        let served = self.served().clone();
        served.pool()?;
        Ok(GenerationRequest {
            endpoint,
            adapters: adapters(self.caller, self.found, fields.lora.as_deref(), fields.model.as_deref())?,
            settings: self.settings(fields, endpoint, echo)?,
            vocabulary: served.text()?.info.vocabulary.clone(),
            served,
            prompts: Vec::new(),
            form: AnswerForm::default(),
            logprobs: None,
            scores_prompts: false,
        })
    }

    fn settings(
        &self,
        fields: &GenerationFields,
        endpoint: Endpoint,
        echo: bool,
    ) -> Result<GenerationSettings, FlowError> {
        let (served, Caller { principal, policies, .. }) = (self.served(), self.caller);
        let target = Target { tenant: &principal.tenant, model: &served.model.id, endpoint: endpoint.for_policies() };
        let samplers = if fields.samplers.is_some() { policies.samplers(target) } else { Vec::new() };
        let ApiLimits { max_tokens, max_timeout, max_duration, .. } = self.api.limits();
        let (least_tokens, unset_tokens) = match endpoint {
            Endpoint::Chat => (1, max_tokens),
            Endpoint::Completion => (u32::from(!echo), limits::COMPLETION_TOKENS.min(max_tokens)),
        };
        let bounds = Bounds {
            least_tokens,
            max_tokens,
            unset_tokens,
            max_duration,
            max_timeout,
            vocabulary_size: served.text()?.info.vocabulary.size(),
            samplers: &samplers,
            sampling: &served.generator()?.sampling(),
        };
        Ok(GenerationSettings::new(fields, bounds)?)
    }

    /// Tokens up to which a prompt is read: all of one that is cut at its beginning.
    ///
    /// # Errors
    /// 400 for a model that reads no texts.
    pub(crate) fn most_read(&self, settings: &GenerationSettings) -> Result<u32, FlowError> {
        Ok(if settings.truncate.is_some() { u32::MAX } else { self.served().text()?.info.context_tokens })
    }

    /// Checks a prompt against the model's context. `param` is the field that holds the prompt.
    ///
    /// # Errors
    /// 400: it is empty, or leaves no room for an answer.
    pub(crate) fn prompt(
        &self,
        mut tokens: Vec<Token>,
        settings: &GenerationSettings,
        param: &'static str,
    ) -> Result<Prompt, FlowError> {
        if tokens.is_empty() {
            let why = "the prompt has no tokens: it is an empty list, or the model does not begin a text by itself";
            return Err(FlowError::field(param, why));
        }
        let context = self.served().text()?.info.context_tokens;
        let wanted = settings.extent.max_tokens;
        let kept = settings.truncate.map(|truncate| match truncate {
            Truncate::Last(tokens) => tokens,
            Truncate::Context => {
                let output = if settings.extent.max_tokens_set { wanted.max(1) } else { 1 };
                context.saturating_sub(output).max(1)
            }
        });
        if let Some(kept) = kept {
            tokens.drain(..tokens.len().saturating_sub(kept as usize));
        }
        let left = u32::try_from(tokens.len()).ok().and_then(|used| context.checked_sub(used)).unwrap_or(0);
        if left == 0 {
            return Err(FlowError::ContextLength { tokens: TokenCount::of(tokens.len(), context), context, param });
        }
        Ok(Prompt { tokens: tokens.into(), max_tokens: wanted.min(left), echo: String::new() })
    }
}

fn another_answer() -> FlowError {
    ReadError::Lost("it answered something else".to_owned()).into()
}

/// What a request is computed under: the adapter in the model's name, as the client has it, or those in `lora`.
///
/// # Errors
/// 400 if `lora` names an unknown adapter or comes with an adapter in the model's name, 403 for an adapter that the caller may not
/// use.
pub(crate) fn adapters(
    caller: &Caller,
    found: &Found,
    lora: Option<&[LoraEntry]>,
    model: Option<&str>,
) -> Result<ChosenAdapters, FlowError> {
    let (served, wanted) = (&found.served, lora.unwrap_or_default());
    // A validator may have written the model's own name over that.
    let named = found.adapter.as_ref().filter(|_| model != Some(served.model.id.as_str()));
    if let Some(adapter) = named {
        if !wanted.is_empty() {
            return Err(FlowError::field("lora", "lora must be empty where the model's name has an adapter"));
        }
        return Ok(ChosenAdapters::new(vec![(adapter.clone(), adapter.scale)], model.map(str::to_owned)));
    }
    let naming = &served.model.naming;
    let may_use = |adapter: &str| naming.lets_adapt(&caller.principal, adapter);
    let all = served.adapters().map(|adapters| adapters.all()).unwrap_or_default();
    let mut chosen: Vec<(Arc<Adapter>, f32)> = Vec::with_capacity(wanted.len());
    for (index, LoraEntry { id, scale }) in wanted.iter().enumerate() {
        let Some(found) = all.iter().find(|known| known.id == *id) else {
            let known = all.iter().map(|known| &known.id).filter(|known| may_use(known)).cloned().collect();
            let path = format!("lora[{index}].id");
            return Err(FlowError::UnknownAdapter { path, adapter: id.clone(), known });
        };
        if !may_use(id) {
            return Err(FlowError::ModelForbidden(adapters::name(&served.model.id, id)));
        }
        chosen.push((found.clone(), scale.map_or(found.scale, |scale| scale as f32)));
    }
    Ok(ChosenAdapters::new(chosen, None))
}
