//! Tokenizes with the model's own vocabulary.
use std::fmt;
use std::sync::Arc;

use camshaft_core::engine::{Encode, Encoded, Tokenizer};

use crate::load::LoadedModel;

#[cfg(test)]
mod tests;

impl LoadedModel {
    /// A tokenizer that keeps the model alive.
    pub fn tokenizer(self: &Arc<Self>) -> Arc<dyn Tokenizer> {
        Arc::new(LlamaTokenizer(self.clone()))
    }
}

/// Tokenizes on any thread: `LlamaModel` is `Sync`.
struct LlamaTokenizer(Arc<LoadedModel>);

impl fmt::Debug for LlamaTokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LlamaTokenizer").field(&self.0).finish()
    }
}

impl Tokenizer for LlamaTokenizer {
    fn encode(&self, encode: Encode<'_>) -> Encoded {
        self.0.encoder.encode(&self.0.model, encode)
    }

    fn has_control(&self, text: &str) -> bool {
        self.0.encoder.has_control(text)
    }

    fn cuts(&self, text: &str) -> Vec<usize> {
        self.0.encoder.cuts(text)
    }
}
