//! One running generation on a worker: its prompt's progress, its sampling state, its text.
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use compact_str::CompactString;

use crate::ids::{RequestId, SeqId, Token};
use crate::message::{Delta, FinishReason, Start, TokenLogprob, Usage, WorkerError};
use crate::policy::TokenSampler;
use crate::prefix::NodeId;
use crate::sampling::{LogSoftmax, Row, Workspace};
use crate::segments::Namespace;
use crate::speculate::AcceptanceRate;
use crate::text::TextStream;
use crate::vocabulary::Vocabulary;

/// What came of a step for one sequence.
#[derive(Debug)]
pub enum Outcome {
    GoesOn(Option<Delta>),
    Ended(Option<Delta>, FinishReason),
    Failed(WorkerError),
}

/// KV entries of a parked sequence that the prefix tree does not keep: those at positions up to `end`.
#[derive(Debug)]
pub(crate) struct Parked {
    pub(crate) end: u32,
    pub(crate) state: Vec<u8>,
}

/// State of a generation between steps.
pub struct Sequence {
    pub(crate) start: Box<Start>,
    /// Among those of its class, the lower the earlier.
    pub(crate) place: u64,
    /// KV tokens that it is admitted with.
    pub(crate) need: u32,
    /// `None` while it has no place on the engine: before it is admitted, and while it is parked.
    pub(crate) seq: Option<SeqId>,
    /// The prompt and what was drawn. The last one is never in the KV cache: decoding it gives the next.
    pub(crate) tokens: Vec<Token>,
    /// How many of `tokens` are in the KV cache.
    pub(crate) done: u32,
    /// How many came there without being computed for this request.
    pub(crate) cached: u32,
    /// Not to be admitted for now: its reader is behind.
    pub(crate) held: bool,
    /// Whether its client has heard of it.
    pub(crate) started: bool,
    /// Tokens drawn.
    pub(crate) generated: u32,
    /// Where the prompt (all but its last token, or nothing where prefixes cannot be shared) ends in the prefix tree,
    /// and its length. `None`: it never was admitted.
    pub(crate) prefix: Option<(NodeId, u32)>,
    /// The KV entries from the end of the prefix on, while it is parked.
    pub(crate) parked: Option<Parked>,
    /// Draft of the tokens after the last one, for the next step.
    pub(crate) draft: Vec<Token>,
    pub(crate) acceptance: AcceptanceRate,
    drafted: u32,
    accepted: u32,
    context_tokens: u32,
    row: Row,
    sampler: Box<dyn TokenSampler>,
    text: TextStream,
    /// Tokens whose text is not out yet: the place where each begins, and what is to be reported of it.
    unreported: VecDeque<(usize, Option<TokenLogprob>)>,
    vocabulary: Arc<Vocabulary>,
    /// Tokens that are not to be drawn although they would end the text; none unless the request ignores ends.
    ends: Vec<u32>,
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Sequence");
        out.field("id", &self.start.id).field("seq", &self.seq).field("done", &self.done).finish_non_exhaustive()
    }
}

impl Sequence {
    /// A sequence whose prompt has not begun. `context_tokens` bounds prompt and output together.
    pub fn new(
        start: Box<Start>,
        sampler: Box<dyn TokenSampler>,
        vocabulary: Arc<Vocabulary>,
        context_tokens: u32,
    ) -> Self {
        let prompt = start.prompt.len();
        // All the room that it will need, so that no token allocates.
        let room = prompt.saturating_add(start.max_tokens as usize).min(context_tokens as usize).max(prompt);
        let mut tokens = Vec::with_capacity(room);
        tokens.extend_from_slice(&start.prompt);
        Self {
            place: 0,
            need: 0,
            seq: None,
            tokens,
            done: 0,
            cached: 0,
            held: false,
            started: false,
            generated: 0,
            prefix: None,
            parked: None,
            draft: Vec::new(),
            acceptance: AcceptanceRate::default(),
            drafted: 0,
            accepted: 0,
            context_tokens,
            row: Row::new(&start.prompt, start.params.seed).with_capacity(room - prompt),
            sampler,
            text: TextStream::new(&start.stop),
            unreported: VecDeque::new(),
            ends: if start.ignore_eos {
                vocabulary.end_tokens().iter().map(|token| token.0).collect()
            } else {
                Vec::new()
            },
            vocabulary,
            start,
        }
    }

    pub fn id(&self) -> RequestId {
        self.start.id
    }

