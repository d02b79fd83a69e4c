//! An answer, from the running choices to the response: typed events, which one writer for each API turns into its own shape as
//! they come, or which are folded into whole choices. No writer reads what another has written.
mod logprobs;
mod messages;
mod native;
mod openai;
mod parts;
mod responses;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use camshaft_core::message::TokenLogprob;
use futures_util::{FutureExt, stream};
use parts::{AnswerPart, PartParser};
use tokio::time::timeout;

use crate::flow::budget::{self, Share};
use crate::flow::error::FlowError;
use crate::flow::exchange::Exchange;
use crate::flow::generation::{ChoiceEvent, RunningChoices, Totals};
use crate::flow::request::{GenerationRequest, Prompt};
use crate::flow::trace;
use crate::wire::dialect::AnswerFormat;
use crate::wire::error::Answer;
use crate::wire::sse::{self, Pieces};
use crate::wire::types::generation::Finish;

/// How long the head of the response waits for the first event; until then an error has its own status. A queued client is told
/// its position within half of this time.
const PATIENCE: Duration = Duration::from_secs(2);
/// Silence after which a comment is sent, to keep the connection open.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Tells nginx not to buffer the response.
const X_ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");
const EVENT_STREAM: &str = "text/event-stream; charset=utf-8";

/// What happens to one choice.
#[derive(Debug)]
enum AnswerEvent {
    /// It waits at this position of the queue, counted from 1.
    Queued(u32),
    Started,
    Delta(AnswerDelta),
    /// Nothing follows.
    Finished(Finish),
}

/// More of a choice.
#[derive(Debug)]
struct AnswerDelta {
    /// May be empty where there are log-probabilities: of tokens whose text is held back.
    parts: Vec<AnswerPart>,
    /// In order, if they were asked for.
    logprobs: Vec<TokenLogprob>,
}

impl AnswerDelta {
    /// The text of a completion, which is in one part.
    fn text(&self) -> &str {
        match &self.parts[..] {
            [AnswerPart::Content(text)] => text,
            _ => "",
        }
    }
}

/// Writes a streamed answer in the shape of one API. A trait, because each API keeps a state of its own between the same calls.
trait AnswerWriter: Send {
    /// Comes before anything else of a choice, also before an error. Later calls do nothing.
    fn begin(&mut self, out: &mut Pieces, index: usize);
    fn delta(&mut self, out: &mut Pieces, index: usize, delta: &AnswerDelta);
    fn finish(&mut self, out: &mut Pieces, index: usize, finish: Finish);
    /// All choices have ended.
    fn end(&mut self, out: &mut Pieces, totals: Totals);
    /// Nothing follows.
    fn fail(&mut self, out: &mut Pieces, error: &Answer, request_id: &str);
    /// A line that clients skip, while there is nothing to say.
    fn comment(&mut self, out: &mut Pieces, text: &str) {
        sse::say(out.next(), text);
    }

    fn content_type(&self) -> &'static str {
        EVENT_STREAM
    }

    /// What it keeps in memory besides the request, at most.
    fn held_bytes(&self) -> usize {
        0
    }

    fn event(&mut self, out: &mut Pieces, index: usize, event: Result<AnswerEvent, Box<Answer>>, request_id: &str) {
        if let Ok(AnswerEvent::Queued(position)) = event {
            return self.comment(out, &format!("x-queue-position: {position}"));
        }
        self.begin(out, index);
        match event {
            Ok(AnswerEvent::Started | AnswerEvent::Queued(_)) => {}
            Ok(AnswerEvent::Delta(delta)) => self.delta(out, index, &delta),
            Ok(AnswerEvent::Finished(finish)) => self.finish(out, index, finish),
            Err(error) => self.fail(out, &error, request_id),
        }
    }
}

fn writer(format: AnswerFormat, request: &Arc<GenerationRequest>) -> Box<dyn AnswerWriter> {
    match format {
        AnswerFormat::OpenAi => Box::new(openai::OpenAiStreamWriter::new(request.clone())),
        AnswerFormat::Responses(echo) => Box::new(responses::ResponsesStreamWriter::new(echo, request.clone())),
        AnswerFormat::Messages => Box::new(messages::MessagesStreamWriter::new(request.clone())),
        AnswerFormat::Native(framing) => Box::new(native::GenerateStreamWriter::new(framing, request.clone())),
    }
}

/// Answers when all choices have ended, or while they run, as the request says.
///
/// # Errors
/// A choice failed before the response's head was sent. The others are then cancelled.
pub(crate) async fn respond(
    format: AnswerFormat,
    running: RunningChoices,
    request: GenerationRequest,
    exchange: Arc<Exchange>,
    share: Share,
) -> Result<Response, FlowError> {
    let answer = AnswerStream::new(running, &request);
    match request.settings.stream {
        true => streamed(writer(format, &Arc::new(request)), answer, exchange, share).await,
        false => whole(format, answer, request, share).await,
    }
}

