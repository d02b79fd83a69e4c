//! One generation on a worker: its placement, its tokens, its sampling state and its text.
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::constraint::{Constraint, exhausted, nothing_left};
use crate::engine::Reuse;
use crate::filter::TextFilter;
use crate::filter_stage::{Released, Rewound};
use crate::grammar::{Mask, Matcher};
use crate::ids::{RequestId, Token};
use crate::message::{Delta, FinishReason, Start, TokenLogprob, Usage, WorkerError};
use crate::output::{Output, TextToken};
use crate::placement::{Placement, Rank};
use crate::policy::TokenSampler;
use crate::sampling::{EndReason, LogSoftmax, MAX_TEXT_TAIL_BYTES, Row, RowError, Workspace};
use crate::segments::Namespace;
use crate::speculate::AcceptanceRate;
use crate::thinking::{Thinking, Urge};
use crate::vocabulary::Vocabulary;

/// What drawing a token led to.
#[derive(Debug)]
pub(crate) enum Drawn {
    /// The sequence goes on. No delta: the text is held back, for it may be the beginning of a stop string.
    Continues(Option<Delta>),
    Ended(Option<Delta>, FinishReason),
    /// A filter took tokens back: others are drawn in their place, once the KV entries are as the tokens that are left.
    Rewound {
        tokens: u32,
    },
    Failed(WorkerError),
}

/// What comes next.
#[derive(Debug)]
enum Next {
    Token(Token),
    /// A sampler ends the generation.
    End(EndReason),
    /// The grammar's text is complete.
    Complete,
}

/// What a sequence is made of.
pub(crate) struct NewSequence {
    pub(crate) start: Box<Start>,
    /// KV tokens, see [`Start`]'s command.
    pub(crate) need: u32,
    pub(crate) rank: Rank,
    pub(crate) sampler: Box<dyn TokenSampler>,
    pub(crate) filters: Vec<Box<dyn TextFilter>>,
    pub(crate) matcher: Option<Matcher>,
}

/// Tokens that may not be drawn again where a filter took them back.
#[derive(Debug)]
struct Ban {
    /// Number of tokens drawn before.
    at: u32,
    tokens: Vec<u32>,
}

fn ids(tokens: &[Token]) -> impl Iterator<Item = u32> {
    tokens.iter().map(|token| token.0)
}

/// The banned tokens of this position.
fn banned_at(bans: &[Ban], position: u32) -> &[u32] {
    bans.last().filter(|ban| ban.at == position).map_or(&[], |ban| &ban.tokens)
}

