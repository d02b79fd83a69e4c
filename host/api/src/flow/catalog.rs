//! The models that clients can ask for, published as one set: which model a name leads to, and what requests need to use it.
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use camshaft_core::engine::ModelKind;
use camshaft_reader::GrammarTurns;
use camshaft_template::TemplateTraits;
use crossbeam_channel::Sender;

use crate::flow::adapters::Adapters;
use crate::flow::backend::{
    Backend, EmbedBackend, GenerateBackend, Model, Naming, PoolMessage, PredictBackend, TextModel,
};
use crate::flow::error::FlowError;
use crate::flow::notation::Notation;

/// Fallbacks that are followed one after the other.
const MAX_FALLBACKS: usize = 8;

/// A model that clients can ask for.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// How they reach it.
    pub(crate) naming: Naming,
    pub(crate) held: Held,
}

#[derive(Debug, Clone)]
pub(crate) enum Held {
    /// In memory.
    Served(Arc<Served>),
    /// Configured, and not in memory. `kind`: as far as it is known before the model is loaded.
    Absent { kind: Option<ModelKind>, absence: Absence },
}

/// Why a model is not in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Absence {
    /// The next request loads it.
    Asleep,
    Loading,
    /// It could not be loaded, for this reason.
    Failed(String),
}

impl Entry {
    pub(crate) fn id(&self) -> String {
        self.naming.id()
    }

    pub(crate) fn served(&self) -> Option<&Arc<Served>> {
        match &self.held {
            Held::Served(served) => Some(served),
            Held::Absent { .. } => None,
        }
    }

    /// The model, if it is in memory.
    ///
    /// # Errors
    /// Why it is not.
    pub(crate) fn open(&self) -> Result<&Arc<Served>, FlowError> {
        match &self.held {
            Held::Served(served) => Ok(served),
            Held::Absent { absence: Absence::Asleep, .. } => Err(FlowError::Asleep(self.id())),
            Held::Absent { absence: Absence::Loading, .. } => Err(FlowError::ModelLoading(self.id())),
            Held::Absent { absence: Absence::Failed(_), .. } => Err(FlowError::ModelFailed(self.id())),
        }
    }

    pub(crate) fn kind(&self) -> Option<ModelKind> {
        match &self.held {
            Held::Served(served) => Some(served.model.kind()),
            Held::Absent { kind, .. } => *kind,
        }
    }

    /// For those who watch the server.
    pub(crate) fn state(&self) -> &'static str {
        match &self.held {
            Held::Served(served) if !served.model.health.is_healthy() => "unhealthy",
            Held::Served(_) => "ready",
            Held::Absent { absence: Absence::Asleep, .. } => "asleep",
            Held::Absent { absence: Absence::Loading, .. } => "loading",
            Held::Absent { absence: Absence::Failed(_), .. } => "failed",
        }
    }

    /// Requests that have begun with it and not ended.
    pub(crate) fn in_flight(&self) -> usize {
        // The entry itself is one of those who hold it.
        self.served().map_or(0, |served| Arc::strong_count(served).saturating_sub(1))
    }

    /// Whether a request can be computed by it now.
    fn is_open(&self) -> bool {
        self.served().is_some_and(|served| served.serves().is_ok() && served.accepts())
    }

    /// Whether a request that waits will be computed by it.
    pub(crate) fn wakes(&self) -> bool {
        matches!(self.held, Held::Absent { absence: Absence::Asleep, .. })
    }
}

/// What a name leads to.
#[derive(Debug)]
pub(crate) struct Route<'a> {
    pub(crate) entry: &'a Entry,
    /// The model that was meant, where another one stands in for it.
    pub(crate) instead_of: Option<String>,
}

/// All models, in the order in which they were configured or loaded.
#[derive(Debug, Clone, Default)]
pub(crate) struct Catalog {
    entries: Vec<Entry>,
}

impl Catalog {
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// The models in memory.
    pub(crate) fn models(&self) -> impl Iterator<Item = &Model> {
        self.served().map(|served| &served.model)
    }

    pub(crate) fn served(&self) -> impl Iterator<Item = &Arc<Served>> {
        self.entries.iter().filter_map(Entry::served)
    }

