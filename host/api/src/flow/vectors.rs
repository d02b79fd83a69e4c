//! Serves requests over vectors of texts: reads the texts, has validators see the request and the vectors computed.
use std::sync::Arc;
use std::time::Duration;

use camshaft_core::ids::Token;
use camshaft_core::limits;
use camshaft_core::policy::{Endpoint, Target, ValidateRequest};

use crate::flow::backend::EmbedBackend;
use crate::flow::budget::TOKEN_BYTES;
use crate::flow::compute::{self, Asked};
use crate::flow::context::ParseContext;
use crate::flow::error::{FlowError, TokenCount};
use crate::flow::incoming::Incoming;
use crate::flow::served::Served;
use crate::flow::trace;
use crate::flow::validate::{self, Accepted, Draft, Validated};
use crate::wire::adapters::wanted;
use crate::wire::fields::Fields;
use crate::wire::input::{self, BodyInput, InputContent};
use crate::wire::json::{self, Body};
use crate::wire::params;

/// Checked texts of one request, for the model that embeds them.
#[derive(Debug)]
pub(crate) struct Texts {
    served: Arc<Served>,
    inputs: Vec<Arc<[Token]>>,
    timeout: Option<Duration>,
}

/// A request over texts, as one endpoint reads it.
pub(crate) type Parse<T> = fn(ParseContext<'_>, &Body) -> Result<(Texts, T), FlowError>;

/// A checked request, and what else its endpoint has read.
#[derive(Debug)]
struct TextsRequest<T> {
    texts: Texts,
    more: T,
    parse: Parse<T>,
}

/// A request that no validator refused, and what it takes.
#[derive(Debug)]
pub(crate) struct Ready<T> {
    asked: Accepted<TextsRequest<T>>,
    from_header: Option<Duration>,
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

impl Texts {
    /// Reads what all such requests have, and by `read` their texts with what else there is.
    ///
    /// # Errors
    /// 400, 403 or 404: the body is malformed, or names a model that is unknown, not allowed, or embeds nothing.
    pub(crate) fn read<T>(
        context: ParseContext<'_>,
        fields: &Fields<'_>,
        read: impl FnOnce(&Served) -> Result<(Vec<Arc<[Token]>>, T), FlowError>,
    ) -> Result<(Self, T), FlowError> {
        let served = context.model(fields)?;
        served.embedder()?;
        if !wanted(fields)?.is_empty() {
            return Err(FlowError::field("lora", "lora is only for models that generate"));
        }
        let (inputs, more) = read(&served)?;
        let timeout = params::timeout(fields, context.api.limits().max_timeout)?;
        Ok((Self { served, inputs, timeout }, more))
    }
}

/// Reads a request and asks the validators.
///
/// # Errors
/// Those of `parse`; a validator refused it.
pub(crate) async fn accept<T: Send + 'static>(incoming: &mut Incoming, parse: Parse<T>) -> Result<Ready<T>, FlowError> {
    let from_header = params::timeout_header(&incoming.headers, incoming.api.limits().max_timeout)?;
    let span = trace::validate(incoming.exchange.span());
    // Tokenizing many long texts takes a while.
    let read = move |context: ParseContext<'_>, text: &str| {
        let body = json::parse(text)?;
        let (texts, more) = parse(context, &body)?;
        validate::run(context, body, TextsRequest { texts, more, parse })
    };
    let asked = incoming.read(from_header, read).await?;
    drop(span);
    Ok(Ready { asked, from_header })
}

impl<T> Ready<T> {
    pub(crate) fn more(&self) -> &T {
        &self.asked.request.more
    }

    pub(crate) fn embedder(&self) -> Result<&EmbedBackend, FlowError> {
        self.asked.request.texts.served.embedder()
    }

    /// Number of texts.
    pub(crate) fn count(&self) -> usize {
        self.asked.request.texts.inputs.len()
    }