/// State of a generation between steps.
pub(crate) struct Sequence {
    pub(crate) start: Box<Start>,
    /// Where its KV entries belong.
    root: Namespace,
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
    /// Tokens drawn, without those that were taken back.
    pub(crate) generated: u32,
    /// The number that the pool was told last.
    pub(crate) told: u32,
    /// Draft of the tokens after the last one, for the next step.
    pub(crate) draft: Vec<Token>,
    /// The draft is what the grammar is certain of, not a guess.
    pub(crate) forced: bool,
    /// `None`: the text may be anything.
    pub(crate) constraint: Option<Constraint>,
    pub(crate) acceptance: AcceptanceRate,
    /// Of drafts that a grammar was certain of: a model may spell the same text with other tokens.
    pub(crate) forced_acceptance: AcceptanceRate,
    drafted: u32,
    accepted: u32,
    context_tokens: u32,
    row: Row,
    sampler: Box<dyn TokenSampler>,
    output: Output,
    /// Ascending, each for another place.
    bans: Vec<Ban>,
    vocabulary: Arc<Vocabulary>,
    /// End tokens that are banned, because the request ignores them.
    ignored: Vec<u32>,
    /// Tokens that are banned as long as the output is too short to end.
    early: Vec<u32>,
    /// Leading positions of the prompt whose next tokens' log-probabilities were told.
    scored: u32,
    /// When its time is up, as the worker counts; `None` until it knows, and without a bound.
    until: Option<Duration>,
    /// `None`: it may think as long as it likes.
    thinking: Option<Thinking>,
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
        NewSequence { start, need, rank, sampler, filters, matcher }: NewSequence,
        vocabulary: Arc<Vocabulary>,
        context_tokens: u32,
    ) -> Self {
        let prompt = start.prompt.len();
        // Capacity for all its tokens now, so that no token allocates later.
        let capacity = prompt.saturating_add(start.max_tokens as usize).min(context_tokens as usize).max(prompt);
        let mut tokens = Vec::with_capacity(capacity);
        tokens.extend_from_slice(&start.prompt);
        Self {
            root: start.root(),
            placement: Placement::Waiting,
            rank,
            paused_at: None,
            need,
            tokens,
            kv_tokens: 0,
            reused: None,
            generated: 0,
            told: 0,
            draft: Vec::new(),
            forced: false,
            constraint: matcher.map(Constraint::new),
            acceptance: AcceptanceRate::default(),
            forced_acceptance: AcceptanceRate::of_certain(),
            drafted: 0,
            accepted: 0,
            context_tokens,
            row: Row::new(&start.prompt, start.params.seed).with_capacity(capacity - prompt),
            sampler,
            output: Output::new(&start.stop, filters),
            bans: Vec::new(),
            ignored: if start.ignore_eos { ids(vocabulary.end_tokens()).collect() } else { Vec::new() },
            early: match start.ends.min_tokens {
                0 => Vec::new(),
                _ => ids(vocabulary.end_tokens()).chain(ids(&start.ends.tokens)).collect(),
            },
            scored: 0,
            until: None,
            thinking: start.ends.thinking.clone().map(Thinking::new),
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

    /// Whether a step that computes up to this position decodes it.
    pub(crate) fn decodes_below(&self, limit: u32) -> bool {
        self.is_decoding() && limit > self.kv_tokens
    }

    /// Whether a step that computes up to this position takes some of its prompt.
    pub(crate) fn prefills_below(&self, limit: u32) -> bool {
        !self.is_decoding() && limit > self.kv_tokens
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

    /// The part of its namespace that is computed under its adapters.
    pub(crate) fn namespace(&self) -> &Namespace {
        &self.root
    }

    /// Longest useful draft: the token that is drawn anyway is not part of it. None where each mask of it would take long.
    pub(crate) fn max_draft(&self) -> u32 {
        if self.constraint.as_ref().is_some_and(Constraint::is_slow) {
            return 0;
        }
        self.max_total_tokens().saturating_sub(self.tokens.len() as u32 + 1)
    }

    /// Whether the token that was just drawn is the draft's, after `accepted` others of it.
    pub(crate) fn matches_draft(&self, accepted: u32) -> bool {
        self.draft.get(accepted as usize).is_some_and(|drafted| self.tokens.last() == Some(drafted))
    }

    /// The draft was verified: its first `accepted` tokens were drawn indeed. Returns its length and `accepted`, or zeros if it was
    /// no guess.
    pub(crate) fn settle_draft(&mut self, accepted: u32) -> (u32, u32) {
        let drafted = self.draft.len() as u32;
        self.draft.clear();
        if std::mem::take(&mut self.forced) {
            self.forced_acceptance.record(drafted, accepted);
            return (0, 0);
        }
        self.acceptance.record(drafted, accepted);
        self.drafted += drafted;
        self.accepted += accepted;
        (drafted, accepted)
    }

    /// The draft was not verified: the sequence was not in the step.
    pub(crate) fn drop_draft(&mut self) {
        self.draft.clear();
        self.forced = false;
    }

    /// After tokens were taken back: their KV entries go, and that of the last one left, which is decoded again.
    pub(crate) fn cut_kv(&mut self, reuse: Reuse) {
        self.kv_tokens = match reuse {
            Reuse::Ranges => self.kv_tokens.min((self.tokens.len() as u32).saturating_sub(1)),
            // Its state cannot be cut.
            Reuse::Whole => 0,
        };
    }

    /// Draws the next token from the logits of the sequence's last position, in the worker's buffers.
    pub(crate) fn advance(&mut self, logits: &[f32], workspace: &mut Workspace) -> Drawn {
        self.row.exchange(workspace);
        let drawn = self.draw_next(logits);
        self.row.exchange(workspace);
        drawn
    }

    fn draw_next(&mut self, logits: &[f32]) -> Drawn {
        if self.start.max_tokens == 0 {
            return self.end(FinishReason::Length);
        }
        let (token, reason) = match self.draw(logits) {
            Ok(Next::Token(token)) => (Some(token), FinishReason::Stop),
            Ok(Next::End(EndReason::Stop) | Next::Complete) => (None, FinishReason::Stop),
            Ok(Next::End(EndReason::Length)) => (None, FinishReason::Length),
            Ok(Next::End(EndReason::ContentFilter)) => (None, FinishReason::Filtered),
            Err(error) => return Drawn::Failed(error),
        };
        let banned = self.banned().to_vec();
        let early = self.generated < self.start.ends.min_tokens;
        self.generated += u32::from(token.is_some());
        let released = if let Some(token) = token.filter(|token| !self.ends_with(*token)) {
            // A pass over the vocabulary, for those that asked.
            let wanted = self.start.logprobs;
            let log = (wanted.is_some() || self.output.reads_logprobs()).then(|| LogSoftmax::new(logits));
            // The row was loaded without those that a grammar bans.
            if log.as_ref().is_some_and(|log| !log.is_valid()) {
                return Drawn::Failed(WorkerError::InvalidLogits);
            }
            let own = log.as_ref().map(|log| log.of(token));
            let told = |(n, log): (u32, &LogSoftmax<'_>)| {
                let mut top = log.top(n as usize + banned.len());
                // What a filter took back is not spelt as an alternative either.
                top.retain(|(token, _)| !banned.contains(&token.0));
                top.truncate(n as usize);
                TokenLogprob { token, logprob: log.of(token), top, skipped: 0 }
            };
            let logprob = wanted.zip(log.as_ref()).map(told);
            let bytes = self.start.bytes_of(&self.vocabulary, token);
            self.row.accept(token, bytes);
            if let Some(thinking) = &mut self.thinking {
                thinking.accept(token, bytes);
            }
            let total = self.start.prompt.len() as u32 + self.generated;
            let full = self.generated >= self.start.max_tokens || total >= self.context_tokens;
            let complete = match self.constraint.as_mut().map(|constraint| constraint.accept(token)) {
                None => false,
                Some(Ok(complete)) => complete,
                Some(Err(error)) => return Drawn::Failed(error),
            };
            let end = if complete { Some(FinishReason::Stop) } else { full.then_some(FinishReason::Length) };
            self.output.token(TextToken { token, bytes, logprob, own, end, early })
        } else {
            let mut released = self.output.ended(reason);
            // Who scores a prompt counts on one for each drawn token, one that ends the text, too.
            if let (Some(token), true, Released::Ended(delta, _)) = (token, self.start.score_prompt, &mut released) {
                let log = LogSoftmax::new(logits);
                let top = log.top(self.start.logprobs.unwrap_or(0) as usize);
                let drawn = TokenLogprob { token, logprob: log.of(token), top, skipped: 0 };
                delta.get_or_insert_default().logprobs.push(drawn);
            }
            released
        };
        match released {
            Released::GoesOn(delta) => {
                self.tokens.extend(token);
                Drawn::Continues(delta)
            }
            Released::Ended(delta, reason) => Drawn::Ended(delta, reason),
            Released::Failed(error) => Drawn::Failed(error),
            Released::Rewound(rewound) => Drawn::Rewound { tokens: self.rewind(&rewound) },
        }
    }

    /// Ends it with what it has, without another token.
    pub(crate) fn end(&mut self, reason: FinishReason) -> Drawn {
        match self.output.ended(reason) {
            Released::Ended(delta, reason) => Drawn::Ended(delta, reason),
            Released::Failed(error) => Drawn::Failed(error),
            // What a filter takes back at the very end has nothing to be drawn in its place.
            Released::GoesOn(_) | Released::Rewound(_) => Drawn::Ended(None, reason),
        }
    }

    /// Whether its time is up at `now`, which counts from the first call. Its deadline is the pool's until it has a token.
    pub(crate) fn is_expired(&mut self, now: Duration) -> bool {
        let Some(allowed) = self.start.ends.max_duration else { return false };
        let until = *self.until.get_or_insert(now.saturating_add(allowed));
        self.generated > 0 && until <= now
    }

    fn ends_with(&self, token: Token) -> bool {
        self.vocabulary.is_end(token) || self.start.ends.tokens.contains(&token)
    }

    /// Positions of the prompt whose next tokens have no log-probabilities yet that were asked for.
    pub(crate) fn unscored(&self) -> Range<u32> {
        let last = self.start.prompt.len() as u32 - 1;
        if self.start.score_prompt { self.scored..last } else { last..last }
    }

    /// Tells the log-probabilities of the prompt's tokens that follow the computed `positions`. `logits`: of a position.
    pub(crate) fn score<'a>(&mut self, positions: Range<u32>, logits: impl Fn(u32) -> &'a [f32]) -> Option<Delta> {
        let unscored = self.unscored();
        let next = positions.start.max(unscored.start)..positions.end.min(unscored.end);
        if next.is_empty() {
            return None;
        }
        let one = |position: u32| {
            let token = self.start.prompt[position as usize + 1];
            let log = LogSoftmax::new(logits(position));
            let top = log.top(self.start.logprobs.unwrap_or(0) as usize);
            TokenLogprob { token, logprob: log.of(token), top, skipped: 0 }
        };
        let logprobs = next.clone().map(one).collect();
        self.scored = next.end;
        Some(Delta { logprobs, ..Delta::default() })
    }

    /// Goes back to before a token that a filter took back, which may not be drawn there again. The random numbers go on, and
    /// so does the sampler chain: it sees a row of an earlier position. Returns the number of tokens that are taken back.
    fn rewind(&mut self, Rewound { index, mark }: &Rewound) -> u32 {
        let at = *index as u32;
        let taken_back = self.generated.saturating_sub(at);
        self.generated = at;
        self.tokens.truncate(self.start.prompt.len() + index);
        self.output.resume(mark, self.last_bytes(mark.received.saturating_sub(mark.emitted)));
        let last = self.tokens.last().filter(|_| *index > 0);
        let last_bytes = last.map_or(0, |token| self.start.bytes_of(&self.vocabulary, *token).len());
        self.row.rewind(*index, self.last_bytes(MAX_TEXT_TAIL_BYTES), last_bytes);
        if let Some(constraint) = &mut self.constraint {
            constraint.rewind(*index);
        }
        if let Some(thinking) = &mut self.thinking {
            thinking.restart();
            for token in &self.tokens[self.start.prompt.len()..] {
                thinking.accept(*token, self.start.bytes_of(&self.vocabulary, *token));
            }
        }
        // What comes after it comes after another text from now on.
        self.bans.retain(|ban| ban.at <= at);
        match self.bans.last_mut().filter(|ban| ban.at == at) {
            Some(ban) => ban.tokens.push(mark.token.0),
            None => self.bans.push(Ban { at, tokens: vec![mark.token.0] }),
        }
        taken_back
    }

    /// The last bytes of the tokens that were drawn.
    fn last_bytes(&self, max: usize) -> Vec<u8> {
        let drawn = self.tokens.get(self.start.prompt.len()..).unwrap_or_default();
        let mut pieces: Vec<&[u8]> = Vec::new();
        let mut left = max;
        for token in drawn.iter().rev() {
            if left == 0 {
                break;
            }
            let bytes = self.start.bytes_of(&self.vocabulary, *token);
            let used = &bytes[bytes.len().saturating_sub(left)..];
            left -= used.len();
            pieces.push(used);
        }
        pieces.into_iter().rev().flatten().copied().collect()
    }

    /// The tokens that filters took back at the present position.
    fn banned(&self) -> &[u32] {
        banned_at(&self.bans, self.generated)
    }

    /// Runs the sampler chain, unless it has forced this token before; draws from the row if no sampler chose a token.
    ///
    /// A grammar bans what it does not allow before the samplers, so that what they keep of a row is something that it allows, and
    /// has the last word after them, because they may write any logits and choose any token.
    fn draw(&mut self, logits: &[f32]) -> Result<Next, WorkerError> {
        let mask = self.constraint.as_mut().map(Constraint::mask).transpose()?;
        if mask.as_ref().is_some_and(Mask::is_final) {
            return Ok(Next::Complete);
        }
        let loaded = match &mask {
            Some(mask) => self.row.load_masked(logits, mask.bits()),
            None => self.row.load(logits),
        };
        loaded.map_err(|_| WorkerError::InvalidLogits)?;
        let banned = banned_at(&self.bans, self.generated);
        let allows = |token: Token| mask.as_ref().is_none_or(|mask| mask.allows(token));
        let engine = |error: RowError| WorkerError::Engine(error.to_string());
        if let Some(thinking) = self.thinking.as_ref().filter(|thinking| !banned.contains(&thinking.close()[0])) {
            match thinking.urge() {
                // Once the first is drawn, the others are forced already.
                Urge::Close if !self.row.is_forced() => self.row.force(thinking.close()).map_err(engine)?,
                Urge::Likelier(bias) => self.row.bias(&thinking.close()[..1], &[bias]).map_err(engine)?,
                Urge::Close | Urge::Nothing => {}
            }
        }
        match self.row.take_forced() {
            Some(token) if allows(token) => return Ok(Next::Token(token)),
            Some(_) => self.row.drop_forced(),
            None => {}
        }
        let early = if self.generated < self.start.ends.min_tokens { &self.early[..] } else { &[] };
        for ids in [&self.ignored[..], early, banned].into_iter().filter(|ids| !ids.is_empty()) {
            self.row.ban(ids).map_err(engine)?;
        }
        if mask.is_some() && !self.row.has_any() {
            return Err(nothing_left(logits, !early.is_empty()));
        }
        let fault = |detail: String| WorkerError::PolicyFault { detail };
        let drawn = self.sampler.sample(&mut self.row).map_err(|error| fault(error.to_string()))?;
        if let Some(reason) = self.row.finished() {
            return Ok(Next::End(reason));
        }
        // A sampler may choose or force any token.
        let drawn = self.row.take_forced().or(drawn);
        let drawn = drawn.filter(|token| !banned.contains(&token.0) && allows(*token));
        if drawn.is_none() {
            self.row.drop_forced();
            if !banned.is_empty() {
                // A sampler may write any logits.
                self.row.ban(banned).map_err(engine)?;
            }
        }
        let mut drawn = drawn.or_else(|| self.row.draw());
        if let (Some(mask), Some(_)) = (&mask, drawn.filter(|token| !allows(*token))) {
            self.row.mask(mask.bits()).map_err(engine)?;
            drawn = self.row.draw();
        }
        let token = drawn.ok_or_else(|| match mask {
            Some(_) => exhausted("the samplers ban all others"),
            None => fault("every token is banned".to_owned()),
        })?;
        let known = (token.0 as usize) < self.vocabulary.size();
        if known { Ok(Next::Token(token)) } else { Err(fault(format!("token {token} is outside the vocabulary"))) }
    }
}