/// The events of all choices of a request.
struct AnswerStream {
    running: RunningChoices,
    parsers: Vec<PartParser>,
    /// The end of a choice whose last parts were told.
    ending: Option<(usize, Finish)>,
}

impl AnswerStream {
    fn new(running: RunningChoices, request: &GenerationRequest) -> Self {
        let parsers = request.choices().map(|_| PartParser::new(request)).collect();
        Self { running, parsers, ending: None }
    }

    /// Waits for the next event of any choice, and returns it with the choice's index; `None` once all have ended. Dropping the
    /// future loses no event.
    async fn next(&mut self) -> Option<(usize, Result<AnswerEvent, FlowError>)> {
        if let Some((index, finish)) = self.ending.take() {
            return Some((index, Ok(AnswerEvent::Finished(finish))));
        }
        let (index, event) = self.running.next().await?;
        let parser = &mut self.parsers[index];
        let event = event.map(|event| match event {
            ChoiceEvent::Queued(position) => AnswerEvent::Queued(position),
            ChoiceEvent::Started => AnswerEvent::Started,
            ChoiceEvent::Delta(delta) => {
                let parts = parser.push(&delta.text, delta.tokens);
                AnswerEvent::Delta(AnswerDelta { parts, logprobs: delta.logprobs })
            }
            ChoiceEvent::Finished(reason) => {
                let (parts, finish) = (parser.finish(), parser.finish_reason(reason.into()));
                self.running.exchange().note_finish(finish.as_str());
                if parts.is_empty() {
                    return AnswerEvent::Finished(finish);
                }
                self.ending = Some((index, finish));
                AnswerEvent::Delta(AnswerDelta { parts, logprobs: Vec::new() })
            }
        });
        Some((index, event))
    }

    /// Complete once all choices have finished.
    fn totals(&self) -> Totals {
        let totals = self.running.totals();
        let reasoning: u64 = self.parsers.iter().map(PartParser::reasoning_tokens).sum();
        Totals { reasoning_tokens: reasoning.min(totals.generated_tokens), ..totals }
    }
}

/// The body of a stream. It owns the choices, so dropping it when the client leaves cancels them.
struct SseBody {
    answer: AnswerStream,
    writer: Box<dyn AnswerWriter>,
    exchange: Arc<Exchange>,
    out: Pieces,
    ended: bool,
    /// What the request holds until its end, besides what the writer keeps.
    request_bytes: usize,
    share: Share,
    /// Covers the time from the head to the last frame.
    _span: tracing::Span,
}

/// Waits for the first event for a while, so that an early error is an ordinary response, then streams. What comes later
/// than that must not leave the client, or a proxy before it, without a head.
async fn streamed(
    writer: Box<dyn AnswerWriter>,
    mut answer: AnswerStream,
    exchange: Arc<Exchange>,
    share: Share,
) -> Result<Response, FlowError> {
    let first = match timeout(PATIENCE, answer.next()).await {
        Ok(None) => return Err(FlowError::WorkerLost),
        Ok(Some((index, event))) => Some((index, event?)),
        Err(_) => None,
    };
    let (content_type, request_bytes) = (writer.content_type(), share.bytes() as usize);
    let (out, span) = (Pieces::default(), trace::stream(exchange.span()));
    let mut body = SseBody { answer, writer, exchange, out, ended: false, request_bytes, share, _span: span };
    body.account();
    match first {
        Some((index, event)) => body.take(index, Ok(event)),
        None => body.keep_alive(),
    }
    body.exchange.begin_stream();
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(content_type)),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (X_ACCEL_BUFFERING, HeaderValue::from_static("no")),
    ];
    Ok((headers, Body::from_stream(stream::unfold(body, SseBody::write))).into_response())
}

impl SseBody {
    /// The next bytes; `None` after the last ones. Events that are ready are sent together.
    async fn write(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        while self.out.is_empty() && !self.ended {
            match timeout(KEEP_ALIVE, self.answer.next()).await {
                Err(_) => self.keep_alive(),
                Ok(Some((index, event))) => self.take(index, event),
                Ok(None) => self.finish(),
            }
        }
        while !self.ended && !self.out.is_full() {
            match self.answer.next().now_or_never() {
                Some(Some((index, event))) => self.take(index, event),
                Some(None) => self.finish(),
                None => break,
            }
        }
        let piece = self.out.take();
        if self.ended && self.out.is_empty() {
            self.exchange.end_stream();
        }
        piece.map(|piece| (Ok(piece), self))
    }