    /// The model of this id.
    pub(crate) fn at(&self, id: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.id() == id)
    }

    /// Puts an entry in the place of the one with its id, or at the end. Returns what was there.
    pub(crate) fn put(&mut self, entry: Entry) -> Option<Entry> {
        let id = entry.id();
        match self.entries.iter_mut().find(|old| old.id() == id) {
            Some(old) => Some(std::mem::replace(old, entry)),
            None => {
                self.entries.push(entry);
                None
            }
        }
    }

    /// Changes how the model of this id is reached. Whether there is one.
    pub(crate) fn rename(&mut self, id: &str, naming: &Naming) -> bool {
        let entry = self.entries.iter_mut().find(|entry| entry.id() == id);
        entry.map(|entry| entry.naming.clone_from(naming)).is_some()
    }

    pub(crate) fn remove(&mut self, id: &str) -> Option<Entry> {
        let at = self.entries.iter().position(|entry| entry.id() == id)?;
        Some(self.entries.remove(at))
    }

    /// What another name of a model stands for: its id, the name that its versions share, an alias of either, or a name that one of
    /// its aliases is a pattern of.
    pub(crate) fn named(&self, asked: &str) -> Vec<&Entry> {
        if let Some(entry) = self.at(asked) {
            // Without a version it may be one of several that share the name.
            let shares = |other: &&Entry| other.naming.name == asked;
            return if entry.naming.version.is_some() {
                vec![entry]
            } else {
                self.entries.iter().filter(shares).collect()
            };
        }
        let of_name: Vec<&Entry> = self.entries.iter().filter(|entry| entry.naming.name == asked).collect();
        if !of_name.is_empty() {
            return of_name;
        }
        let of_alias: Vec<&Entry> =
            self.entries.iter().filter(|entry| entry.naming.aliases.iter().any(|alias| alias == asked)).collect();
        if !of_alias.is_empty() {
            return of_alias;
        }
        // Of patterns, the longest one that fits.
        let fits = |entry: &Entry| entry.naming.patterns().filter(|begin| asked.starts_with(begin)).map(str::len).max();
        let Some(longest) = self.entries.iter().filter_map(fits).max() else { return Vec::new() };
        self.entries.iter().filter(|entry| fits(entry) == Some(longest)).collect()
    }

    /// The model whose adapter is asked for: of several versions one that has it, or may have it once it is in memory.
    pub(crate) fn adapted(&self, base: &str, adapter: &str, who: u64) -> Option<&Entry> {
        let mut versions = self.named(base);
        let has = |served: &Arc<Served>| served.adapters().is_some_and(|all| all.find(adapter).is_some());
        versions.retain(|entry| entry.served().is_none_or(has));
        weighted(&versions, who)
    }

    /// The model that `asked` leads to: of several versions the one that the weights give to `who`, the hash of a tenant or a
    /// session; in the place of one that cannot be used now, its fallback, unless a request can wait for it.
    /// `may_use`: whether the caller may use a fallback.
    pub(crate) fn route(&self, asked: &str, who: u64, may_use: impl Fn(&Naming) -> bool) -> Option<Route<'_>> {
        let entry = weighted(&self.named(asked), who)?;
        if entry.is_open() {
            return Some(Route { entry, instead_of: None });
        }
        let mut next = entry;
        for _ in 0..MAX_FALLBACKS {
            let Some(name) = &next.naming.fallback else { break };
            let Some(fallback) = weighted(&self.named(name), who).filter(|to| may_use(&to.naming)) else { break };
            // One that does something else cannot serve what was asked for.
            let of_kind = entry.kind().zip(fallback.kind()).is_none_or(|(asked, found)| asked == found);
            if of_kind && (fallback.is_open() || (fallback.wakes() && !entry.wakes())) {
                return Some(Route { entry: fallback, instead_of: Some(entry.id()) });
            }
            next = fallback;
        }
        Some(Route { entry, instead_of: None })
    }
}

/// The one whose share of the weights `who` falls into. Without any weight, the first.
fn weighted<'a>(entries: &[&'a Entry], who: u64) -> Option<&'a Entry> {
    let weight = |entry: &&Entry| entry.naming.weight.max(0.0);
    let total: f64 = entries.iter().map(weight).sum();
    // 53 bits are what a float holds exactly.
    let mut at = (who >> 11) as f64 / (1u64 << 53) as f64 * total;
    for entry in entries {
        if weight(entry) > 0.0 && at < weight(entry) {
            return Some(entry);
        }
        at -= weight(entry);
    }
    entries.iter().rev().find(|entry| weight(entry) > 0.0).or(entries.first()).copied()
}

/// Whom a split between versions keeps with one of them.
pub(crate) fn who(tenant: &str, session: Option<&str>) -> u64 {
    let mut hasher = DefaultHasher::new();
    match session {
        Some(session) => (tenant, session).hash(&mut hasher),
        None => tenant.hash(&mut hasher),
    }
    hasher.finish()
}

#[cfg(test)]
#[path = "catalog_tests.rs"]
mod tests;

/// A model that is served. A request holds it until its end: a model that is swapped or unloaded ends when the last request that began
/// with it has.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) model: Model,
    /// Of a model that reads texts. `None`, too, if it cannot be used.
    template: Option<TemplateTraits>,
    /// Of a model that generates.
    notation: Option<Notation>,
    /// `system_fingerprint`: changes with the weights and the server's version.
    pub(crate) fingerprint: String,
    asked: AtomicU64,
    /// Whose grammars are compiled.
    pub(crate) grammar_turns: Arc<GrammarTurns>,
}

impl Served {
    pub(crate) fn new(model: Model) -> Arc<Self> {
        let info = model.text().map(|text| &text.info);
        let template = match model.text().map(|text| &text.reader.facts().template) {
            Some(Ok(traits)) => Some(*traits),
            Some(Err(error)) => {
                tracing::error!(model = model.id, %error, "the chat template cannot be used: no chats");
                None
            }
            None => None,
        };
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
                let nine_letter_ids = template.is_some_and(|of| of.capabilities(true).nine_letter_ids);
                Some(Notation::new(generator.family, &generator.text, nine_letter_ids))
            }
            _ => None,
        };
        if let Some(notation) = &notation {
            notation.tell(&model.id);
        }
        Arc::new(Self {
            model,
            template,
            notation,
            fingerprint,
            asked: AtomicU64::new(0),
            grammar_turns: GrammarTurns::new(),
        })
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
    /// 400 for a model that reads no texts; 503 if its template cannot be used.
    pub(crate) fn template(&self) -> Result<&TemplateTraits, FlowError> {
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
