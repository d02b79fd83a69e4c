//! Serves generations that are asked for in other shapes than the chat's and the completion's: the body is translated where it is
//! read, and what comes of it, whole or in chunks, on its way to the client. All between is the same.
use std::convert::Infallible;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use http_body_util::BodyExt;

use crate::flow::budget::{self, Share};
use crate::flow::error::FlowError;
use crate::flow::generate::{self, Begun};
use crate::flow::incoming::Incoming;
use crate::flow::kept;
use crate::flow::request::Endpoint;
use crate::wire::chat_answer::StreamError;
use crate::wire::dialect::{Asked, Dialect, Events};
use crate::wire::json;
use crate::wire::sse::Frames;

/// # Errors
/// As a chat's or a completion's, with fields as the client has them.
pub(crate) async fn respond(dialect: Dialect, incoming: Incoming) -> Result<Response, FlowError> {
    let endpoint = match dialect {
        Dialect::Responses | Dialect::Messages => Endpoint::Chat,
        Dialect::Native(_) => Endpoint::Completion,
    };
    let asked = serve(endpoint, dialect, incoming).await;
    asked.map_err(|error| error.renamed(dialect.names()))
}

async fn serve(endpoint: Endpoint, dialect: Dialect, mut incoming: Incoming) -> Result<Response, FlowError> {
    // While it is translated, both are there.
    incoming.share.grow(json::parsed_bytes(&incoming.text))?;
    let share = incoming.api.budget.share(&incoming.caller.principal.tenant);
    let begun = generate::respond_to(endpoint, incoming, move |text| dialect.read(text)).await?;
    match begun.kept.streams() {
        true => Ok(streamed(begun, share)),
        false => whole(begun, share).await,
    }
}

async fn whole(begun: Begun<Asked>, mut share: Share) -> Result<Response, FlowError> {
    let answer = begun.response.into_body().collect().await.map_err(FlowError::Answer)?.to_bytes();
    // As it is, as it is read, and in the other shape.
    share.add(budget::text_bytes(answer.len()));
    let asked = begun.kept;
    kept::rendered(share, move |share| {
        let text = asked.answer(&answer).map_err(FlowError::Serialize)?;
        Ok(([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], kept::body(text, share)).into_response())
    })
    .await
}

/// The body of a stream that is translated. It owns the one that is read, so dropping it cancels the generation.
struct Translating {
    chunks: BodyDataStream,
    frames: Frames,
    events: Events,
    /// What the events keep until the end.
    share: Share,
    ended: bool,
}

fn streamed(begun: Begun<Asked>, share: Share) -> Response {
    let Begun { response, kept: asked, prompt_tokens } = begun;
    let (mut head, body) = response.into_parts();
    head.headers.remove(CONTENT_LENGTH);
    if let Some(kind) = asked.content_type() {
        head.headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    let (chunks, events) = (body.into_data_stream(), asked.events(prompt_tokens));
    let stream = Translating { chunks, frames: Frames::default(), events, share, ended: false };
    Response::from_parts(head, Body::from_stream(stream::unfold(stream, Translating::write)))
}

impl Translating {
    /// The next bytes; `None` after the last ones.
    async fn write(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        let mut out = Vec::new();
        while out.is_empty() && !self.ended {
            match self.chunks.next().await {
                Some(Ok(bytes)) => self.translate(&bytes, &mut out),
                // What is read here ends in order, or with an error that was translated.
                Some(Err(_)) | None => {
                    self.ended = true;
                    if !self.events.ended() {
                        self.events.fail(&mut out, StreamError::cut());
                    }
                }
            }
        }
        (!out.is_empty()).then(|| (Ok(Bytes::from(out)), self))
    }

    fn translate(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        self.frames.push(bytes);
        for frame in self.frames.complete() {
            if !self.events.ended() {
                self.events.take(out, &frame);
            }
        }
        self.share.set(budget::text_bytes(self.events.text_bytes()));
    }
}
