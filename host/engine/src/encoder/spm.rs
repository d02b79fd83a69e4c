//! Tokenizes with SentencePiece's vocabularies. llama.cpp's way there would read every text once for each of the
//! vocabulary's special tokens, of which some have thousands.
use super::merges::{Merges, Scratch};
use super::output::{Full, Output};
use crate::gguf::TokenizerKeys;
use crate::model::Model;

const ADDS_SPACE: &str = "tokenizer.ggml.add_space_prefix";
/// How such vocabularies, and those like them, spell a space.
pub(super) const SPACE: &str = "\u{2581}";

#[derive(Debug)]
pub(super) struct Spm {
    merges: Merges,
    /// Before every text, also between special tokens.
    adds_space: bool,
}

impl Spm {
    /// `None` for another kind of vocabulary.
    pub(super) fn new(model: &Model, keys: &TokenizerKeys) -> Option<Self> {
        if keys.model != "llama" {
            return None;
        }
        let vocab = model.vocab();
        let scored = vocab.tokens().map(|token| (vocab.text(token).to_vec(), vocab.score(token)));
        let merges = Merges::by_score(scored);
        let adds_space = model.metadata(ADDS_SPACE).is_none_or(|value| value == "true");
        Some(Self { merges, adds_space })
    }

    /// Appends the tokens of a text without special tokens.
    pub(super) fn tokenize(&self, text: &str, scratch: &mut Scratch, output: &mut Output) -> Result<(), Full> {
        let prefix = if self.adds_space { SPACE } else { "" };
        let spelled = [prefix, &text.replace(' ', SPACE)].concat();
        self.merges.encode(&spelled, scratch, output)
    }
}
