//! One row of logits with its candidate set: the operations from which sampler policies are built.
use std::collections::HashMap;

use super::checks::{RowError, check, check_biases, check_ids, check_penalties, check_temperature};
use super::draw::draw;
use super::penalties::{History, Penalties};
use super::random::RandomStream;
use super::select::{Candidate, best_first, max_logit};
use super::values::Values;
use crate::ids::Token;
use crate::vectorized;
use crate::vectors::exp;

/// Bytes of generated text kept for policies that read text.
pub const MAX_TEXT_TAIL_BYTES: usize = 4096;

/// Tokens that a policy forces at once.
pub const MAX_FORCED: usize = 256;

/// Why a sampler ends a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    Stop,
    Length,
    ContentFilter,
}

/// Sampling state of one sequence. The worker loads new logits into it at every step.
///
/// The row has a logit for every token, and a set of candidates, which is the whole vocabulary until an operation
/// narrows it. From then on penalties and temperature change only the candidates' logits. The row keeps its own, so
/// that [`Row::draw`] can still choose a token after a policy has banned every candidate.
#[derive(Debug, Default)]
pub struct Row {
    pub(super) workspace: Workspace,
    /// Whether the candidates are those of the workspace; otherwise all tokens are candidates.
    pub(super) narrowed: bool,
    pub(super) settled: bool,
    pub(super) history: History,
    text: Vec<u8>,
    /// Bytes of the text that came with the last token.
    last_bytes: usize,
    random: RandomStream,
    pub(super) mirostat: Option<Mirostat>,
    /// What is drawn next, the next one last.
    forced: Vec<Token>,
    ends: Option<EndReason>,
    /// What [`Row::undo`] restores beside the logits.
    saved: Option<Saved>,
}

/// The state of `Row::keep_surprise`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mirostat {
    /// In bits, as the target.
    pub(super) bound: f32,
    pub(super) target: f32,
    pub(super) rate: f32,
    /// Whether the token that is drawn next moves the bound.
    pub(super) armed: bool,
}

/// The state of a row when a policy began to shape it.
#[derive(Debug)]
struct Saved {
    candidates: Option<Vec<Candidate>>,
    settled: bool,
    random: RandomStream,
    mirostat: Option<Mirostat>,
    forced: Vec<Token>,
    ends: Option<EndReason>,
}

/// Buffers that a row needs only while it draws a token. A worker lends the same buffers to all its rows in turn, so
/// that they stay in the CPU cache.
#[derive(Debug, Default, Clone)]
pub struct Workspace {
    pub(super) values: Values,
    pub(super) candidates: Vec<Candidate>,
    /// Scratch of `draw`, by block.
    bounds: Vec<f64>,
    /// Candidates that were looked at to find single tokens, since it was made: what many ids must not cost.
    pub(super) looked_at: usize,
}

/// The model returned a logit that is not a number, or no finite one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("logits hold NaN, +infinity or no finite value")]
pub struct InvalidLogits;

/// Candidates that are weighed at once, which the compiler vectorises.
const WEIGHED: usize = 64;

vectorized! {
    /// The sum of exp(logit - best).
    fn total_weight(candidates: &[Candidate], best: f32) -> f64 {
        let mut total = 0.0;
        for some in candidates.chunks(WEIGHED) {
            let mut weights = [0.0; WEIGHED];
            for (weight, c) in weights.iter_mut().zip(some) {
                *weight = exp(c.logit - best);
            }
            total += weights.into_iter().map(f64::from).sum::<f64>();
        }
        total
    }
}

/// Comparisons of tokens that cost less than a table of them.
const FEW_COMPARISONS: usize = 4096;

/// Where each candidate is, if many are to be found.
struct Places(Option<HashMap<u32, usize>>);

impl Places {
    /// For `lookups` calls of `find`.
    fn of(candidates: &[Candidate], lookups: usize) -> Self {
        let many = candidates.len().saturating_mul(lookups) > FEW_COMPARISONS;
        Self(many.then(|| candidates.iter().enumerate().map(|(place, c)| (c.token, place)).collect()))
    }

    /// `looked_at` grows by the candidates that it looked at.
    fn find<'a>(
        &self,
        candidates: &'a mut [Candidate],
        token: u32,
        looked_at: &mut usize,
    ) -> Option<&'a mut Candidate> {
        let place = match &self.0 {
            Some(places) => places.get(&token).copied(),
            None => candidates.iter().position(|c| c.token == token),
        };
        *looked_at += if self.0.is_some() { 1 } else { place.map_or(candidates.len(), |place| place + 1) };
        candidates.get_mut(place?)
    }
}

