//! Where one generation is in its grammar, and which tokens may come next.
use std::collections::VecDeque;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use llguidance::api::StopReason;
use llguidance::{TokenParser, panic_utils};
use rustix::time::{ClockId, clock_gettime};
use toktrie::SimpleVob;

use super::compile::Compiled;
use super::error::compiler_reason;
use crate::ids::Token;
use crate::limits;

/// Why a matcher gives no mask.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MatcherError {
    /// The model has no token that the grammar allows here.
    #[error("no token of the model can follow under the grammar")]
    DeadEnd,
    /// A mask would take too much work.
    #[error("the grammar is too complex: {0}")]
    TooComplex(String),
    /// A token was taken that the mask does not have.
    #[error("the grammar does not allow token {0}")]
    NotAllowed(Token),
}

/// Bytes of forced text that are spelled for each token that is asked for. Few are longer.
const FORCED_BYTES: usize = 32;

/// Time of a thread that a generation's grammar takes until it counts as slow: this much, and so much for each token.
const SLOW: Duration = Duration::from_millis(5);
const SLOW_TOKEN: Duration = Duration::from_millis(1);

/// The tokens that may come next.
#[derive(Debug, Clone, PartialEq)]
pub struct Mask {
    bits: SimpleVob,
    /// Words of 32 tokens that the vocabulary has.
    words: usize,
    /// Whether the text may end here.
    accepts: bool,
    /// Whether more text may follow.
    open: bool,
}

impl Mask {
    /// Bit `i % 32` of word `i / 32` is token `i`'s. End tokens are among them exactly where the text may end.
    pub fn bits(&self) -> &[u32] {
        self.bits.as_slice().get(..self.words).unwrap_or_default()
    }

    pub fn allows(&self, token: Token) -> bool {
        let word = self.bits().get(token.0 as usize / 32);
        word.is_some_and(|word| word >> (token.0 % 32) & 1 == 1)
    }

    /// The text is complete, and nothing can follow.
    pub fn is_final(&self) -> bool {
        self.accepts && !self.open
    }
}

/// A mask that was computed before it was asked for.
struct Prepared {
    mask: Result<Mask, MatcherError>,
    /// The token that the next prepared mask comes after.
    next: Option<Token>,
}

/// Where one generation is in its grammar.
pub struct Matcher {
    compiled: Arc<Compiled>,
    parser: TokenParser,
    /// Why the parser failed. It does nothing more after that.
    fault: Option<MatcherError>,
    /// What it has taken.
    tokens: Vec<u32>,
    /// Microseconds that its masks took.
    spent: u64,
    /// Time that all of it took.
    worked: Duration,
    prepared: VecDeque<Prepared>,
    /// Others learn from its lexer, and wait for each other there.
    shares_lexer: bool,
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Matcher").field("tokens", &self.tokens.len()).finish_non_exhaustive()
    }
}

impl Drop for Matcher {
    fn drop(&mut self) {
        self.compiled.forget();
    }
}

impl Matcher {
    pub(super) fn new(compiled: Arc<Compiled>) -> Self {
        let parser = compiled.parser();
        Self {
            compiled,
            parser,
            fault: None,
            tokens: Vec::new(),
            spent: 0,
            worked: Duration::ZERO,
            prepared: VecDeque::new(),
            shares_lexer: true,
        }
    }

    /// Whether some generation with its grammar took so long that steps are not to wait for it.
    pub fn is_slow(&self) -> bool {
        self.compiled.is_slow.load(Ordering::Relaxed)
    }

    /// Whether [`Matcher::mask`] has the next mask at once.
    pub fn is_prepared(&self) -> bool {
        !self.prepared.is_empty()
    }

    /// Number of tokens that it has taken.
    pub fn position(&self) -> usize {
        self.tokens.len()
    }

    /// The tokens that may come next.
    ///
    /// # Errors
    /// There are none, or to find them takes too much work.
    pub fn mask(&mut self) -> Result<Mask, MatcherError> {
        if let Some(prepared) = self.prepared.front() {
            return prepared.mask.clone();
        }
        self.compute()
    }

    /// Computes the mask, and those after each token of a draft as far as the grammar allows it: for [`Matcher::mask`] to find.
    pub fn prepare(&mut self, draft: &[Token]) {
        if !self.prepared.is_empty() {
            return;
        }
        if self.shares_lexer && self.is_slow() {
            self.rebuild();
        }
        let start = self.tokens.len();
        let mut prepared = VecDeque::with_capacity(draft.len() + 1);
        for next in draft.iter().map(|token| Some(*token)).chain([None]) {
            let mask = self.compute();
            let goes_on = next.filter(|token| mask.as_ref().is_ok_and(|mask| mask.allows(*token) && mask.open));
            prepared.push_back(Prepared { mask, next: goes_on });
            let Some(token) = goes_on else { break };
            if self.compiled.vocabulary.is_end(token) || self.take(token).is_err() {
                break;
            }
        }
        self.rewind(start);
        self.prepared = prepared;
    }

    /// Takes a token that the mask allows. Returns whether the text is complete and nothing can follow.
    ///
    /// # Errors
    /// The grammar does not allow it.
    pub fn accept(&mut self, token: Token) -> Result<bool, MatcherError> {
        let expected = self.prepared.pop_front().and_then(|prepared| prepared.next);
        if expected != Some(token) {
            self.prepared.clear();
        }
        self.take(token)?;
        Ok(self.is_complete())
    }

