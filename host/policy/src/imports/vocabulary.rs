//! `camshaft:host/vocabulary`: the tokens of the model that a sampler works for.
use std::sync::Arc;

use camshaft_core::ids::Token;
use camshaft_core::vocabulary::Vocabulary;

use wasmtime::component::{HasData, Linker};

use crate::bindings::host::vocabulary::{self, Host};
use crate::fault::invalid;

/// Maximum bytes of a text to look up: longer than any token, and short enough for a cache key.
const LOOKUP_BYTES: usize = 1024;

fn plain(tokens: &[Token]) -> Vec<u32> {
    tokens.iter().map(|token| token.0).collect()
}

/// The part of a guest's state that the vocabulary needs.
pub(crate) trait VocabularyView: 'static {
    fn vocabulary(&mut self) -> ModelTokens<'_>;
}

/// The tokens of the model, once it is known.
pub(crate) struct ModelTokens<'a> {
    pub(crate) tokens: Option<&'a Arc<Vocabulary>>,
}

struct Tokens;

impl HasData for Tokens {
    type Data<'a> = ModelTokens<'a>;
}

pub(crate) fn add_to_linker<T: VocabularyView>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    vocabulary::add_to_linker::<_, Tokens>(linker, T::vocabulary)
}

impl<'a> ModelTokens<'a> {
    fn vocabulary(&self) -> wasmtime::Result<&'a Arc<Vocabulary>> {
        self.tokens.ok_or_else(|| invalid("the vocabulary is known only from `start` on"))
    }
}

impl Host for ModelTokens<'_> {
    fn size(&mut self) -> wasmtime::Result<u32> {
        Ok(u32::try_from(self.vocabulary()?.size()).unwrap_or(u32::MAX))
    }

    fn token_bytes(&mut self, token: u32) -> wasmtime::Result<Vec<u8>> {
        let vocabulary = self.vocabulary()?;
        let bytes = vocabulary.token_bytes(Token(token));
        let unknown = || invalid(format!("token {token} is outside the vocabulary of {}", vocabulary.size()));
        Ok(bytes.ok_or_else(unknown)?.to_vec())
    }

    fn tokens_with_prefix(&mut self, prefix: Vec<u8>, ignore_case: bool) -> wasmtime::Result<Vec<u32>> {
        let vocabulary = self.vocabulary()?;
        if prefix.len() > LOOKUP_BYTES {
            return Ok(Vec::new());
        }
        Ok(plain(&vocabulary.with_prefix(&prefix, ignore_case)))
    }

    fn tokens_containing(&mut self, needle: Vec<u8>, ignore_case: bool) -> wasmtime::Result<Vec<u32>> {
        let vocabulary = self.vocabulary()?;
        if needle.len() > LOOKUP_BYTES {
            return Ok(Vec::new());
        }
        Ok(plain(&vocabulary.containing(&needle, ignore_case)))
    }

    fn end_tokens(&mut self) -> wasmtime::Result<Vec<u32>> {
        Ok(plain(self.vocabulary()?.end_tokens()))
    }
}