    fn keep_alive(&mut self) {
        self.writer.comment(&mut self.out, "keep-alive");
    }

    fn take(&mut self, index: usize, event: Result<AnswerEvent, FlowError>) {
        let event = event.map_err(|error| Box::new(error.answer()));
        if let Err(answer) = &event {
            self.exchange.note_in_stream(answer.status().as_u16(), answer.note());
            self.ended = true;
        }
        self.writer.event(&mut self.out, index, event, self.exchange.id());
        self.account();
    }

    fn finish(&mut self) {
        self.writer.end(&mut self.out, self.answer.totals());
        self.ended = true;
    }

    fn account(&mut self) {
        let bytes = self.request_bytes.saturating_add(self.writer.held_bytes());
        if bytes as u64 != self.share.bytes() {
            self.share.set(bytes);
        }
    }
}

/// A choice that has ended.
#[derive(Debug)]
struct WholeChoice {
    /// Begins with the prompt's text if that is echoed.
    content: String,
    reasoning: String,
    calls: Vec<Call>,
    logprobs: Vec<TokenLogprob>,
    finish: Finish,
    /// Log-probabilities that are the prompt's.
    scored: usize,
}

/// A call, which may have been cut.
#[derive(Debug)]
struct Call {
    id: String,
    name: String,
    arguments: String,
}

impl WholeChoice {
    fn new(request: &GenerationRequest, prompt: &Prompt) -> Self {
        let (content, scored) = (prompt.echo.clone(), request.scored(prompt));
        let (reasoning, calls, logprobs) = Default::default();
        Self { content, reasoning, calls, logprobs, finish: Finish::Length, scored }
    }

    fn add(&mut self, delta: AnswerDelta) {
        for part in delta.parts {
            match part {
                AnswerPart::Content(text) => self.content.push_str(&text),
                AnswerPart::Reasoning(text) => self.reasoning.push_str(&text),
                AnswerPart::Call { id, name, .. } => self.calls.push(Call { id, name, arguments: String::new() }),
                AnswerPart::Arguments { index, text } => {
                    if let Some(call) = self.calls.get_mut(index) {
                        call.arguments.push_str(&text);
                    }
                }
            }
        }
        self.logprobs.extend(delta.logprobs);
    }

    /// The mean log-probability of its tokens; of one without any, the least that there is.
    fn likelihood(&self) -> f64 {
        let own = self.logprobs.get(self.scored..).unwrap_or_default();
        let sum: f64 = own.iter().map(|token| f64::from(token.logprob)).sum();
        if own.is_empty() { f64::NEG_INFINITY } else { sum / own.len() as f64 }
    }
}

/// Of each prompt's choices the likeliest ones, as many as are answered, the best one first.
fn likeliest(request: &GenerationRequest, choices: Vec<WholeChoice>) -> Vec<WholeChoice> {
    if !request.chooses() {
        return choices;
    }
    let (generated, answered) = (request.settings.best_of as usize, request.settings.n as usize);
    let (mut rest, mut best) = (choices, Vec::new());
    while !rest.is_empty() {
        let later = rest.split_off(generated.min(rest.len()));
        rest.sort_by(|one, other| other.likelihood().total_cmp(&one.likelihood()));
        best.extend(rest.into_iter().take(answered));
        rest = later;
    }
    best
}

async fn whole(
    format: AnswerFormat,
    mut answer: AnswerStream,
    request: GenerationRequest,
    mut share: Share,
) -> Result<Response, FlowError> {
    let mut choices: Vec<WholeChoice> = request.choices().map(|prompt| WholeChoice::new(&request, prompt)).collect();
    while let Some((index, event)) = answer.next().await {
        match event? {
            AnswerEvent::Queued(_) | AnswerEvent::Started => {}
            AnswerEvent::Delta(delta) => {
                // Log-probabilities, which take far more, have their memory from the start.
                share.add(delta.parts.iter().map(|part| budget::text_bytes(part.text().len())).sum());
                choices[index].add(delta);
            }
            AnswerEvent::Finished(finish) => choices[index].finish = finish,
        }
    }
    let (totals, choices, request) = (answer.totals(), likeliest(&request, choices), Arc::new(request));
    // What it repeats of the request is there as a tree, as text and, while that grows, as text once more.
    share.add(budget::text_bytes(format.held_bytes()));
    budget::rendered(share, move |share| match format {
        AnswerFormat::OpenAi => openai::whole(&request, &choices, totals, share),
        AnswerFormat::Responses(echo) => responses::whole(echo, &request, choices, totals, share),
        AnswerFormat::Messages => messages::whole(&request, &choices, totals, share),
        AnswerFormat::Native(_) => native::whole(&request, &choices, totals, share),
    })
    .await
}

#[cfg(test)]
mod tests;
