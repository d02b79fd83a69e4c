//! A generation's grammar on its worker.
use std::sync::{Arc, Weak};

use crate::grammar::{Mask, Matcher, MatcherError};
use crate::ids::Token;
use crate::message::WorkerError;

/// Where a generation is in its grammar.
#[derive(Debug)]
pub(crate) struct Constraint {
    /// `None`: lent to a thread that computes masks.
    matcher: Option<Box<Matcher>>,
    /// It is lent, and no step waits for it.
    pub(crate) is_apart: bool,
    /// As long as this is there, somebody wants it back.
    wanted: Arc<()>,
}

impl Constraint {
    pub(crate) fn new(matcher: Matcher) -> Self {
        Self { matcher: Some(Box::new(matcher)), is_apart: false, wanted: Arc::default() }
    }

    /// The tokens that may be drawn next.
    ///
    /// # Errors
    /// There are none, or to find them takes too much work.
    pub(crate) fn mask(&mut self) -> Result<Mask, WorkerError> {
        self.matcher()?.mask().map_err(|error| failed(&error))
    }

    /// A token was drawn. Returns whether the text is complete and nothing can follow.
    ///
    /// # Errors
    /// The grammar does not allow it.
    pub(crate) fn accept(&mut self, token: Token) -> Result<bool, WorkerError> {
        self.matcher()?.accept(token).map_err(|error| failed(&error))
    }

    /// Only the first `drawn` tokens count.
    pub(crate) fn rewind(&mut self, drawn: usize) {
        if let Some(matcher) = &mut self.matcher {
            matcher.rewind(drawn);
        }
    }

    /// Cuts a draft where the grammar does not allow it.
    pub(crate) fn trim(&mut self, draft: &mut Vec<Token>) {
        if let Some(matcher) = &mut self.matcher {
            let allowed = matcher.allowed(draft);
            draft.truncate(allowed);
        }
    }

    /// Tokens that spell what must come next, at most `max`.
    pub(crate) fn forced(&mut self, max: usize) -> Vec<Token> {
        self.matcher.as_mut().map(|matcher| matcher.forced(max)).unwrap_or_default()
    }

    /// See [`Matcher::is_slow`].
    pub(crate) fn is_slow(&self) -> bool {
        self.is_apart || self.matcher.as_ref().is_some_and(|matcher| matcher.is_slow())
    }

    /// Whether the next mask is one that no step is to wait for.
    pub(crate) fn needs_time(&self) -> bool {
        self.matcher.as_ref().is_some_and(|matcher| matcher.is_slow() && !matcher.is_prepared())
    }

    /// Gives the matcher away until [`Constraint::give_back`].
    pub(crate) fn lend(&mut self) -> Option<(Box<Matcher>, Weak<()>)> {
        Some((self.matcher.take()?, Arc::downgrade(&self.wanted)))
    }

    pub(crate) fn give_back(&mut self, matcher: Box<Matcher>) {
        (self.matcher, self.is_apart) = (Some(matcher), false);
    }

    fn matcher(&mut self) -> Result<&mut Matcher, WorkerError> {
        let lost = || WorkerError::Engine("a thread that computes masks died".to_owned());
        self.matcher.as_deref_mut().ok_or_else(lost)
    }
}

fn failed(error: &MatcherError) -> WorkerError {
    match error {
        MatcherError::DeadEnd | MatcherError::NotAllowed(_) => exhausted(error.to_string()),
        MatcherError::TooComplex(_) => WorkerError::Refused(error.to_string()),
    }
}

/// Why no token is left before samplers are asked. `early`: the tokens that end the text are banned, because it is too short.
pub(crate) fn nothing_left(logits: &[f32], early: bool) -> WorkerError {
    match logits.iter().any(|logit| logit.is_finite()) {
        false => WorkerError::InvalidLogits,
        true if early => exhausted("`min_tokens` keeps the text from ending, and nothing else may follow"),
        true => exhausted("the model and filters rule out all others"),
    }
}

/// No token is left to draw.
pub(crate) fn exhausted(detail: impl Into<String>) -> WorkerError {
    WorkerError::GrammarExhausted { detail: detail.into() }
}
