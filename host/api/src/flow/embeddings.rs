//! Serves an embedding request: answers with the vectors of its texts.
use axum::response::Response;
use camshaft_core::limits::Range;

use crate::flow::backend::EmbedBackend;
use crate::flow::context::ParseContext;
use crate::flow::error::FlowError;
use crate::flow::incoming::Incoming;
use crate::flow::kept;
use crate::flow::vectors::{self, Computed, Texts};
use crate::wire::embeddings::{Embeddings, Encoding};
use crate::wire::fields::Fields;
use crate::wire::json::Body;
use crate::wire::params;
use crate::wire::types::known;

const INPUT: &str = "input";
/// What a number of a vector takes: as it is, and as text.
const NUMBER_BYTES: usize = 24;

/// How the vectors are answered.
#[derive(Debug)]
struct Wanted {
    encoding: Encoding,
    /// Length of a vector.
    dimensions: u32,
    /// The end user, for the log.
    user: Option<String>,
}

/// # Errors
/// Any failure before the vectors are computed.
pub(crate) async fn respond(mut incoming: Incoming) -> Result<Response, FlowError> {
    let ready = vectors::accept(&mut incoming, parse).await?;
    ready.more().user.iter().for_each(|user| incoming.exchange.set_user(user));
    // A vector takes its numbers, and their text in the answer.
    let numbers = ready.count() * ready.embedder()?.dimensions as usize;
    let Computed { model, vectors, tokens, more } = ready.compute(&mut incoming, numbers * NUMBER_BYTES).await?;
    let render = move |share| {
        let answer = Embeddings::new(model, vectors, more.dimensions, more.encoding, tokens);
        kept::json(&answer, share)
    };
    kept::rendered(incoming.share, render).await
}

fn parse(context: ParseContext<'_>, body: &Body) -> Result<(Texts, Wanted), FlowError> {
    let fields = body.fields();
    context.known(&fields, &known::EMBEDDINGS);
    Texts::read(context, &fields, |served| {
        if fields.get("truncate_prompt_tokens").is_some() {
            let message = "truncate_prompt_tokens is not supported for embeddings: a part of a text has another vector";
            return Err(FlowError::field("truncate_prompt_tokens", message));
        }
        let encoding = Encoding::read(&fields)?;
        let dimensions = dimensions(&fields, served.embedder()?)?;
        let inputs = vectors::inputs(context, &fields, INPUT, served)?;
        Ok((inputs, Wanted { encoding, dimensions, user: params::user(&fields) }))
    })
}

fn dimensions(fields: &Fields<'_>, embedder: &EmbedBackend) -> Result<u32, FlowError> {
    let full = embedder.dimensions;
    match fields.integer("dimensions", Range { min: 1.0, max: f64::from(full) })? {
        None => Ok(full),
        Some(wanted) if wanted == full || embedder.shorter_dimensions.contains(&wanted) => Ok(wanted),
        Some(wanted) => {
            let mut possible = embedder.shorter_dimensions.clone();
            possible.push(full);
            let message = format!("this model was not trained for {wanted} dimensions; possible are {possible:?}");
            Err(FlowError::field("dimensions", message))
        }
    }
}
