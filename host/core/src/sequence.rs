//! One running generation on a worker: its prompt's progress, its sampling state, its text.
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use crate::ids::{RequestId, SeqId, Token};
use crate::message::{Delta, FinishReason, Start, TokenLogprob, Usage, WorkerError};
use crate::policy::TokenSampler;
use crate::sampling::{LogSoftmax, Row};
use crate::text::TextStream;
use crate::vocabulary::Vocabulary;

/// What a sequence does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The first `done` tokens of the prompt are in the KV cache.
    Prefill { done: u32 },
    /// `next` was drawn and is not in the KV cache yet.
    Decode { next: Token },
}

/// What came of a step for one sequence.
#[derive(Debug)]
pub enum Outcome {
    GoesOn(Option<Delta>),
    Ended(Option<Delta>, FinishReason),
    Failed(WorkerError),
}

/// State of a generation between steps.
pub struct Sequence {
    pub(crate) start: Box<Start>,
    pub(crate) seq: SeqId,
    pub(crate) phase: Phase,
    /// Tokens drawn.
    pub(crate) generated: u32,
    context_tokens: u32,
    row: Row,
    sampler: Box<dyn TokenSampler>,
    text: TextStream,
    /// Tokens whose text is not out yet: the place where each begins, and what is to be reported of it.
    unreported: VecDeque<(usize, Option<TokenLogprob>)>,
    vocabulary: Arc<Vocabulary>,
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Sequence");
        out.field("id", &self.start.id).field("seq", &self.seq).field("phase", &self.phase).finish_non_exhaustive()
    }
}

impl Sequence {
    /// A sequence whose prompt has not begun. `context_tokens` bounds prompt and output together.
    pub fn new(
        start: Box<Start>,
        seq: SeqId,
        sampler: Box<dyn TokenSampler>,
        vocabulary: Arc<Vocabulary>,
        context_tokens: u32,
    ) -> Self {
        let row = Row::new(&start.prompt, start.params.seed);
        let text = TextStream::new(&start.stop);
        let phase = Phase::Prefill { done: 0 };
        let unreported = VecDeque::new();
        Self { start, seq, phase, generated: 0, context_tokens, row, sampler, text, unreported, vocabulary }
    }

    pub fn id(&self) -> RequestId {
        self.start.id
    }

    /// Tokens in the KV cache (before the step in progress).
    pub(crate) fn position(&self) -> u32 {
        match self.phase {
            Phase::Prefill { done } => done,
            Phase::Decode { .. } => self.start.prompt.len() as u32 + self.generated - 1,
        }
    }

    /// Prompt tokens that are not in the KV cache yet.
    pub(crate) fn prompt_left(&self) -> u32 {
        match self.phase {
            Phase::Prefill { done } => self.start.prompt.len() as u32 - done,
            Phase::Decode { .. } => 0,
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage { prompt_tokens: self.start.prompt.len() as u32, cached_tokens: 0, generated_tokens: self.generated }
    }

    /// Draws the next token from the logits of the sequence's last position.
    pub(crate) fn advance(&mut self, logits: &[f32]) -> Outcome {
        if self.row.load(logits).is_err() {
            return Outcome::Failed(WorkerError::InvalidLogits);
        }
        let token = match self.draw() {
            Ok(token) => token,
            Err(error) => return Outcome::Failed(error),
        };
        self.generated += 1;
        if self.vocabulary.is_end(token) {
            return Outcome::Ended(self.rest(), FinishReason::Stop);
        }
        let logprob = self.start.logprobs.map(|n| {
            let log = LogSoftmax::new(logits);
            TokenLogprob { token, logprob: log.of(token), top: log.top(n as usize) }
        });
        self.unreported.push_back((self.text.taken(), logprob));
        let bytes = self.vocabulary.token_bytes(token).unwrap_or_default();
        self.row.accept(token, bytes);
        let pushed = self.text.push(bytes);
        if pushed.stopped {
            let delta = self.delta(pushed.text, false);
            return Outcome::Ended(delta, FinishReason::Stop);
        }
        let held = self.start.prompt.len() as u32 + self.generated;
        if self.generated >= self.start.max_tokens || held >= self.context_tokens {
            let text = pushed.text + &self.text.rest();
            return Outcome::Ended(self.delta(text, true), FinishReason::Length);
        }
        self.phase = Phase::Decode { next: token };
        Outcome::GoesOn(self.delta(pushed.text, false))
    }

    /// Runs the sampler chain; draws where it did not.
    fn draw(&mut self) -> Result<Token, WorkerError> {
        if self.start.ignore_eos {
            let ends: Vec<u32> = self.vocabulary.end_tokens().iter().map(|token| token.0).collect();
            self.row.ban(&ends).map_err(|error| WorkerError::Engine(error.to_string()))?;
        }
        let fault = |detail: String| WorkerError::PolicyFault { detail };
        let drawn = self.sampler.sample(&mut self.row).map_err(|error| fault(error.to_string()))?;
        let token = drawn.or_else(|| self.row.draw()).ok_or_else(|| fault("every token is banned".to_owned()))?;
        let known = (token.0 as usize) < self.vocabulary.size();
        if known { Ok(token) } else { Err(fault(format!("token {token} is outside the vocabulary"))) }
    }

    /// Text still held back at the end.
    fn rest(&mut self) -> Option<Delta> {
        let text = self.text.rest();
        self.delta(text, true)
    }

    /// The text with the tokens that it comes from; all tokens left if `all`. Nothing for no text and no tokens.
    fn delta(&mut self, text: String, all: bool) -> Option<Delta> {
        let given = self.text.given();
        let mut delta = Delta { text, ..Delta::default() };
        while self.unreported.front().is_some_and(|(begins, _)| all || *begins < given) {
            if let Some((_, logprob)) = self.unreported.pop_front() {
                delta.tokens += 1;
                delta.logprobs.extend(logprob);
            }
        }
        (!delta.text.is_empty() || delta.tokens > 0).then_some(delta)
    }
}
