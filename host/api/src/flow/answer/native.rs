//! The server's own generations: one text, without choices, in events or in lines of JSON.
use std::sync::Arc;

use axum::response::Response;
use serde::Serialize;

use super::logprobs::{self, TextProgress};
use super::{AnswerDelta, AnswerWriter, EVENT_STREAM, WholeChoice};
use crate::flow::budget::{self, Share};
use crate::flow::error::FlowError;
use crate::flow::generation::Totals;
use crate::flow::request::GenerationRequest;
use crate::wire::dialect::Framing;
use crate::wire::error::{Answer, ErrorBody};
use crate::wire::sse::{self, Pieces};
use crate::wire::stamp;
use crate::wire::types::generate::{GenerateEvent, GenerateUsage, Generation};
use crate::wire::types::generation::Finish;

/// What the name of an answer begins with.
const ID: &str = "gen-";
const NDJSON: &str = "application/x-ndjson";

impl From<Totals> for GenerateUsage {
    fn from(totals: Totals) -> Self {
        Self {
            prompt_tokens: totals.prompt_tokens,
            cached_tokens: totals.cached_tokens,
            completion_tokens: totals.generated_tokens,
            total_tokens: totals.prompt_tokens + totals.generated_tokens,
        }
    }
}

fn session(request: &GenerationRequest) -> Option<&str> {
    request.settings.session.as_ref().map(|session| session.as_str())
}

/// A whole generation.
///
/// # Errors
/// It cannot be written, or has no choice.
pub(super) fn whole(
    request: &GenerationRequest,
    choices: &[WholeChoice],
    totals: Totals,
    share: Share,
) -> Result<Response, FlowError> {
    let choice = choices.first().ok_or(FlowError::WorkerLost)?;
    let generation = Generation {
        id: stamp::id(ID),
        object: "generation",
        created: stamp::now(),
        model: request.model_name(),
        session_id: session(request),
        text: &choice.content,
        logprobs: logprobs::of_text(request, 0, choice),
        finish_reason: choice.finish,
        usage: totals.into(),
    };
    budget::json(&generation, share)
}

/// Writes the events of one generation: `start`, `text` for each piece, and `end` with the reason and the usage.
pub(super) struct GenerateStreamWriter {
    id: String,
    framing: Framing,
    request: Arc<GenerationRequest>,
    has_begun: bool,
    text: Option<TextProgress>,
    finish: Finish,
}

impl GenerateStreamWriter {
    pub(super) fn new(framing: Framing, request: Arc<GenerationRequest>) -> Self {
        let text = request.prompts.first().map(|prompt| TextProgress::new(&request, prompt));
        Self { id: stamp::id(ID), framing, request, has_begun: false, text, finish: Finish::Length }
    }

    fn write(&self, out: &mut Pieces, event: &impl Serialize) {
        match self.framing {
            Framing::Lines => sse::line(out.next(), event),
            Framing::Events | Framing::Unspecified => sse::write(out.next(), event),
        }
    }
}

impl AnswerWriter for GenerateStreamWriter {
    fn content_type(&self) -> &'static str {
        if self.framing == Framing::Lines { NDJSON } else { EVENT_STREAM }
    }

    fn begin(&mut self, out: &mut Pieces, index: usize) {
        if std::mem::replace(&mut self.has_begun, true) {
            return;
        }
        let request = self.request.clone();
        let (session_id, prompt_tokens) = (session(&request), request.prompt_tokens());
        let (model, created) = (request.model_name(), stamp::now());
        self.write(out, &GenerateEvent::Start { id: &self.id, created, model, session_id, prompt_tokens });
        if let Some((text, logprobs)) = self.text.as_mut().and_then(|progress| progress.opening(&request, index)) {
            self.write(out, &GenerateEvent::Text { text: &text, logprobs });
        }
    }

    fn delta(&mut self, out: &mut Pieces, _: usize, delta: &AnswerDelta) {
        let progress = self.text.as_mut().filter(|_| !delta.logprobs.is_empty());
        let logprobs = progress.map(|progress| progress.logprobs(&self.request.vocabulary, &delta.logprobs));
        if logprobs.is_some() || !delta.parts.is_empty() {
            self.write(out, &GenerateEvent::Text { text: delta.text(), logprobs });
        }
    }

    fn finish(&mut self, _: &mut Pieces, _: usize, finish: Finish) {
        self.finish = finish;
    }

    fn end(&mut self, out: &mut Pieces, totals: Totals) {
        let (finish_reason, session_id) = (self.finish, session(&self.request));
        self.write(out, &GenerateEvent::End { finish_reason, session_id, usage: totals.into() });
        if self.framing != Framing::Lines {
            out.next().extend_from_slice(sse::DONE);
        }
    }

    fn fail(&mut self, out: &mut Pieces, error: &Answer, request_id: &str) {
        self.write(out, &ErrorBody { error: &error.note().object, request_id });
    }

    fn comment(&mut self, out: &mut Pieces, text: &str) {
        match self.framing {
            Framing::Lines => self.write(out, &GenerateEvent::Comment { text }),
            Framing::Events | Framing::Unspecified => sse::say(out.next(), text),
        }
    }
}
