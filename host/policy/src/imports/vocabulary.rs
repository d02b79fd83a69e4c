//! `camshaft:policy/vocabulary`: the tokens of the model that a sampler works for.
use std::sync::Arc;

use camshaft_core::ids::Token;
use camshaft_core::vocabulary::Vocabulary;

use crate::bindings::host::vocabulary::Host;
use crate::fault::invalid;
use crate::store::GuestState;

/// Bytes of a text to look up; longer than any token, and short enough to be kept as a key.
const LOOKUP_BYTES: usize = 1024;

fn plain(tokens: &[Token]) -> Vec<u32> {
    tokens.iter().map(|token| token.0).collect()
}

impl GuestState {
    fn vocabulary(&self) -> wasmtime::Result<&Arc<Vocabulary>> {
        self.vocabulary.as_ref().ok_or_else(|| invalid("the vocabulary is known only from `start` on"))
    }
}

impl Host for GuestState {
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
