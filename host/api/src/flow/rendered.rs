//! The endpoints that make a prompt of a chat and generate nothing: its text and tokens, or their number.
use std::sync::Arc;

use axum::response::Response;
use serde::Serialize;

use crate::flow::api::ModelWish;
use crate::flow::budget;
use crate::flow::chat::{self, MESSAGES};
use crate::flow::context::ReadContext;
use crate::flow::error::{FlowError, TokenCount};
use crate::flow::generate::Generates;
use crate::flow::incoming::Incoming;
use crate::flow::kept;
use crate::flow::prompt::Rendered;
use crate::wire::dialect::{self, Converted};
use crate::wire::error::RequestError;
use crate::wire::read::Body;
use crate::wire::types::chat::ChatRequest;
use crate::wire::types::messages::CountedTokens;
use crate::wire::types::responses::CountedInput;
use crate::wire::types::tokens::ChatPrompt;

/// What an id takes: as a number, and as text in the answer.
const ID_BYTES: usize = 16;

/// `{"model","messages"}` and what else a prompt is made of. The tokens count against the caller's quota, as those of a prompt
/// do.
///
/// # Errors
/// 400, 403 or 404: the body is malformed, or names a model that is unknown or not allowed. 429: the quota does not hold
/// the tokens.
pub(crate) async fn template(mut incoming: Incoming) -> Result<Response, FlowError> {
    let bytes = incoming.text.len();
    let body = Arc::new(incoming.body::<ChatRequest>().await?);
    let Rendered { text, tokens } = render(&mut incoming, body, bytes).await?;
    incoming.spend(tokens.len() as u64)?;
    incoming.share.grow(budget::text_bytes(text.len()) + tokens.len() * ID_BYTES)?;
    let answer = ChatPrompt { prompt: text, tokens: tokens.into_iter().map(|token| token.0).collect() };
    kept::rendered(incoming.share, move |share| kept::json(&answer, share)).await
}

/// The number of tokens of a prompt that Anthropic's API asks for.
///
/// # Errors
/// As [`template`], with fields as the client has them.
pub(crate) async fn count_message(incoming: Incoming) -> Result<Response, FlowError> {
    count(incoming, dialect::counted_message, |input_tokens| CountedTokens { input_tokens }).await
}

/// The number of tokens of a prompt that OpenAI's Responses API asks for.
///
/// # Errors
/// As [`template`], with fields as the client has them.
pub(crate) async fn count_response(incoming: Incoming) -> Result<Response, FlowError> {
    count(incoming, dialect::counted_response, |input_tokens| CountedInput {
        object: "response.input_tokens",
        input_tokens,
    })
    .await
}

async fn count<T: Serialize>(
    mut incoming: Incoming,
    read: fn(&str) -> Result<Converted<ChatRequest>, RequestError>,
    answer: impl FnOnce(u64) -> T,
) -> Result<Response, FlowError> {
    let bytes = incoming.text.len();
    let Converted { body, names, .. } = incoming.parse(move |text| Ok(read(text)?)).await?;
    incoming.count_unknown(&body);
    let rendered = render(&mut incoming, body, bytes).await.map_err(|error| error.renamed(names))?;
    incoming.spend(rendered.tokens.len() as u64)?;
    kept::json(&answer(rendered.tokens.len() as u64), incoming.share)
}

/// The prompt of a chat, whether or not the model's context holds it. `bytes`: of the body.
async fn render(incoming: &mut Incoming, body: Arc<Body<ChatRequest>>, bytes: usize) -> Result<Rendered, FlowError> {
    let wish = ModelWish { falls_back: false, ..body.request.wish() };
    let target = incoming.target(&wish, body.request.generation.timeout, bytes).await?;
    incoming.read(&target, move |context| read(context, &body.request)).await
}

fn read(context: ReadContext<'_>, request: &ChatRequest) -> Result<Rendered, FlowError> {
    let served = context.served();
    served.pool()?;
    let most = served.text()?.info.context_tokens;
    let rendered = chat::render(context, request, most)?.rendered;
    let tokens = TokenCount::of(rendered.tokens.len(), most);
    match tokens {
        TokenCount::Exactly(_) => Ok(rendered),
        // Those that were read are not all.
        TokenCount::MoreThan(_) => Err(FlowError::ContextLength { tokens, context: most, param: MESSAGES }),
    }
}
