//! A model that is served, with what requests need to use it. A request holds it until its end: a model that is swapped or
//! unloaded ends when the last request that began with it has.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use camshaft_core::engine::ModelKind;
use crossbeam_channel::Sender;

use crate::flow::adapters::Adapters;
use crate::flow::backend::{Backend, EmbedBackend, GenerateBackend, Model, PoolMessage, PredictBackend, TextModel};
use crate::flow::error::FlowError;
use crate::flow::notation::Notation;
use crate::flow::read_permits::ReadPermits;
use crate::flow::template::ModelTemplate;

#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) model: Model,
    /// Of a model that reads texts. `None`, too, if it does not compile.
    template: Option<ModelTemplate>,
    /// Of a model that generates.
    notation: Option<Notation>,
    /// `system_fingerprint`: changes with the weights and the server's version.
    pub(crate) fingerprint: String,
    asked: AtomicU64,
    /// Of those who read requests for it.
    pub(crate) read_permits: ReadPermits,
}

impl Served {
    /// Compiles the model's chat template, and finds out what it takes.
    pub(crate) fn new(model: Model) -> Arc<Self> {
        let info = model.text().map(|text| &text.info);
        let compile = |info| {
            let compiled = ModelTemplate::compile(&model.id, info);
            let tell =
                |error| tracing::error!(model = model.id, %error, "the chat template does not compile: no chats");
            compiled.map_err(tell).ok()
        };
        let template = info.and_then(compile);
        if model.kind() == ModelKind::Generate && info.is_some_and(|info| info.chat_template.is_none()) {
            tracing::info!(
                model = model.id,
                "the model has no chat template: chats are rendered as `role: content` lines"
            );
        }
        let digest = match &model.backend {
            Backend::Predict(predictor) => predictor.info.sha256.as_deref(),
            _ => info.and_then(|info| info.sha256.as_deref()),
        };
        let weights = digest.and_then(|digest| digest.get(..12)).unwrap_or("unhashed");
        let fingerprint = format!("fp_{weights}_{}", env!("CARGO_PKG_VERSION"));
        let notation = match &model.backend {
            Backend::Generate(generator) => {
                let nine_letter_ids =
                    template.as_ref().is_some_and(|of| of.template.capabilities(true).nine_letter_ids);
                Some(Notation::new(generator.family, &generator.text, nine_letter_ids))
            }
            _ => None,
        };
        if let Some(notation) = &notation {
            notation.tell(&model.id);
        }
        let (asked, read_permits) = (AtomicU64::new(0), ReadPermits::default());
        Arc::new(Self { model, template, notation, fingerprint, asked, read_permits })
    }

    /// For a request, which holds it from now on.
    pub(crate) fn ask(self: &Arc<Self>) -> Arc<Self> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.clone()
    }

    /// How often requests have asked for it.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// The channel to the pool of a model that generates.
    ///
    /// # Errors
    /// 400 for a model of another kind.
    pub(crate) fn pool(&self) -> Result<&Sender<PoolMessage>, FlowError> {
        Ok(&self.generator()?.pool)
    }

    /// # Errors
    /// 400 for a model of another kind.
    pub(crate) fn generator(&self) -> Result<&GenerateBackend, FlowError> {
        match &self.model.backend {
            Backend::Generate(generator) => Ok(generator),
            _ => Err(self.is_not(ModelKind::Generate)),
        }
    }

    /// Of a model that generates.
    pub(crate) fn adapters(&self) -> Option<&Arc<Adapters>> {
        match &self.model.backend {
            Backend::Generate(generator) => Some(&generator.adapters),
            _ => None,
        }
    }

    /// # Errors
    /// 400 for a model of another kind.
    pub(crate) fn embedder(&self) -> Result<&EmbedBackend, FlowError> {
        match &self.model.backend {
            Backend::Embed(embedder) => Ok(embedder),
            _ => Err(self.is_not(ModelKind::Embed)),
        }
    }

    /// # Errors
    /// 400 for a model of another kind.
    pub(crate) fn predictor(&self) -> Result<&PredictBackend, FlowError> {
        match &self.model.backend {
            Backend::Predict(predictor) => Ok(predictor),
            _ => Err(self.is_not(ModelKind::Predict)),
        }
    }

    /// # Errors
    /// 400 for a model that reads no texts.
    pub(crate) fn text(&self) -> Result<&TextModel, FlowError> {
        self.model.text().ok_or_else(|| FlowError::NoText(self.model.id.clone()))
    }

    /// # Errors
    /// 400 for a model that reads no texts; 503 if its template does not compile.
    pub(crate) fn template(&self) -> Result<&ModelTemplate, FlowError> {
        self.text()?;
        self.template.as_ref().ok_or_else(|| FlowError::NoTemplate(self.model.id.clone()))
    }

    /// # Errors
    /// 400 for a model of another kind.
    pub(crate) fn notation(&self) -> Result<&Notation, FlowError> {
        self.notation.as_ref().ok_or_else(|| self.is_not(ModelKind::Generate))
    }

    /// An error if nobody computes for the model, or its weights are no more what was loaded.
    pub(crate) fn serves(&self) -> Result<(), FlowError> {
        self.model.health.serves(&self.model.id)
    }

    /// Whether its queue takes more requests.
    pub(crate) fn accepts(&self) -> bool {
        match &self.model.backend {
            Backend::Generate(generator) => generator.accepts.load(Ordering::Relaxed),
            Backend::Embed(embedder) => embedder.jobs.accepts(),
            Backend::Predict(predictor) => predictor.jobs.accepts(),
        }
    }

    fn is_not(&self, wanted: ModelKind) -> FlowError {
        FlowError::WrongKind { model: self.model.id.clone(), kind: self.model.kind(), wanted }
    }
}
