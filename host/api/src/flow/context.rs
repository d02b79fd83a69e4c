//! The context in which a body is parsed: the server's models and bounds, and the caller.
use std::sync::Arc;

use camshaft_core::engine::{Encode, ModelKind};
use camshaft_core::ids::Token;
use camshaft_core::limits;
use camshaft_core::policy::Target;

use crate::flow::adapters::{self, ChosenAdapters};
use crate::flow::answers::Answers;
use crate::flow::api::{Api, ApiLimits};
use crate::flow::aside::Aside;
use crate::flow::caller::Caller;
use crate::flow::chosen::Chosen;
use crate::flow::error::{FlowError, TokenCount, readable};
use crate::flow::request::{Endpoint, Prompt};
use crate::flow::served::Served;
use crate::wire::adapters::{self as wire, Wanted, wanted};
use crate::wire::extent::ExtentBounds;
use crate::wire::fields::Fields;
use crate::wire::params::{self, Bounds, GenerationSettings, Truncate};
use crate::wire::types::known::Known;

#[derive(Debug, Clone, Copy)]
pub(crate) struct ParseContext<'a> {
    pub(crate) api: &'a Api,
    pub(crate) caller: &'a Caller,
    /// Whoever waits for what is read.
    pub(crate) aside: &'a Aside,
    pub(crate) answers: &'a Answers,
    pub(crate) chosen: &'a Chosen,
}

