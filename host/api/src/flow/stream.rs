//! Streams a response while the model generates.
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use futures_util::{FutureExt, stream};
use tokio::time::timeout;

use crate::flow::budget::Share;
use crate::flow::error::FlowError;
use crate::flow::exchange::Exchange;
use crate::flow::generation::{ChoiceEvent, RunningChoices};
use crate::flow::render::chunks::Chunks;
use crate::flow::request::GenerationRequest;
use crate::flow::trace;
use crate::wire::sse;

/// The head of the response waits for the first event for so long: until then an error has its own status. Who waits in the
/// queue is told of it within half of this time.
const PATIENCE: Duration = Duration::from_secs(2);
/// Silence after which a comment is sent, to keep the connection open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Ready frames are sent together up to this size.
const WRITE_BYTES: usize = 16 << 10;
/// Tells nginx not to buffer the response.
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// The body of a stream. It owns the choices, so dropping it when the client leaves cancels them.
struct EventStream {
    running: RunningChoices,
    chunks: Chunks,
    exchange: Arc<Exchange>,
    out: Vec<u8>,
    ended: bool,
    /// What the request holds until its end.
    _share: Share,
    /// Covers the time from the head to the last frame.
    _span: tracing::Span,
}

/// Waits for the first event for a while, so that an early error is an ordinary response, then streams. What comes later
/// than that must not leave the client, or a proxy before it, without a head.
///
/// # Errors
/// A choice failed before any event, and early.
pub(crate) async fn respond(
    mut running: RunningChoices,
    request: GenerationRequest,
    exchange: Arc<Exchange>,
    share: Share,
) -> Result<Response, FlowError> {
    let first = match timeout(PATIENCE, running.next()).await {
        Ok(None) => return Err(FlowError::WorkerLost),
        Ok(Some((index, output))) => Some((index, output?)),
        Err(_) => None,
    };
    let chunks = Chunks::new(request);
    let span = trace::stream(exchange.span());
    let mut live = EventStream { running, chunks, exchange, out: Vec::new(), ended: false, _share: share, _span: span };
    match first {
        Some((index, output)) => live.take(index, Ok(output)),
        None => live.out.extend_from_slice(sse::KEEP_ALIVE),
    }
    live.exchange.begin_stream();
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (X_ACCEL_BUFFERING, HeaderValue::from_static("no")),
    ];
    Ok((headers, Body::from_stream(stream::unfold(live, EventStream::write))).into_response())
}

impl EventStream {
    /// The next bytes; `None` after the last ones.
    async fn write(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        while self.out.is_empty() && !self.ended {
            match timeout(KEEP_ALIVE, self.running.next()).await {
                Err(_) => self.out.extend_from_slice(sse::KEEP_ALIVE),
                Ok(Some((index, output))) => self.take(index, output),
                Ok(None) => self.finish(),
            }
        }
        while !self.ended && self.out.len() < WRITE_BYTES {
            match self.running.next().now_or_never() {
                Some(Some((index, output))) => self.take(index, output),
                Some(None) => self.finish(),
                None => break,
            }
        }
        if self.ended {
            self.exchange.end_stream();
        }
        if self.out.is_empty() {
            return None;
        }
        Some((Ok(Bytes::from(std::mem::take(&mut self.out))), self))
    }

    fn take(&mut self, index: usize, output: Result<ChoiceEvent, FlowError>) {
        if let Ok(ChoiceEvent::Queued(position)) = output {
            sse::comment(&mut self.out, "x-queue-position", position);
            return;
        }
        self.chunks.open(&mut self.out, index);
        match output {
            Ok(ChoiceEvent::Started | ChoiceEvent::Queued(_)) => {}
            Ok(ChoiceEvent::Delta(delta)) => self.chunks.delta(&mut self.out, index, &delta),
            Ok(ChoiceEvent::Finished(reason)) => self.chunks.end(&mut self.out, index, reason),
            Err(error) => {
                let answer = error.answer();
                self.exchange.note_in_stream(answer.status().as_u16(), &answer.note());
                sse::write(&mut self.out, &answer.body());
                self.ended = true;
            }
        }
    }

    fn finish(&mut self) {
        self.chunks.usage(&mut self.out, self.running.totals());
        self.out.extend_from_slice(sse::DONE);
        self.ended = true;
    }
}