    /// Whether only the last token is left to decode. A prompt of one token decodes from the beginning.
    pub(crate) fn is_decoding(&self) -> bool {
        self.done as usize + 1 == self.tokens.len()
    }

    /// Tokens of the prompt (or, after it was parked, of everything) that are to be computed before the next one is drawn.
    pub(crate) fn prefill_left(&self) -> u32 {
        if self.is_decoding() { 0 } else { self.tokens.len() as u32 - self.done }
    }

    /// Tokens that are not in the prefix tree and so the sequence's own.
    pub(crate) fn own_tokens(&self) -> u32 {
        self.tokens.len() as u32 - self.prefix.map_or(0, |(_, len)| len)
    }

    /// The most tokens that it can still come to.
    pub(crate) fn most_tokens(&self) -> u32 {
        (self.start.prompt.len() as u32).saturating_add(self.start.max_tokens).min(self.context_tokens)
    }

    pub(crate) fn usage(&self) -> Usage {
        let prompt_tokens = self.start.prompt.len() as u32;
        Usage {
            prompt_tokens,
            cached_tokens: self.cached.min(prompt_tokens),
            generated_tokens: self.generated,
            drafted_tokens: self.drafted,
            accepted_tokens: self.accepted,
        }
    }

    pub(crate) fn namespace(&self) -> &Namespace {
        &self.start.namespace
    }

    /// Tokens that may be guessed beside the one that is drawn anyway.
    pub(crate) fn most_draft(&self) -> u32 {
        self.most_tokens().saturating_sub(self.tokens.len() as u32 + 1)
    }

    /// Whether the token that was just drawn is the one that was guessed after `accepted` others.
    pub(crate) fn guessed(&self, accepted: u32) -> bool {
        self.draft.get(accepted as usize).is_some_and(|guess| self.tokens.last() == Some(guess))
    }

    /// The guess was tried: its first `accepted` tokens were right.
    pub(crate) fn settle_draft(&mut self, accepted: u32) {
        let drafted = self.draft.len() as u32;
        self.acceptance.record(drafted, accepted);
        self.drafted += drafted;
        self.accepted += accepted;
        self.draft.clear();
    }

    /// Draws the next token from the logits of the sequence's last position, in the worker's buffers.
    pub(crate) fn advance(&mut self, logits: &[f32], workspace: &mut Workspace) -> Outcome {
        self.row.exchange(workspace);
        let outcome = self.draw_next(logits);
        self.row.exchange(workspace);
        outcome
    }

    fn draw_next(&mut self, logits: &[f32]) -> Outcome {
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
        self.unreported.push_back((self.text.received(), logprob));
        let bytes = self.vocabulary.token_bytes(token).unwrap_or_default();
        self.row.accept(token, bytes);
        let pushed = self.text.push(bytes);
        if pushed.stopped {
            let delta = self.delta(pushed.text, false);
            return Outcome::Ended(delta, FinishReason::Stop);
        }
        let held = self.start.prompt.len() as u32 + self.generated;
        if self.generated >= self.start.max_tokens || held >= self.context_tokens {
            let mut text = pushed.text;
            text.push_str(&self.text.flush());
            return Outcome::Ended(self.delta(text, true), FinishReason::Length);
        }
        self.tokens.push(token);
        Outcome::GoesOn(self.delta(pushed.text, false))
    }

    /// Runs the sampler chain; draws where it did not.
    fn draw(&mut self) -> Result<Token, WorkerError> {
        if !self.ends.is_empty() {
            self.row.ban(&self.ends).map_err(|error| WorkerError::Engine(error.to_string()))?;
        }
        let fault = |detail: String| WorkerError::PolicyFault { detail };
        let drawn = self.sampler.sample(&mut self.row).map_err(|error| fault(error.to_string()))?;
        let token = drawn.or_else(|| self.row.draw()).ok_or_else(|| fault("every token is banned".to_owned()))?;
        let known = (token.0 as usize) < self.vocabulary.size();
        if known { Ok(token) } else { Err(fault(format!("token {token} is outside the vocabulary"))) }
    }

    /// Text still held back at the end.
    fn rest(&mut self) -> Option<Delta> {
        let text = self.text.flush();
        self.delta(text, true)
    }

    /// The text with the tokens that it comes from; all tokens left if `all`. Nothing for no text and no tokens.
    fn delta(&mut self, text: CompactString, all: bool) -> Option<Delta> {
        let given = self.text.emitted();
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
