//! Tokenizes with the BPE vocabularies whose texts are not left to llama.cpp.
use std::borrow::Cow;

use super::kinds::{self, Kind};
use super::merges::{Merges, Scratch};
use super::normalizer::lowercase;
use super::output::{Full, Output};
use super::spm::SPACE;
use super::words::Words;
use crate::gguf::TokenizerKeys;
use crate::model::Model;

const GEMMA4: &str = "gemma4";
const LOWERCASE: &str = "tokenizer.ggml.normalizer.lowercase";

#[derive(Debug)]
pub(super) struct Bpe {
    kind: &'static Kind,
    words: Words,
    merges: Merges,
    /// Between words is nothing: white space has no tokens.
    drops_blanks: bool,
    lowercases: bool,
}

impl Bpe {
    /// `None` if llama.cpp tokenizes with this vocabulary, or it is of another kind.
    ///
    /// # Errors
    /// A pre-tokenizer that this version does not know, in words about the file.
    pub(super) fn new(model: &Model, keys: &TokenizerKeys) -> Result<Option<Self>, String> {
        let drops_blanks = keys.model == "whitespace";
        // This model's pre-tokenizer is its own, whatever the file says.
        let pre = if keys.model == GEMMA4 { GEMMA4 } else { keys.pre.as_str() };
        if !drops_blanks && !matches!(keys.model.as_str(), "gpt2" | "hybriddna" | GEMMA4) || kinds::is_loop(pre) {
            return Ok(None);
        }
        let known = kinds::of(pre).filter(|_| keys.model != "hybriddna");
        let Some(kind) = known else {
            return Err(format!("its texts cannot be tokenized safely: {} with the pre-tokenizer {pre:?}", keys.model));
        };
        let lowercases = drops_blanks && model.metadata(LOWERCASE).is_some_and(|value| value == "true");
        let vocab = model.vocab();
        let merges = keys.merges.iter().map(|merge| &**merge);
        let merges = Merges::new(kind.byte_level, vocab.tokens().map(|token| vocab.text(token).to_vec()), merges);
        let words = Words::new(kind).map_err(|error| error.to_string())?;
        Ok(Some(Self { kind, words, merges, drops_blanks, lowercases }))
    }

    /// Appends the tokens of a text without special tokens.
    pub(super) fn tokenize(&self, text: &str, scratch: &mut Scratch, output: &mut Output) -> Result<(), Full> {
        if self.drops_blanks {
            let text =
                if self.lowercases { Cow::Owned(text.chars().map(lowercase).collect()) } else { Cow::from(text) };
            text.split_whitespace().try_for_each(|word| self.words(word, scratch, output))
        } else if self.kind.escapes_spaces {
            self.words(&text.replace(' ', SPACE), scratch, output)
        } else {
            // Nor are words looked for where nobody wants their tokens.
            let whole = text.len();
            let text = self.merges.enough(text, output.room());
            self.words(text, scratch, output)?;
            if text.len() < whole { Err(Full) } else { Ok(()) }
        }
    }

    fn words(&self, text: &str, scratch: &mut Scratch, output: &mut Output) -> Result<(), Full> {
        let mut chars = text.chars();
        for length in self.words.lengths(text) {
            let word = chars.as_str();
            // Advances in the word only, so that all words together are read once.
            (0..length).for_each(|_| {
                chars.next();
            });
            let word = &word[..word.len() - chars.as_str().len()];
            output.check_room()?;
            match self.kind.whole.applies(word).then(|| self.merges.token(word.as_bytes())).flatten() {
                Some(token) => output.tokens.push(token),
                None => self.merges.encode(word, scratch, output)?,
            }
        }
        Ok(())
    }
}