impl Row {
    /// A row for a request with this prompt and seed.
    pub fn new(prompt: &[Token], seed: u64) -> Self {
        Self { history: History::new(prompt), random: RandomStream::new(seed), ..Self::default() }
    }

    /// Allocates for `tokens` more tokens and the text they usually have, so that drawing them does not allocate.
    #[must_use]
    pub fn with_capacity(mut self, tokens: usize) -> Self {
        self.history.reserve(tokens);
        self.text.reserve((4 * tokens).min(2 * MAX_TEXT_TAIL_BYTES + 64));
        self
    }

    /// Loads the logits of a step and makes all tokens candidates.
    ///
    /// # Errors
    /// A logit is NaN or +infinity, or none is finite.
    pub fn load(&mut self, logits: &[f32]) -> Result<(), InvalidLogits> {
        self.reset();
        if self.workspace.values.load(logits) { Ok(()) } else { Err(InvalidLogits) }
    }

    /// Loads the logits of a step, and bans all tokens whose bit is 0 or absent. Bit `i % 32` of word `i / 32` is token `i`'s.
    ///
    /// # Errors
    /// The logit of a token with a bit is NaN or +infinity.
    pub fn load_masked(&mut self, logits: &[f32], bits: &[u32]) -> Result<(), InvalidLogits> {
        self.reset();
        if self.workspace.values.load_masked(logits, bits) { Ok(()) } else { Err(InvalidLogits) }
    }

    fn reset(&mut self) {
        (self.narrowed, self.settled) = (false, false);
        if let Some(mirostat) = &mut self.mirostat {
            mirostat.armed = false;
        }
        self.workspace.candidates.clear();
    }

    /// Exchanges the workspace: the worker lends it before `load`, and takes it back after the draw.
    pub fn exchange(&mut self, workspace: &mut Workspace) {
        std::mem::swap(&mut self.workspace, workspace);
    }

    /// A row to try something on: the same candidates, tokens and random numbers. What becomes of it changes nothing here.
    #[must_use]
    pub fn copy(&self) -> Self {
        Self {
            workspace: self.workspace.clone(),
            narrowed: self.narrowed,
            settled: self.settled,
            history: self.history.clone(),
            text: self.text.clone(),
            last_bytes: self.last_bytes,
            random: self.random,
            mirostat: self.mirostat,
            forced: Vec::new(),
            ends: None,
            saved: None,
        }
    }

    /// From here on changes can be undone, until [`Row::keep`].
    pub fn begin(&mut self) {
        self.workspace.values.begin();
        let candidates = self.narrowed.then(|| self.workspace.candidates.clone());
        let (settled, random, mirostat) = (self.settled, self.random, self.mirostat);
        let (forced, ends) = (self.forced.clone(), self.ends);
        self.saved = Some(Saved { candidates, settled, random, mirostat, forced, ends });
    }

    /// The changes since [`Row::begin`] are final.
    pub fn keep(&mut self) {
        self.saved = None;
        self.workspace.values.keep();
    }

    /// Restores the row of [`Row::begin`].
    pub fn undo(&mut self) {
        let Some(Saved { candidates, settled, random, mirostat, forced, ends }) = self.saved.take() else { return };
        self.workspace.values.undo();
        self.narrowed = candidates.is_some();
        self.workspace.candidates = candidates.unwrap_or_default();
        (self.settled, self.random, self.mirostat) = (settled, random, mirostat);
        // Another policy of the chain may have forced tokens or ended the generation.
        (self.forced, self.ends) = (forced, ends);
    }

    /// Records the drawn token and its bytes.
    pub fn accept(&mut self, token: Token, bytes: &[u8]) {
        self.note_surprise(token.0);
        self.history.push(token);
        self.text.extend_from_slice(bytes);
        self.last_bytes = bytes.len();
        if self.text.len() > 2 * MAX_TEXT_TAIL_BYTES {
            self.text.drain(..self.text.len() - MAX_TEXT_TAIL_BYTES);
        }
    }

    /// Forgets all drawn tokens but the first `drawn`, whose last bytes are `text`; `last_bytes` came with the last of them.
    pub fn rewind(&mut self, drawn: usize, text: Vec<u8>, last_bytes: usize) {
        self.history.truncate(drawn);
        self.text = text;
        self.last_bytes = last_bytes;
        self.ends = None;
        self.drop_forced();
    }

    /// Number of tokens in the vocabulary.
    pub fn size(&self) -> usize {
        self.workspace.values.len()
    }

    /// Number of candidates left.
    pub fn candidates(&self) -> usize {
        if self.narrowed { self.workspace.candidates.len() } else { self.workspace.values.len() }
    }

