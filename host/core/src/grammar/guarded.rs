//! The grammar compiler's parser of one generation, whose panics are errors.
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use llguidance::api::StopReason;
use llguidance::{TokenParser, panic_utils};
use toktrie::{SimpleVob, TokEnv};

use super::lexers::LexerSize;

/// Why the parser did not do what was asked. It does nothing more after that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ParserFault {
    /// No token of the vocabulary can follow.
    NoToken,
    /// All grammars take too much memory, and this one more than its share.
    Memory,
    Failed(String),
}

#[derive(Clone)]
pub(super) struct Guarded {
    parser: TokenParser,
    /// Of the lexer that it uses.
    lexer: Arc<LexerSize>,
    fault: Option<ParserFault>,
}

impl Guarded {
    pub(super) fn new(parser: TokenParser, lexer: Arc<LexerSize>) -> Self {
        Self { parser, lexer, fault: None }
    }

    pub(super) fn lexer(&self) -> &Arc<LexerSize> {
        &self.lexer
    }

    pub(super) fn is_out_of_memory(&self) -> bool {
        self.fault == Some(ParserFault::Memory)
    }

    /// Whether the text is complete and nothing can follow.
    pub(super) fn is_complete(&self) -> bool {
        self.fault.is_none() && self.parser.stop_reason() != StopReason::NotStopped
    }

    pub(super) fn is_accepting(&mut self) -> Result<bool, ParserFault> {
        self.guard(|parser| Ok(parser.is_accepting()))
    }

    pub(super) fn mask(&mut self) -> Result<SimpleVob, ParserFault> {
        let (mask, size) = self.guard(|parser| {
            let mask = parser.compute_mask().map_err(|error| error.to_string())?;
            let stats = parser.parser.lexer_stats();
            Ok((mask, (stats.num_states, stats.num_bytes)))
        })?;
        if self.lexer.record(size) {
            self.fault = Some(ParserFault::Memory);
            return Err(ParserFault::Memory);
        }
        Ok(mask)
    }

    /// Microseconds that the last mask took, as the compiler measures them.
    pub(super) fn mask_micros(&self) -> u64 {
        self.parser.last_step_stats().compute_time_us
    }

    pub(super) fn take(&mut self, token: u32) -> Result<(), ParserFault> {
        self.guard(|parser| {
            let taken_back = parser.consume_token(token).map_err(|error| error.to_string())?;
            if taken_back > 0 {
                return Err("the grammar takes tokens back".to_owned());
            }
            parser.check_stop().map(drop).map_err(|error| error.to_string())
        })
    }

    pub(super) fn take_back(&mut self, tokens: usize) -> Result<(), ParserFault> {
        self.guard(|parser| parser.rollback(tokens).map_err(|error| error.to_string()))
    }

    /// The number of leading tokens that it would take, all of the vocabulary.
    pub(super) fn allowed(&mut self, tokens: &[u32]) -> Result<usize, ParserFault> {
        self.guard(|parser| parser.validate_tokens_raw(tokens).map_err(|error| error.to_string()))
    }

    /// Bytes that must come next.
    pub(super) fn forced(&mut self) -> Result<Vec<u8>, ParserFault> {
        self.guard(|parser| Ok(parser.force_bytes()))
    }

    pub(super) fn tokens(&self) -> &TokEnv {
        &self.parser.token_env
    }

    fn guard<T>(&mut self, act: impl FnOnce(&mut TokenParser) -> Result<T, String>) -> Result<T, ParserFault> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let parser = &mut self.parser;
        let done = panic_utils::catch_unwind(AssertUnwindSafe(|| Ok(act(parser))));
        let failed = match done {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(_)) if self.parser.stop_reason() == StopReason::NoExtensionBias => ParserFault::NoToken,
            Ok(Err(error)) => ParserFault::Failed(error),
            Err(panic) => ParserFault::Failed(panic.to_string()),
        };
        self.fault = Some(failed.clone());
        Err(failed)
    }
}
