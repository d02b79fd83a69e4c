//! Serves requests over vectors of texts: reads the texts, has validators see the request and the vectors computed.
use std::sync::Arc;
use std::time::Duration;

use camshaft_core::ids::Token;
use camshaft_core::policy::{Endpoint, Target, ValidateRequest};

use crate::flow::api::ModelWish;
use crate::flow::backend::EmbedBackend;
use crate::flow::budget::TOKEN_BYTES;
use crate::flow::caller::Caller;
use crate::flow::compute::{self, Asked};
use crate::flow::context::ReadContext;
use crate::flow::error::{FlowError, TokenCount};
use crate::flow::incoming::Incoming;
use crate::flow::served::Served;
use crate::flow::trace;
use crate::flow::validate::{self, Accepted, Draft, Validated};
use crate::wire::read::Fields;
use crate::wire::settings;

/// Of one text.
pub(crate) type Tokens = Arc<[Token]>;

/// Checked texts of one request, for the model that embeds them, and what else its endpoint has read.
#[derive(Debug)]
struct TextsRequest<T> {
    served: Arc<Served>,
    inputs: Vec<Tokens>,
    timeout: Option<Duration>,
    more: T,
}

/// A request that no validator refused, and what it takes.
#[derive(Debug)]
pub(crate) struct Ready<T> {
    accepted: Accepted<TextsRequest<T>>,
}

/// What was computed.
#[derive(Debug)]
pub(crate) struct Computed<T> {
    /// The model's name.
    pub(crate) model: String,
    /// Of each text.
    pub(crate) vectors: Vec<Vec<f32>>,
    /// Of all texts.
    pub(crate) tokens: u64,
    pub(crate) more: T,
}

/// A request over texts, as one endpoint has it.
pub(crate) trait OverTexts: Fields + Send + Sync + 'static {
    /// What its answer needs of it.
    type More: Send + 'static;

    fn wish(&self) -> ModelWish<'_>;

    fn timeout(&self) -> Option<f64>;

    /// Its texts, and what its answer needs.
    ///
    /// # Errors
    /// 400: a text is empty, or longer than the model takes.
    fn read(&self, context: ReadContext<'_>) -> Result<(Vec<Tokens>, Self::More), FlowError>;
}

/// Reads a request and asks the validators.
///
/// # Errors
/// 400, 403 or 404: it is malformed, or names a model that is unknown, not allowed, or embeds nothing; a validator refused it.
pub(crate) async fn accept<B: OverTexts>(incoming: &mut Incoming) -> Result<Ready<B::More>, FlowError> {
    let span = trace::validate(incoming.exchange.span());
    let bytes = incoming.text.len();
    let body = Arc::new(incoming.body::<B>().await?);
    let target = incoming.target(&body.request.wish(), body.request.timeout(), bytes).await?;
    let read = |context: ReadContext<'_>, request: &B| {
        context.served().embedder()?;
        let (inputs, more) = request.read(context)?;
        let timeout = settings::timeout(request.timeout(), context.api.limits().max_timeout)?;
        Ok(TextsRequest { served: context.served().clone(), inputs, timeout, more })
    };
    let mut accepted = validate::accept(incoming, &target, body, read).await?;
    accepted.request.timeout = accepted.request.timeout.or(target.timeout);
    drop(span);
    Ok(Ready { accepted })
}

impl<T> Ready<T> {
    pub(crate) fn more(&self) -> &T {
        &self.accepted.request.more
    }

    pub(crate) fn embedder(&self) -> Result<&EmbedBackend, FlowError> {
        self.accepted.request.served.embedder()
    }

    /// Number of texts.
    pub(crate) fn count(&self) -> usize {
        self.accepted.request.inputs.len()
    }

    /// Computes the vectors. `held`: bytes that the request takes until its end, besides its tokens.
    ///
    /// # Errors
    /// There is no memory for it, or as [`compute::compute`].
    pub(crate) async fn compute(self, incoming: &mut Incoming, held: usize) -> Result<Computed<T>, FlowError> {
        let Self { accepted: Accepted { request, priority, .. } } = self;
        let TextsRequest { served, inputs, timeout, more } = request;
        let (tokens, embedder) = (compute::cost(&inputs), served.embedder()?);
        incoming.share.resize((tokens as usize * TOKEN_BYTES).saturating_add(held))?;
        let model = served.model.id.clone();
        let (health, jobs) = (&served.model.health, &embedder.jobs);
        let asked = Asked { model: &model, health, jobs, inputs, priority, unit: None, timeout };
        let vectors = compute::compute(incoming, asked).await?;
        Ok(Computed { model, vectors, tokens, more })
    }
}

impl<T: Send + 'static> Validated for TextsRequest<T> {
    fn target<'a>(&'a self, caller: &'a Caller) -> Target<'a> {
        Target { tenant: &caller.principal.tenant, model: &self.served.model.id, endpoint: Endpoint::Embedding }
    }

    fn question(&self, caller: &Caller, draft: Draft<'_>) -> ValidateRequest {
        let inputs = &self.inputs;
        let longest = inputs.iter().map(|input| input.len()).max().unwrap_or(0);
        let longest = u32::try_from(longest).unwrap_or(u32::MAX);
        validate::question(caller, self.target(caller), draft, compute::cost(inputs), longest)
    }

    fn is_same_kind(&self, _: &Self) -> bool {
        true
    }
}

/// The tokens of a text, which the body has at `path`; of a longer one than `kept`, the first so many.
///
/// # Errors
/// 400: the model embeds nothing, or the text is empty or longer than the embedder takes.
pub(crate) fn tokens_of(
    context: ReadContext<'_>,
    path: &str,
    text: &str,
    kept: Option<u32>,
) -> Result<Arc<[Token]>, FlowError> {
    context.check()?;
    let tokens = match text.is_empty() {
        true => Vec::new(),
        // The spelling of a special token stays text.
        false => context.tokenize((text, false), context.served().embedder()?.input_tokens)?,
    };
    check(context, path, tokens, kept)
}

/// # Errors
/// 400: there are no tokens, or more than the embedder takes.
pub(crate) fn check(
    context: ReadContext<'_>,
    path: &str,
    mut tokens: Vec<Token>,
    kept: Option<u32>,
) -> Result<Arc<[Token]>, FlowError> {
    context.check()?;
    let max = context.served().embedder()?.input_tokens;
    if let Some(kept) = kept {
        tokens.truncate(kept as usize);
    }
    match tokens.len() {
        0 => Err(FlowError::field(path, format!("{path} is empty"))),
        tokens if tokens > max as usize => {
            Err(FlowError::InputLength { tokens: TokenCount::of(tokens, max), max, param: path.to_owned() })
        }
        _ => Ok(Arc::from(tokens)),
    }
}