    /// Goes back to where it had taken `position` tokens.
    pub fn rewind(&mut self, position: usize) {
        let back = self.tokens.len().saturating_sub(position);
        self.prepared.clear();
        if back == 0 {
            return;
        }
        self.tokens.truncate(position);
        if self.guard(|parser| parser.rollback(back)).is_err() {
            self.rebuild();
        }
    }

    /// The number of leading tokens that it would take.
    pub fn allowed(&mut self, tokens: &[Token]) -> usize {
        let size = self.compiled.vocabulary.size();
        let ids: Vec<u32> = tokens.iter().map(|token| token.0).take_while(|id| (*id as usize) < size).collect();
        self.guard(|parser| parser.validate_tokens_raw(&ids)).unwrap_or(0)
    }

    /// Tokens that spell what must come next, at most `max`: fewer where the text after them could be part of a longer token. The
    /// model may spell it with others.
    pub fn forced(&mut self, max: usize) -> Vec<Token> {
        if self.is_complete() || max == 0 {
            return Vec::new();
        }
        let Ok(mut bytes) = self.guard(|parser| Ok::<_, MatcherError>(parser.force_bytes())) else { return Vec::new() };
        let trie = self.parser.token_env.tok_trie();
        // All that is certain may be long, and is asked for again after each step.
        let enough = max.saturating_mul(FORCED_BYTES);
        let more = bytes.len() > enough;
        bytes.truncate(enough);
        let mut spelled = trie.greedy_tokenize(&bytes);
        if more || spelled.last().is_some_and(|last| trie.has_extensions(trie.token(*last))) {
            spelled.pop();
        }
        spelled.truncate(max);
        spelled.into_iter().map(Token).collect()
    }

    fn take(&mut self, token: Token) -> Result<(), MatcherError> {
        if self.allowed(&[token]) == 0 {
            return Err(MatcherError::NotAllowed(token));
        }
        if self.consume(token.0).is_err() {
            self.rebuild();
            self.consume(token.0)?;
        }
        self.tokens.push(token.0);
        Ok(())
    }

    fn consume(&mut self, token: u32) -> Result<(), MatcherError> {
        self.guard(|parser| parser.consume_token(token))?;
        self.guard(|parser| parser.check_stop()).map(drop)
    }

    fn compute(&mut self) -> Result<Mask, MatcherError> {
        if self.spent > limits::MASKS_MICROS + limits::MASK_MICROS * self.tokens.len() as u64 {
            let why = format!("its masks take over {} ms a token", limits::MASK_MICROS / 1000);
            return Err(MatcherError::TooComplex(why));
        }
        let mut computed = self.try_compute();
        if let Err(MatcherError::TooComplex(_)) = computed {
            // The lexer that it shares may have learned too much from others.
            self.rebuild();
            computed = self.try_compute();
        }
        self.spent += self.parser.last_step_stats().compute_time_us;
        computed
    }

    fn try_compute(&mut self) -> Result<Mask, MatcherError> {
        let size = self.compiled.vocabulary.size();
        let complete = self.is_complete();
        let accepts = complete || self.guard(|parser| Ok::<_, MatcherError>(parser.is_accepting()))?;
        let computed = if complete { Err(MatcherError::DeadEnd) } else { self.guard(TokenParser::compute_mask) };
        let mut bits = match computed {
            // Complete, or a model without end tokens.
            Err(MatcherError::DeadEnd) if accepts => SimpleVob::alloc(size),
            computed => computed?,
        };
        let ends = self.compiled.vocabulary.end_tokens().iter().filter(|end| (end.0 as usize) < size);
        ends.clone().for_each(|end| bits.disallow_token(end.0));
        let open = !bits.is_zero();
        if accepts {
            ends.for_each(|end| bits.allow_token(end.0));
        } else if !open {
            return Err(MatcherError::DeadEnd);
        }
        Ok(Mask { bits, words: size.div_ceil(32), accepts, open })
    }

    /// Whether the text is complete and nothing can follow.
    fn is_complete(&self) -> bool {
        self.fault.is_none() && self.parser.stop_reason() != StopReason::NotStopped
    }

    /// Begins anew, with a lexer that has learned nothing, and takes all tokens again.
    fn rebuild(&mut self) {
        self.shares_lexer = !self.is_slow();
        self.parser =
            if self.shares_lexer { self.compiled.renewed_parser() } else { self.compiled.pristine.deep_clone() };
        self.fault = None;
        let tokens = std::mem::take(&mut self.tokens);
        // What it took once, it takes again; if not, it says so when it is asked next.
        let _ = tokens.iter().try_for_each(|token| self.consume(*token));
        self.tokens = tokens;
    }

    /// Has the parser do something. Its panics are errors.
    fn guard<T, E: fmt::Display>(
        &mut self,
        act: impl FnOnce(&mut TokenParser) -> Result<T, E>,
    ) -> Result<T, MatcherError> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let (parser, begun) = (&mut self.parser, thread_time());
        let acted = panic_utils::catch_unwind(AssertUnwindSafe(|| Ok(act(parser))));
        self.worked += thread_time().saturating_sub(begun);
        if self.worked > SLOW + SLOW_TOKEN * u32::try_from(self.tokens.len()).unwrap_or(u32::MAX) {
            self.compiled.is_slow.store(true, Ordering::Relaxed);
        }
        let why = match acted {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => error.to_string(),
            Err(panic) => panic.to_string(),
        };
        let fault = match self.parser.stop_reason() {
            StopReason::NoExtensionBias => MatcherError::DeadEnd,
            _ => MatcherError::TooComplex(compiler_reason(&why, false)),
        };
        self.fault = Some(fault.clone());
        Err(fault)
    }
}

/// Time that the calling thread has computed.
fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
#[path = "matcher_tests.rs"]
mod tests;