    /// Whether any token of the row is not banned.
    pub fn has_any(&self) -> bool {
        self.workspace.values.maximum() > f32::NEG_INFINITY
    }

    /// Whether a policy has set a temperature (1 counts) or kept the best candidate since `load`. If so, the worker
    /// draws from the row as it is; otherwise the native chain still has to shape it.
    pub fn is_settled(&self) -> bool {
        self.settled
    }

    /// Number of tokens drawn so far.
    pub fn position(&self) -> usize {
        self.history.output_len()
    }

    /// The last `max` tokens of prompt and output, oldest first.
    pub fn history(&self, max: usize) -> &[Token] {
        self.history.last(max)
    }

    /// The last `max` bytes (at most 4096) of the generated text.
    pub fn text_tail(&self, max: usize) -> &[u8] {
        &self.text[self.text.len().saturating_sub(max.min(MAX_TEXT_TAIL_BYTES))..]
    }

    /// Whether an occurrence of the text ended within the bytes of the last token.
    pub(super) fn ended_in_last(&self, text: &[u8]) -> bool {
        let seen = (self.last_bytes + text.len()).saturating_sub(1).min(self.text.len());
        self.last_bytes > 0 && self.text[self.text.len() - seen..].windows(text.len()).any(|part| part == text)
    }

    /// Makes these the next tokens, in order, from the one on that is drawn now. No sampler is asked for them.
    ///
    /// # Errors
    /// There are too many, or one is outside the vocabulary.
    pub fn force(&mut self, ids: &[u32]) -> Result<(), RowError> {
        if ids.len() > MAX_FORCED {
            return Err(RowError::TooManyForced { ids: ids.len(), max: MAX_FORCED });
        }
        check_ids(ids, self.size())?;
        self.forced = ids.iter().rev().map(|&token| Token(token)).collect();
        Ok(())
    }

    /// Whether the next token is forced.
    pub(crate) fn is_forced(&self) -> bool {
        !self.forced.is_empty()
    }

    /// Takes the next of the forced tokens.
    pub fn take_forced(&mut self) -> Option<Token> {
        self.forced.pop()
    }

    /// The tokens that are still forced are no more.
    pub fn drop_forced(&mut self) {
        self.forced.clear();
    }

    /// Ends the generation before the token that would be drawn now.
    pub fn finish(&mut self, reason: EndReason) {
        self.ends = Some(reason);
    }

    /// Why a policy has ended the generation, if it has.
    pub fn finished(&self) -> Option<EndReason> {
        self.ends
    }

    /// A number in [0, 1) from the request's random generator.
    pub(super) fn next_unit(&mut self) -> f64 {
        self.random.next_unit()
    }

    /// Adds `values[i]` to the logit of `ids[i]`.
    pub fn bias(&mut self, ids: &[u32], values: &[f32]) -> Result<(), RowError> {
        check_biases(ids, values, self.size())?;
        self.bias_checked(ids, values);
        Ok(())
    }

    pub(super) fn bias_checked(&mut self, ids: &[u32], values: &[f32]) {
        let Workspace { values: row, candidates, looked_at, .. } = &mut self.workspace;
        let places = Places::of(candidates, ids.len());
        for (&token, &value) in ids.iter().zip(values) {
            // A banned token stays banned.
            let plus = |logit: f32| if logit == f32::NEG_INFINITY { logit } else { (logit + value).min(f32::MAX) };
            row.set(token, plus(row.get(token)));
            if let Some(c) = places.find(candidates, token, looked_at) {
                c.logit = plus(c.logit);
            }
        }
        self.drop_banned();
    }

    /// Applies the repetition penalty to the last `last_n` tokens of prompt and output (Keskar et al. 2019), and the
    /// frequency and presence penalties to the tokens of the output (as OpenAI documents them).
    pub fn penalize(&mut self, last_n: u32, repeat: f32, frequency: f32, presence: f32) -> Result<(), RowError> {
        check_penalties(repeat, frequency, presence)?;
        let penalties = Penalties { last_n: last_n as usize, repeat, frequency, presence };
        let (Workspace { values, candidates, looked_at, .. }, narrowed) = (&mut self.workspace, self.narrowed);
        let places = Places::of(candidates, self.history.len());
        self.history.apply(penalties, |token, change| {
            if narrowed {
                if let Some(c) = places.find(candidates, token.0, looked_at) {
                    c.logit = change(c.logit);
                }
            } else if (token.0 as usize) < values.len() {
                values.set(token.0, change(values.get(token.0)));
            }
        });
        Ok(())
    }

