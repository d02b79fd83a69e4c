//! Tokenizes with the model's own vocabulary.
use std::fmt;
use std::sync::Arc;

use camshaft_core::engine::Tokenizer;
use camshaft_core::ids::Token;

use crate::load::LoadedModel;

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
    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<Token> {
        let tokens = self.0.model.vocab().tokenize(text.as_bytes(), add_special, parse_special);
        tokens.into_iter().filter_map(|token| u32::try_from(token.0).ok()).map(Token).collect()
    }
}
