//! One generation on a worker: its placement, its tokens, its sampling state and its text.
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use compact_str::CompactString;

use crate::ids::{RequestId, Token};
use crate::message::{Delta, FinishReason, Start, TokenLogprob, Usage, WorkerError};
use crate::placement::{Placement, Rank};
use crate::policy::TokenSampler;
use crate::sampling::{LogSoftmax, Row, Workspace};
use crate::segments::Namespace;
use crate::speculate::AcceptanceRate;
use crate::text::TextStream;
use crate::vocabulary::Vocabulary;

/// What drawing a token led to.
#[derive(Debug)]
pub(crate) enum Drawn {
    /// The sequence goes on. No delta: the text is held back, for it may be the beginning of a stop string.
    Continues(Option<Delta>),
    Ended(Option<Delta>, FinishReason),
    Failed(WorkerError),
}

/// What a sequence is made of, beside its sampler.
#[derive(Debug)]
pub(crate) struct NewSequence {
    pub(crate) start: Box<Start>,
    /// KV tokens, see [`Start`]'s command.
    pub(crate) need: u32,
    pub(crate) rank: Rank,
}

/// State of a generation between steps.
pub(crate) struct Sequence {
    pub(crate) start: Box<Start>,
    pub(crate) placement: Placement,
    pub(crate) rank: Rank,
    /// When it was paused last, in the order of such events; `None`: never.
    pub(crate) paused_at: Option<u64>,
    /// KV tokens that it is admitted with.
    pub(crate) need: u32,
    /// The prompt and what was drawn. The last token is never in the KV cache: decoding it gives the next one.
    pub(crate) tokens: Vec<Token>,
    /// Leading `tokens` that are in the KV cache.
    pub(crate) kv_tokens: u32,
    /// Tokens of the prompt that were reused when its first batch was planned. `None` until then.
    reused: Option<u32>,
    /// Tokens drawn.
    pub(crate) generated: u32,
    /// Draft of the tokens after the last one, for the next step.
    pub(crate) draft: Vec<Token>,
    pub(crate) acceptance: AcceptanceRate,
    drafted: u32,
    accepted: u32,
    context_tokens: u32,
    row: Row,
    sampler: Box<dyn TokenSampler>,
    text: TextStream,
    /// Tokens whose text is held back: the offset at which each begins, and its log probability if one was asked for.
    unreported: VecDeque<(usize, Option<TokenLogprob>)>,
    vocabulary: Arc<Vocabulary>,
    /// End tokens that are banned, because the request ignores them.
    ends: Vec<u32>,
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Sequence");
        out.field("id", &self.start.id).field("placement", &self.placement).field("kv_tokens", &self.kv_tokens);
        out.finish_non_exhaustive()
    }
}

