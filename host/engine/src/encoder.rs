//! A vocabulary's way from text to tokens, in a bounded stack and in near-linear time, whatever the text.
//!
//! The result is llama.cpp's (tested for every pre-tokenizer it knows). What llama.cpp does by recursion, in quadratic time,
//! or once for each of thousands of special tokens, this does itself: finding special tokens ([`specials`]), merging the
//! characters of a text ([`spm`]), and for some BPE vocabularies cutting it into words and merging theirs ([`bpe`]).
//!
//! The other vocabularies' texts are read by llama.cpp, once for each user-defined token that they have: a few.
use camshaft_core::ids::Token;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token_type::LlamaTokenAttr;

use crate::gguf::TokenizerKeys;

mod bpe;
mod classes;
pub(crate) mod kinds;
mod merges;
mod specials;
mod spm;
mod words;

use bpe::Bpe;
use merges::Scratch;
use specials::{Fragment, Special, Specials};
use spm::Spm;

/// A model's.
#[derive(Debug)]
pub(crate) struct Encoder {
    specials: Specials,
    texts: Texts,
    /// What the model expects before and after a text.
    before: Vec<Token>,
    after: Vec<Token>,
}

/// Who tokenizes what is between special tokens.
#[derive(Debug)]
enum Texts {
    Bpe(Bpe),
    Spm(Spm),
    Llama,
}

impl Encoder {
    /// # Errors
    /// A pre-tokenizer of which this version does not know whether llama.cpp recurses, or too many special tokens. In
    /// words about the file.
    pub(crate) fn new(model: &LlamaModel, keys: &TokenizerKeys) -> Result<Self, String> {
        let spm = || Spm::new(model, keys).map_or(Texts::Llama, Texts::Spm);
        let texts = Bpe::new(model, keys)?.map_or_else(spm, Texts::Bpe);
        let (before, after) = around(model);
        Ok(Self { specials: Specials::new(specials_of(model))?, texts, before, after })
    }

    /// Whether llama.cpp tokenizes what is between special tokens.
    #[cfg(test)]
    pub(crate) fn leaves_texts_to_llama(&self) -> bool {
        matches!(self.texts, Texts::Llama)
    }

    /// Whether `text` spells a control token.
    pub(crate) fn has_control(&self, text: &str) -> bool {
        self.specials.has_control(text)
    }

    pub(crate) fn tokenize(
        &self,
        model: &LlamaModel,
        text: &str,
        add_special: bool,
        parse_special: bool,
    ) -> Vec<Token> {
        let mut tokens = if add_special { self.before.clone() } else { Vec::new() };
        let mut scratch = Scratch::default();
        for fragment in self.specials.split(text, parse_special) {
            match (fragment, &self.texts) {
                (Fragment::Token(token), _) => tokens.push(token),
                (Fragment::Text(text), Texts::Bpe(bpe)) => bpe.tokenize(text, &mut scratch, &mut tokens),
                (Fragment::Text(text), Texts::Spm(spm)) => spm.tokenize(text, &mut scratch, &mut tokens),
                // In each fragment llama.cpp begins anew, as it does between special tokens that it finds itself.
                (Fragment::Text(text), Texts::Llama) => tokens.extend(llama_tokens(model, text, false)),
            }
        }
        if add_special {
            tokens.extend(&self.after);
        }
        tokens
    }
}

/// llama.cpp's tokens of a text without control tokens.
fn llama_tokens(model: &LlamaModel, text: &str, add_special: bool) -> Vec<Token> {
    let tokens = model.vocab().tokenize(text.as_bytes(), add_special, false);
    tokens.into_iter().filter_map(|LlamaToken(token)| u32::try_from(token).ok()).map(Token).collect()
}

/// The tokens that llama.cpp adds before and after a text.
fn around(model: &LlamaModel) -> (Vec<Token>, Vec<Token>) {
    // Any text would do. It tells those before from those after.
    const TEXT: &str = "a";
    let mut before = llama_tokens(model, "", true);
    let (bare, whole) = (llama_tokens(model, TEXT, false), llama_tokens(model, TEXT, true));
    let is_split = |&at: &usize| whole == [&before[..at], &bare, &before[at..]].concat();
    let at = (0..=before.len()).find(is_split).unwrap_or(before.len());
    let after = before.split_off(at);
    (before, after)
}

fn specials_of(model: &LlamaModel) -> Vec<Special> {
    let vocab = model.vocab();
    let special = |token: LlamaToken| {
        let attributes = vocab.attr(token);
        let control = attributes.intersects(LlamaTokenAttr::Control | LlamaTokenAttr::Unknown);
        if !control && !attributes.contains(LlamaTokenAttr::UserDefined) {
            return None;
        }
        Some(Special {
            token: Token(u32::try_from(token.0).ok()?),
            // A text that is not UTF-8 is in no text.
            text: vocab.text(token)?.to_str().ok()?.to_owned(),
            control,
            strips_before: attributes.contains(LlamaTokenAttr::LStrip),
            strips_after: attributes.contains(LlamaTokenAttr::RStrip),
        })
    };
    vocab.tokens().filter_map(special).collect()
}