    /// Computes the vectors. `held`: bytes that the request takes until its end, besides its tokens.
    ///
    /// # Errors
    /// There is no memory for it, or as [`compute::compute`].
    pub(crate) async fn compute(self, incoming: &mut Incoming, held: usize) -> Result<Computed<T>, FlowError> {
        let Self { asked: Accepted { request, priority, .. }, from_header } = self;
        let TextsRequest { texts: Texts { served, inputs, timeout }, more, .. } = request;
        let (tokens, embedder) = (compute::cost(&inputs), served.embedder()?);
        incoming.share.resize((tokens as usize * TOKEN_BYTES).saturating_add(held))?;
        let (model, timeout) = (served.model.id.clone(), timeout.or(from_header));
        let (health, jobs) = (&served.model.health, &embedder.jobs);
        let asked = Asked { model: &model, health, jobs, inputs, priority, unit: None, timeout };
        let vectors = compute::compute(incoming, asked).await?;
        Ok(Computed { model, vectors, tokens, more })
    }
}

impl<T> Validated for TextsRequest<T> {
    fn parse(&self, context: ParseContext<'_>, body: &Body) -> Result<Self, FlowError> {
        let (texts, more) = (self.parse)(context, body)?;
        Ok(Self { texts, more, parse: self.parse })
    }

    fn target<'a>(&'a self, context: ParseContext<'a>) -> Target<'a> {
        let tenant = &context.caller.principal.tenant;
        Target { tenant, model: &self.texts.served.model.id, endpoint: Endpoint::Embedding }
    }

    fn question(&self, context: ParseContext<'_>, draft: Draft<'_>) -> ValidateRequest {
        let inputs = &self.texts.inputs;
        let longest = inputs.iter().map(|input| input.len()).max().unwrap_or(0);
        let longest = u32::try_from(longest).unwrap_or(u32::MAX);
        validate::question(context, self.target(context), draft, compute::cost(inputs), longest)
    }

    fn is_same_kind(&self, before: &Self) -> bool {
        self.texts.served.model.id == before.texts.served.model.id
    }
}

/// Reads the field `name`: one or several texts or lists of token ids.
///
/// # Errors
/// 400: the model embeds nothing, or an input is malformed, empty or longer than the embedder takes.
pub(crate) fn inputs(
    context: ParseContext<'_>,
    fields: &Fields<'_>,
    name: &str,
    served: &Served,
) -> Result<Vec<Arc<[Token]>>, FlowError> {
    let one = |BodyInput { path, content }: BodyInput| match content {
        InputContent::Text(text) => tokens_of(context, &path, &text, served),
        InputContent::Tokens(tokens) => check(context, &path, tokens, served),
    };
    let inputs = input::read(fields, name, limits::EMBED_INPUTS, &served.text()?.info.vocabulary)?;
    inputs.into_iter().map(one).collect()
}

/// The tokens of a text, which the body has at `path`.
///
/// # Errors
/// 400: the model embeds nothing, or the text is empty or longer than the embedder takes.
pub(crate) fn tokens_of(
    context: ParseContext<'_>,
    path: &str,
    text: &str,
    served: &Served,
) -> Result<Arc<[Token]>, FlowError> {
    context.check()?;
    let tokens = match text.is_empty() {
        true => Vec::new(),
        // The spelling of a special token stays text.
        false => context.tokenize(served, (text, false), served.embedder()?.input_tokens)?,
    };
    check(context, path, tokens, served)
}

fn check(
    context: ParseContext<'_>,
    path: &str,
    tokens: Vec<Token>,
    served: &Served,
) -> Result<Arc<[Token]>, FlowError> {
    context.check()?;
    let max = served.embedder()?.input_tokens;
    match tokens.len() {
        0 => Err(FlowError::field(path, format!("{path} is empty"))),
        tokens if tokens > max as usize => {
            Err(FlowError::InputLength { tokens: TokenCount::of(tokens, max), max, param: path.to_owned() })
        }
        _ => Ok(Arc::from(tokens)),
    }
}