impl Sequence {
    /// A sequence that waits to be admitted. `context_tokens` bounds prompt and output together.
    pub(crate) fn new(
        NewSequence { start, need, rank }: NewSequence,
        sampler: Box<dyn TokenSampler>,
        vocabulary: Arc<Vocabulary>,
        context_tokens: u32,
    ) -> Self {
        let prompt = start.prompt.len();
        // Capacity for all its tokens now, so that no token allocates later.
        let capacity = prompt.saturating_add(start.max_tokens as usize).min(context_tokens as usize).max(prompt);
        let mut tokens = Vec::with_capacity(capacity);
        tokens.extend_from_slice(&start.prompt);
        Self {
            placement: Placement::Waiting,
            rank,
            paused_at: None,
            need,
            tokens,
            kv_tokens: 0,
            reused: None,
            generated: 0,
            draft: Vec::new(),
            acceptance: AcceptanceRate::default(),
            drafted: 0,
            accepted: 0,
            context_tokens,
            row: Row::new(&start.prompt, start.params.seed).with_capacity(capacity - prompt),
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

    pub(crate) fn id(&self) -> RequestId {
        self.start.id
    }

    /// Whether only the last token is left to decode. A prompt of one token decodes from the beginning.
    pub(crate) fn is_decoding(&self) -> bool {
        self.kv_tokens as usize + 1 == self.tokens.len()
    }

    /// Tokens to compute before the next one is drawn: of the prompt or, after a preemption, of the output too.
    pub(crate) fn prefill_left(&self) -> u32 {
        if self.is_decoding() { 0 } else { self.tokens.len() as u32 - self.kv_tokens }
    }

    /// Tokens that are not in the prefix tree and so the sequence's own.
    pub(crate) fn own_tokens(&self) -> u32 {
        self.tokens.len() as u32 - self.placement.prefix().map_or(0, |prefix| prefix.tokens)
    }

    /// Upper bound of its tokens, prompt and output.
    pub(crate) fn max_total_tokens(&self) -> u32 {
        (self.start.prompt.len() as u32).saturating_add(self.start.max_tokens).min(self.context_tokens)
    }

    pub(crate) fn usage(&self) -> Usage {
        let prompt_tokens = self.start.prompt.len() as u32;
        Usage {
            prompt_tokens,
            cached_tokens: self.reused.unwrap_or(0).min(prompt_tokens),
            generated_tokens: self.generated,
            drafted_tokens: self.drafted,
            accepted_tokens: self.accepted,
        }
    }

    /// Its next tokens are in a batch. The first time, the number of prompt tokens that were reused instead of computed: its
    /// client is told then.
    pub(crate) fn started(&mut self) -> Option<u32> {
        if self.reused.is_some() {
            return None;
        }
        self.reused = Some(self.kv_tokens);
        Some(self.usage().cached_tokens)
    }

    pub(crate) fn namespace(&self) -> &Namespace {
        &self.start.namespace
    }

    /// Longest useful draft: the token that is drawn anyway is not part of it.
    pub(crate) fn max_draft(&self) -> u32 {
        self.max_total_tokens().saturating_sub(self.tokens.len() as u32 + 1)
    }

    /// Whether the token that was just drawn is the draft's, after `accepted` others of it.
    pub(crate) fn matches_draft(&self, accepted: u32) -> bool {
        self.draft.get(accepted as usize).is_some_and(|drafted| self.tokens.last() == Some(drafted))
    }

    /// The draft was verified: its first `accepted` tokens were drawn indeed.
    pub(crate) fn settle_draft(&mut self, accepted: u32) {
        let drafted = self.draft.len() as u32;
        self.acceptance.record(drafted, accepted);
        self.drafted += drafted;
        self.accepted += accepted;
        self.draft.clear();
    }

    /// Draws the next token from the logits of the sequence's last position, in the worker's buffers.
    pub(crate) fn advance(&mut self, logits: &[f32], workspace: &mut Workspace) -> Drawn {
        self.row.exchange(workspace);
        let drawn = self.draw_next(logits);
        self.row.exchange(workspace);
        drawn
    }

    fn draw_next(&mut self, logits: &[f32]) -> Drawn {
        if self.row.load(logits).is_err() {
            return Drawn::Failed(WorkerError::InvalidLogits);
        }
        let token = match self.draw() {
            Ok(Some(token)) => token,
            Ok(None) => return Drawn::Ended(self.rest(), FinishReason::Stop),
            Err(error) => return Drawn::Failed(error),
        };
        self.generated += 1;
        if self.vocabulary.is_end(token) {
            return Drawn::Ended(self.rest(), FinishReason::Stop);
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
            return Drawn::Ended(delta, FinishReason::Stop);
        }
        let total = self.start.prompt.len() as u32 + self.generated;
        if self.generated >= self.start.max_tokens || total >= self.context_tokens {
            let mut text = pushed.text;
            text.push_str(&self.text.flush());
            return Drawn::Ended(self.delta(text, true), FinishReason::Length);
        }
        self.tokens.push(token);
        Drawn::Continues(self.delta(pushed.text, false))
    }

    /// Runs the sampler chain, unless it has forced this token before; draws from the row if no sampler chose a token. `None`:
    /// a sampler ends the generation.
    fn draw(&mut self) -> Result<Option<Token>, WorkerError> {
        if let Some(token) = self.row.take_forced() {
            return Ok(Some(token));
        }
        if !self.ends.is_empty() {
            self.row.ban(&self.ends).map_err(|error| WorkerError::Engine(error.to_string()))?;
        }
        let fault = |detail: String| WorkerError::PolicyFault { detail };
        let drawn = self.sampler.sample(&mut self.row).map_err(|error| fault(error.to_string()))?;
        if self.row.is_finished() {
            return Ok(None);
        }
        let drawn = self.row.take_forced().or(drawn);
        let token = drawn.or_else(|| self.row.draw()).ok_or_else(|| fault("every token is banned".to_owned()))?;
        let known = (token.0 as usize) < self.vocabulary.size();
        if known { Ok(Some(token)) } else { Err(fault(format!("token {token} is outside the vocabulary"))) }
    }

    /// Text still held back at the end.
    fn rest(&mut self) -> Option<Delta> {
        let text = self.text.flush();
        self.delta(text, true)
    }

    /// The text with the tokens that it comes from; all remaining tokens if `all`. `None` for no text and no tokens.
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
