//! Serves other APIs' generation endpoints: translates the request before parsing and the answer before sending.
use std::convert::Infallible;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::http::HeaderValue;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use http_body_util::BodyExt;

use crate::flow::budget::{self, Share};
use crate::flow::context::ParseContext;
use crate::flow::error::FlowError;
use crate::flow::generate::{self, Answered, Begun};
use crate::flow::incoming::Incoming;
use crate::flow::kept;
use crate::flow::request::Endpoint;
use crate::wire::chat_answer::StreamError;
use crate::wire::dialect::{Asked, Dialect, Events};
use crate::wire::json;
use crate::wire::sse::{Frames, Pieces};

/// The endpoint that serves requests of a dialect.
pub(crate) fn endpoint(dialect: Dialect) -> Endpoint {
    match dialect {
        Dialect::Responses | Dialect::Messages => Endpoint::Chat,
        Dialect::Native(_) => Endpoint::Completion,
    }
}

/// # Errors
/// As a chat's or a completion's, with fields as the client has them.
pub(crate) async fn respond(dialect: Dialect, mut incoming: Incoming) -> Result<Response, FlowError> {
    // While it is translated, both are there.
    incoming.share.grow(json::parsed_bytes(&incoming.text))?;
    let share = incoming.api.budget.share(&incoming.caller.principal.tenant);
    let translate = move |context: ParseContext<'_>, text: &str| {
        let body = json::parse(text)?;
        context.known(&body.fields(), dialect.known());
        dialect.read(body)
    };
    let begun = generate::respond_to(endpoint(dialect), Answered::Translated, incoming, translate).await?;
    match begun.kept.streams() {
        true => Ok(streamed(begun, share)),
        false => whole(begun, share).await,
    }
}

async fn whole(begun: Begun<Asked>, mut share: Share) -> Result<Response, FlowError> {
    let Begun { response, kept: asked, kept_bytes, .. } = begun;
    let answer = response.into_body().collect().await.map_err(FlowError::Answer)?.to_bytes();
    share.add(whole_bytes(answer.len(), kept_bytes));
    kept::rendered(share, move |share| {
        let text = asked.answer(&answer).map_err(FlowError::Serialize)?;
        Ok(([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], kept::body(text, share)).into_response())
    })
    .await
}

/// What a whole answer takes while it is translated: what is kept of the request, and both in the other shape.
fn whole_bytes(answer: usize, kept: usize) -> usize {
    kept.saturating_add(budget::text_bytes(answer.saturating_add(kept)))
}

/// The body of a stream that is translated. It owns the one that is read, so dropping it cancels the generation.
struct Translating {
    chunks: BodyDataStream,
    frames: Frames,
    events: Events,
    out: Pieces,
    /// What the events keep until the end.
    share: Share,
}

fn streamed(begun: Begun<Asked>, share: Share) -> Response {
    let Begun { response, kept: asked, prompt_tokens, .. } = begun;
    let (mut head, body) = response.into_parts();
    head.headers.remove(CONTENT_LENGTH);
    if let Some(kind) = asked.content_type() {
        head.headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    let (chunks, events) = (body.into_data_stream(), asked.events(prompt_tokens));
    let mut stream = Translating { chunks, frames: Frames::default(), events, out: Pieces::default(), share };
    stream.count();
    Response::from_parts(head, Body::from_stream(stream::unfold(stream, Translating::write)))
}

impl Translating {
    /// The next bytes; `None` after the last ones.
    async fn write(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        while self.out.is_empty() && !self.events.ended() {
            match self.chunks.next().await {
                Some(Ok(bytes)) => self.translate(&bytes),
                // What is read here ends with its last frame, or with an error that was translated.
                Some(Err(_)) | None => self.events.fail(&mut self.out, StreamError::cut()),
            }
        }
        self.out.take().map(|piece| (Ok(piece), self))
    }

    fn translate(&mut self, bytes: &[u8]) {
        let Self { frames, events, out, .. } = self;
        frames.push(bytes, |frame| {
            if !events.ended() {
                events.take(out, frame);
            }
        });
        self.count();
    }

    fn count(&mut self) {
        self.share.set(self.events.held_bytes());
    }
}

#[cfg(test)]
#[path = "translated_tests.rs"]
mod tests;
