//! The endpoints that make a prompt of a chat and generate nothing: its text and tokens, or their number.
use axum::response::Response;
use camshaft_core::ids::Token;
use serde::Serialize;

use crate::flow::budget;
use crate::flow::chat::{self, MESSAGES};
use crate::flow::context::ParseContext;
use crate::flow::error::{FlowError, TokenCount};
use crate::flow::incoming::Incoming;
use crate::flow::kept;
use crate::flow::prompt::Rendered;
use crate::wire::dialect;
use crate::wire::json::{self, Body};
use crate::wire::params;
use crate::wire::translated::Translated;
use crate::wire::types::known;

/// What an id takes: as a number, and as text in the answer.
const ID_BYTES: usize = 16;

#[derive(Debug, Serialize)]
struct Prompt {
    prompt: String,
    tokens: Vec<Token>,
}

#[derive(Debug, Serialize)]
struct Count {
    input_tokens: usize,
}

/// `{"model","messages"}` and what else a prompt is made of. The tokens count against the caller's quota, as those of a prompt
/// do.
///
/// # Errors
/// 400, 403 or 404: the body is malformed, or names a model that is unknown or not allowed. 429: the quota does not hold
/// the tokens.
pub(crate) async fn template(mut incoming: Incoming) -> Result<Response, FlowError> {
    let from_header = params::timeout_header(&incoming.headers, incoming.api.limits().max_timeout)?;
    let read = |context: ParseContext<'_>, text: &str| {
        let body = json::parse(text)?;
        context.known(&body.fields(), &known::CHAT);
        render(context, &body)
    };
    let Rendered { text, tokens } = incoming.read(from_header, read).await?;
    incoming.spend(tokens.len() as u64)?;
    incoming.share.grow(budget::text_bytes(text.len()) + tokens.len() * ID_BYTES)?;
    let answer = Prompt { prompt: text, tokens };
    kept::rendered(incoming.share, move |share| kept::json(&answer, share)).await
}

/// The number of tokens of a prompt that Anthropic's API asks for.
///
/// # Errors
/// As [`template`], with fields as the client has them.
pub(crate) async fn count_tokens(mut incoming: Incoming) -> Result<Response, FlowError> {
    let from_header = params::timeout_header(&incoming.headers, incoming.api.limits().max_timeout)?;
    // While it is translated, both are there.
    incoming.share.grow(json::parsed_bytes(&incoming.text))?;
    let read = |context: ParseContext<'_>, text: &str| {
        let body = json::parse(text)?;
        context.known(&body.fields(), &known::COUNT_TOKENS);
        let Translated { body, names, .. } = dialect::counted_chat(body)?;
        render(context, &body).map_err(|error| error.renamed(names))
    };
    let Rendered { tokens, .. } = incoming.read(from_header, read).await?;
    incoming.spend(tokens.len() as u64)?;
    kept::json(&Count { input_tokens: tokens.len() }, incoming.share)
}

/// The prompt of a chat, whether or not the model's context holds it.
fn render(context: ParseContext<'_>, body: &Body) -> Result<Rendered, FlowError> {
    let fields = body.fields();
    let served = context.model_itself(&fields)?;
    served.pool()?;
    let most = served.text()?.info.context_tokens;
    let rendered = chat::render(context, &fields, &served, most)?.rendered;
    let tokens = TokenCount::of(rendered.tokens.len(), most);
    match tokens {
        TokenCount::Exactly(_) => Ok(rendered),
        // Those that were read are not all.
        TokenCount::MoreThan(_) => Err(FlowError::ContextLength { tokens, context: most, param: MESSAGES }),
    }
}
