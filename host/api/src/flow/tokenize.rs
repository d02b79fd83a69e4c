//! The endpoints that tokenize and detokenize.
use axum::response::Response;
use camshaft_core::engine::{Encode, Encoded};

use crate::flow::api::ModelWish;
use crate::flow::completions::text_of;
use crate::flow::error::FlowError;
use crate::flow::incoming::Incoming;
use crate::flow::kept;
use crate::flow::tokenized::{self, Tokenized};
use crate::wire::settings;
use crate::wire::types::tokens::{DetokenizeRequest, Detokenized, TokenizeRequest};

/// What a token takes, with the room that lists have left: its id and its offsets.
const TOKENIZED_BYTES: usize = 24;

/// `{"model","text"}`, optionally `add_special` and `parse_special` (both false). The tokens count against the caller's
/// quota, as those of a prompt do.
///
/// # Errors
/// 400, 403 or 404: the body is malformed, or names a model that is unknown or not allowed. 429: the quota does not hold
/// the tokens.
pub(crate) async fn tokenize(mut incoming: Incoming) -> Result<Response, FlowError> {
    let bytes = incoming.text.len();
    let TokenizeRequest { model, text, add_special, parse_special } = incoming.body().await?.request;
    let wish = ModelWish { name: model.as_deref(), ..ModelWish::default() };
    let target = incoming.target(&wish, None, bytes).await?;
    let done = incoming.read(&target, move |context| {
        let (add_special, parse_special) = (add_special.unwrap_or(false), parse_special.unwrap_or(false));
        let (abandoned, text) = (Some(context.reading.abandoned()), text.unwrap_or_default());
        let encode = Encode { add_special, parse_special, offsets: true, abandoned, ..Encode::of(&text) };
        let encoded = context.served().text()?.tokenizer.encode(encode);
        let Encoded { tokens, offsets } = encoded.ok_or(FlowError::Cancelled)?;
        Ok(Tokenized { tokens, offsets })
    });
    let done = done.await?;
    incoming.spend(done.tokens.len() as u64)?;
    incoming.share.grow(done.tokens.len() * TOKENIZED_BYTES)?;
    kept::rendered(incoming.share, move |share| Ok(tokenized::respond(done, share))).await
}

/// `{"model","tokens"}`; bytes that are not UTF-8 are replaced. The tokens count against the caller's quota.
///
/// # Errors
/// 400, 403 or 404: the body is malformed, or names a model that is unknown or not allowed. 413 or 503: the text is too long.
/// 429: the quota does not hold the tokens.
pub(crate) async fn detokenize(mut incoming: Incoming) -> Result<Response, FlowError> {
    let bytes = incoming.text.len();
    let DetokenizeRequest { model, tokens } = incoming.body().await?.request;
    let wish = ModelWish { name: model.as_deref(), ..ModelWish::default() };
    let served = incoming.target(&wish, None, bytes).await?.found.served.clone();
    let vocabulary = served.text()?.info.vocabulary.clone();
    let tokens = settings::tokens(&tokens.unwrap_or_default(), "tokens", vocabulary.size())?;
    let bytes: usize = tokens.iter().map(|&token| vocabulary.token_bytes(token).map_or(0, <[u8]>::len)).sum();
    incoming.spend(tokens.len() as u64)?;
    // The text, and its copy in the answer.
    incoming.share.grow(2 * bytes)?;
    let render = move |share| kept::json(&Detokenized { text: text_of(&vocabulary, &tokens) }, share);
    kept::rendered(incoming.share, render).await
}