    /// Divides the candidates' logits by `t` > 0.
    pub fn temperature(&mut self, t: f32) -> Result<(), RowError> {
        check_temperature(t)?;
        let scale = 1.0 / t;
        self.settled = true;
        if t == 1.0 {
            return Ok(());
        }
        if self.narrowed {
            self.workspace.candidates.iter_mut().for_each(|c| c.logit *= scale);
        } else {
            self.workspace.values.scale(scale);
        }
        Ok(())
    }

    /// Sets the logits of `ids` to minus infinity.
    pub fn ban(&mut self, ids: &[u32]) -> Result<(), RowError> {
        check_ids(ids, self.size())?;
        self.ban_checked(ids);
        Ok(())
    }

    pub(super) fn ban_checked(&mut self, ids: &[u32]) {
        for &token in ids {
            self.workspace.values.set(token, f32::NEG_INFINITY);
        }
        self.drop_banned();
    }

    /// Sets the logits of all tokens but `ids` to minus infinity.
    pub fn allow_only(&mut self, ids: &[u32]) -> Result<(), RowError> {
        check_ids(ids, self.size())?;
        self.allow_only_checked(ids);
        Ok(())
    }

    pub(super) fn allow_only_checked(&mut self, ids: &[u32]) {
        self.workspace.values.allow_only(ids);
        self.drop_banned();
    }

    /// The `n` best candidates, best first.
    pub fn top(&mut self, n: usize) -> Vec<(Token, f32)> {
        let mut out = Vec::new();
        if self.narrowed {
            out.extend_from_slice(&self.workspace.candidates);
            out.sort_unstable_by(best_first);
            out.truncate(n);
        } else {
            self.workspace.values.top_k(n, &mut out);
        }
        out.into_iter().map(|c| (Token(c.token), c.logit)).collect()
    }

    /// Logits of tokens `start..start + len`.
    pub fn read(&self, start: u32, len: u32) -> Result<&[f32], RowError> {
        let range = self.range(start, len as usize)?;
        Ok(&self.workspace.values.as_slice()[range])
    }

    /// Overwrites logits from token `start` on.
    pub fn write(&mut self, start: u32, values: &[f32]) -> Result<(), RowError> {
        let range = self.range(start, values.len())?;
        for &value in values {
            check("logit", value, value < f32::INFINITY)?;
        }
        let Workspace { values: row, candidates, .. } = &mut self.workspace;
        row.write(range.start, values);
        for c in candidates.iter_mut().filter(|c| range.contains(&(c.token as usize))) {
            c.logit = row.get(c.token);
        }
        self.drop_banned();
        Ok(())
    }

    /// Draws a candidate in proportion to its probability. If every candidate is banned, returns the best token of the
    /// row; `None` if every token of the row is banned.
    pub fn draw(&mut self) -> Option<Token> {
        let Workspace { values, candidates, bounds, .. } = &mut self.workspace;
        match candidates.as_slice() {
            _ if !self.narrowed => return draw(values, bounds, &mut self.random.next_generator()).map(Token),
            [] => return values.argmax().map(Token),
            // One candidate needs no random number, so greedy requests use none.
            [only] => return Some(Token(only.token)),
            _ => {}
        }
        let best = max_logit(candidates);
        let weight = |c: &Candidate| f64::from(exp(c.logit - best));
        let mut left = self.random.next_unit() * total_weight(candidates, best);
        for some in candidates.chunks(WEIGHED) {
            let sum = total_weight(some, best);
            if left >= sum {
                left -= sum;
                continue;
            }
            for c in some {
                left -= weight(c);
                if left < 0.0 {
                    return Some(Token(c.token));
                }
            }
        }
        // Rounding can leave a remainder after the last candidate.
        candidates.last().map(|c| Token(c.token))
    }

    /// The next bits of the request's random generator, for policies that draw on their own.
    pub fn random_bits(&mut self) -> u64 {
        self.random.next_bits()
    }

    fn range(&self, start: u32, len: usize) -> Result<std::ops::Range<usize>, RowError> {
        let end = u64::from(start) + len as u64;
        let size = self.workspace.values.len();
        if end > size as u64 {
            return Err(RowError::OutOfBounds { start: u64::from(start), end, size });
        }
        Ok(start as usize..start as usize + len)
    }

    pub(super) fn drop_banned(&mut self) {
        if self.narrowed {
            let Workspace { values, candidates, .. } = &mut self.workspace;
            candidates.retain(|c| c.logit > f32::NEG_INFINITY && values.get(c.token) > f32::NEG_INFINITY);
        }
    }
}

#[cfg(test)]
#[path = "row_tests.rs"]
mod tests;
