//! The endpoints that tokenize and detokenize.
use std::sync::Arc;

use axum::response::Response;
use camshaft_core::engine::{Encode, Encoded};
use camshaft_core::ids::Token;
use serde::Serialize;

use crate::flow::context::ParseContext;
use crate::flow::error::FlowError;
use crate::flow::incoming::Incoming;
use crate::flow::kept;
use crate::flow::served::Served;
use crate::flow::tokenized::{self, Tokenized};
use crate::wire::lists::IdLists;
use crate::wire::types::known;
use crate::wire::{json, params, tokens};

/// What a token takes, with the room that lists have left: its id and its offsets.
const TOKENIZED_BYTES: usize = 24;

#[derive(Debug, Serialize)]
struct Detokenized {
    text: String,
}

/// `{"model","text"}`, optionally `add_special` and `parse_special` (both false). The tokens count against the caller's
/// quota, as those of a prompt do.
///
/// # Errors
/// 400, 403 or 404: the body is malformed, or names a model that is unknown or not allowed. 429: the quota does not hold
/// the tokens.
pub(crate) async fn tokenize(mut incoming: Incoming) -> Result<Response, FlowError> {
    let from_header = params::timeout_header(&incoming.headers, incoming.api.limits().max_timeout)?;
    let done = incoming.read(from_header, read).await?;
    incoming.spend(done.tokens.len() as u64)?;
    incoming.share.grow(done.tokens.len() * TOKENIZED_BYTES)?;
    kept::rendered(incoming.share, move |share| Ok(tokenized::respond(done, share))).await
}

fn read(context: ParseContext<'_>, text: &str) -> Result<Tokenized, FlowError> {
    let body = json::parse(text)?;
    let fields = body.fields();
    context.known(&fields, &known::TOKENIZE);
    let served = &context.model_itself(&fields)?;
    fields.require("text")?;
    let text = fields.text("text")?.unwrap_or_default();
    let add_special = fields.flag("add_special")?.unwrap_or(false);
    let parse_special = fields.flag("parse_special")?.unwrap_or(false);
    let abandoned = Some(context.aside.abandoned());
    let encode = Encode { add_special, parse_special, offsets: true, abandoned, ..Encode::of(text) };
    let Encoded { tokens, offsets } = served.text()?.tokenizer.encode(encode).ok_or(FlowError::Cancelled)?;
    Ok(Tokenized { tokens, offsets })
}

/// `{"model","tokens"}`; bytes that are not UTF-8 are replaced. The tokens count against the caller's quota.
///
/// # Errors
/// 400, 403 or 404: the body is malformed, or names a model that is unknown or not allowed. 413 or 503: the text is too long.
/// 429: the quota does not hold the tokens.
pub(crate) async fn detokenize(mut incoming: Incoming) -> Result<Response, FlowError> {
    let from_header = params::timeout_header(&incoming.headers, incoming.api.limits().max_timeout)?;
    let (served, tokens, bytes) = incoming.read(from_header, read_tokens).await?;
    incoming.spend(tokens.len() as u64)?;
    // The text, and its copy in the answer.
    incoming.share.grow(2 * bytes)?;
    let render = move |share| {
        let text = tokens::text(&served.text()?.info.vocabulary, &tokens);
        kept::json(&Detokenized { text }, share)
    };
    kept::rendered(incoming.share, render).await
}

/// The model, the tokens, and the bytes of their text.
fn read_tokens(context: ParseContext<'_>, text: &str) -> Result<(Arc<Served>, Vec<Token>, usize), FlowError> {
    let body = json::parse(text)?;
    let fields = body.fields();
    context.known(&fields, &known::DETOKENIZE);
    let served = &context.model_itself(&fields)?;
    fields.require("tokens")?;
    let list = fields.list("tokens")?.map_or(&[][..], Vec::as_slice);
    let vocabulary = &served.text()?.info.vocabulary;
    let tokens = match fields.ids("tokens") {
        Some(IdLists::One(ids)) => tokens::read(ids, "tokens", vocabulary)?,
        Some(IdLists::Several(_)) => return Err(FlowError::field("tokens", "tokens must be one list of token ids")),
        None => tokens::refuse(list, "tokens", vocabulary)?,
    };
    let bytes = tokens.iter().map(|&token| vocabulary.token_bytes(token).map_or(0, <[u8]>::len)).sum();
    Ok((served.clone(), tokens, bytes))
}