impl ParseContext<'_> {
    /// The model that a body asks for.
    ///
    /// # Errors
    /// As [`Api::model_of`].
    pub(crate) fn model(&self, fields: &Fields<'_>) -> Result<Arc<Served>, FlowError> {
        self.chosen.note_timeout(params::timeout(fields, self.api.limits().max_timeout));
        self.chosen.of(fields.text("model")?, || self.api.model_of(fields, self.caller))
    }

    /// The model that a body asks for, and no other in its place.
    ///
    /// # Errors
    /// As [`Api::model_of`].
    pub(crate) fn model_itself(&self, fields: &Fields<'_>) -> Result<Arc<Served>, FlowError> {
        self.chosen.note_timeout(params::timeout(fields, self.api.limits().max_timeout));
        self.chosen.of(fields.text("model")?, || self.api.model_itself(fields, self.caller))
    }

    /// What a request is computed under: the adapter in the name of `served`, the model that the body asks for, or those in `lora`.
    ///
    /// # Errors
    /// 400 if `lora` is wrong, names an unknown adapter or comes with an adapter in the model's name, 403 for an adapter that the
    /// caller may not use.
    pub(crate) fn adapters(&self, fields: &Fields<'_>, served: &Served) -> Result<ChosenAdapters, FlowError> {
        let wanted = wanted(fields)?;
        if let Some(adapter) = self.chosen.adapter() {
            if !wanted.is_empty() {
                return Err(FlowError::field("lora", "lora must be empty where the model's name has an adapter"));
            }
            let (scale, name) = (adapter.scale, fields.text("model")?.map(str::to_owned));
            return Ok(ChosenAdapters::new(vec![(adapter, scale)], name));
        }
        let naming = &served.model.naming;
        let may_use = |adapter: &str| naming.lets_adapt(&self.caller.principal, adapter);
        let all = served.adapters().map(|adapters| adapters.all()).unwrap_or_default();
        let mut chosen = Vec::with_capacity(wanted.len());
        for (index, Wanted { id, scale }) in wanted.into_iter().enumerate() {
            let Some(found) = all.iter().find(|known| known.id == id) else {
                let known = all.iter().map(|known| &known.id).filter(|known| may_use(known)).cloned().collect();
                return Err(FlowError::UnknownAdapter { path: wire::path(index), adapter: id.to_owned(), known });
            };
            if !may_use(id) {
                return Err(FlowError::ModelForbidden(adapters::name(&served.model.id, id)));
            }
            chosen.push((found.clone(), scale.unwrap_or(found.scale)));
        }
        Ok(ChosenAdapters::new(chosen, None))
    }

    /// The model of this name, or the only one of this kind.
    ///
    /// # Errors
    /// As [`Api::model_of_kind`].
    pub(crate) fn model_of_kind(&self, name: Option<&str>, kind: ModelKind) -> Result<Arc<Served>, FlowError> {
        self.chosen.of(name, || self.api.model_of_kind(name, kind, self.caller))
    }

    /// Notes which fields of a body nobody knows.
    pub(crate) fn known(&self, fields: &Fields<'_>, known: &Known) {
        self.chosen.note_unknown(fields.names().filter(|name| !known.contains(name)));
    }

    /// Asks before each long piece of work whether anybody still waits for it.
    ///
    /// # Errors
    /// The client has left. Nobody reads the error.
    pub(crate) fn check(&self) -> Result<(), FlowError> {
        match self.aside.is_abandoned() {
            true => Err(FlowError::Cancelled),
            false => Ok(()),
        }
    }

    /// The tokens of a text, as long as somebody waits for them. Of one that has more than [`readable`] of `most`, about as many.
    ///
    /// # Errors
    /// The client has left.
    pub(crate) fn tokenize(
        &self,
        served: &Served,
        (text, parse_special): (&str, bool),
        most: u32,
    ) -> Result<Vec<Token>, FlowError> {
        let (abandoned, most) = (Some(self.aside.abandoned()), readable(most));
        let encode = Encode { add_special: true, parse_special, abandoned, most, ..Encode::of(text) };
        served.text()?.tokenizer.encode(encode).map(|encoded| encoded.tokens).ok_or(FlowError::Cancelled)
    }

    /// Reads the parameters that both generation endpoints share.
    ///
    /// # Errors
    /// 400 for a parameter that is out of range or has a wrong type.
    pub(crate) fn settings(
        &self,
        fields: &Fields<'_>,
        served: &Served,
        endpoint: Endpoint,
    ) -> Result<GenerationSettings, FlowError> {
        let Caller { principal, policies, .. } = self.caller;
        let target = Target { tenant: &principal.tenant, model: &served.model.id, endpoint: endpoint.for_policies() };
        let samplers = if fields.get("samplers").is_some() { policies.samplers(target) } else { Vec::new() };
        let vocabulary_size = served.text()?.info.vocabulary.size();
        let ApiLimits { max_tokens, max_timeout, max_duration, .. } = self.api.limits();
        let (least_tokens, unset_tokens) = match endpoint {
            Endpoint::Chat => (1, max_tokens),
            // One that echoes its prompt may be about the prompt alone.
            Endpoint::Completion => {
                (u32::from(!fields.flag("echo")?.unwrap_or(false)), limits::COMPLETION_TOKENS.min(max_tokens))
            }
        };
        let extent = ExtentBounds { least_tokens, max_tokens, unset_tokens, max_duration };
        let sampling = &served.generator()?.sampling();
        Ok(GenerationSettings::read(
            fields,
            Bounds { extent, max_timeout, vocabulary_size, samplers: &samplers, sampling },
        )?)
    }

    /// Tokens up to which a prompt is read: all of one that is cut at its beginning.
    pub(crate) fn most_read(&self, settings: &GenerationSettings, context: u32) -> u32 {
        if settings.truncate.is_some() { u32::MAX } else { context }
    }

    /// Checks a prompt against the model's context. `param` is the field that holds the prompt.
    pub(crate) fn prompt(
        &self,
        mut tokens: Vec<Token>,
        served: &Served,
        settings: &GenerationSettings,
        param: &'static str,
    ) -> Result<Prompt, FlowError> {
        if tokens.is_empty() {
            let why = "the prompt has no tokens: it is an empty list, or the model does not begin a text by itself";
            return Err(FlowError::field(param, why));
        }
        let context = served.text()?.info.context_tokens;
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
