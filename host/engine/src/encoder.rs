//! A vocabulary's way from text to tokens, in a bounded stack and in near-linear time, whatever the text.
//!
//! The result is llama.cpp's (tested for every pre-tokenizer it knows). What llama.cpp does by recursion, in quadratic time,
//! or once for each of thousands of special tokens, this does itself: finding special tokens ([`specials`]), merging the
//! characters of a text ([`spm`]), cutting it into words of which tokens are the longest beginnings ([`wordpiece`]), and for
//! some BPE vocabularies cutting it into words and merging theirs ([`bpe`]).
//!
//! The other vocabularies' texts are read by llama.cpp, once for each user-defined token that they have: a few.
use std::sync::Arc;

use camshaft_core::engine::{Encode, Encoded};
use camshaft_core::ids::Token;
use camshaft_core::vocabulary::Vocabulary;
use llama_cpp_sys_2 as sys;

use crate::gguf::TokenizerKeys;
use crate::model::Model;

mod bpe;
mod classes;
pub(crate) mod kinds;
mod merges;
mod normalizer;
mod output;
mod specials;
mod spm;
mod wordpiece;
mod words;

use bpe::Bpe;
use merges::{Merges, Scratch, enough};
use output::{Full, Output};
use specials::{Fragment, Special, Specials};
use spm::Spm;
use wordpiece::WordPiece;

/// A model's.
#[derive(Debug)]
pub(crate) struct Encoder {
    vocabulary: Arc<Vocabulary>,
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
    WordPiece(Box<WordPiece>),
    /// Llama.cpp. With bytes of the longest token, if that tells how many tokens there are at least.
    Llama(Option<usize>),
}

impl Encoder {
    /// # Errors
    /// A pre-tokenizer of which this version does not know whether llama.cpp recurses, too many special tokens, or a vocabulary
    /// that is too large. In words about the file.
    pub(crate) fn new(model: &Model, vocabulary: Arc<Vocabulary>, keys: &TokenizerKeys) -> Result<Self, String> {
        let texts = match (WordPiece::new(model, keys)?, Bpe::new(model, keys)?, Spm::new(model, keys)) {
            (Some(wordpiece), ..) => Texts::WordPiece(Box::new(wordpiece)),
            (_, Some(bpe), _) => Texts::Bpe(bpe),
            (.., Some(spm)) => Texts::Spm(spm),
            // Those that Bpe leaves to it spell bytes as GPT-2 does.
            (None, None, None) if keys.model == "gpt2" => {
                let vocab = model.vocab();
                let tokens = vocab.tokens().map(|token| vocab.text(token).to_vec());
                Texts::Llama(Merges::new(true, tokens, keys.merges.iter().map(|merge| &**merge)).longest())
            }
            (None, None, None) => Texts::Llama(None),
        };
        let (before, after) = around(model);
        Ok(Self { vocabulary, specials: Specials::new(specials_of(model))?, texts, before, after })
    }

    /// Whether llama.cpp tokenizes what is between special tokens.
    #[cfg(test)]
    pub(crate) fn leaves_texts_to_llama(&self) -> bool {
        matches!(self.texts, Texts::Llama(_))
    }

    /// Whether `text` spells a control token.
    pub(crate) fn has_control(&self, text: &str) -> bool {
        self.specials.has_control(text)
    }

    /// Where `text` can be cut, ascending, so that no part spells a control token.
    pub(crate) fn cuts(&self, text: &str) -> Vec<usize> {
        self.specials.cuts(text)
    }

    /// The tokens of a text.
    pub(crate) fn encode(&self, model: &Model, encode: Encode<'_>) -> Encoded {
        let mut output = Output::new(&encode);
        match self.append(model, encode, &mut output) {
            Ok(()) => output.into_encoded(),
            Err(Full) => Encoded { offsets: None, ..output.into_encoded() },
        }
    }

    fn append(&self, model: &Model, encode: Encode<'_>, output: &mut Output) -> Result<(), Full> {
        let Encode { text: whole, add_special, parse_special, .. } = encode;
        let mut scratch = Scratch::default();
        let mut start = 0;
        if add_special {
            self.before.iter().for_each(|&token| output.push(token, 0..0));
        }
        for fragment in self.specials.split(whole, parse_special) {
            output.check_room()?;
            let first = output.tokens.len();
            match (fragment, &self.texts) {
                (Fragment::Token(token, text), _) => output.push(token, start..start + text.len()),
                (Fragment::Text(text), Texts::WordPiece(wordpiece)) => wordpiece.tokenize(text, start, output)?,
                (Fragment::Text(text), Texts::Bpe(bpe)) => bpe.tokenize(text, &mut scratch, output)?,
                (Fragment::Text(text), Texts::Spm(spm)) => spm.tokenize(text, &mut scratch, output)?,
                // In each fragment llama.cpp begins anew, as it does between special tokens that it finds itself.
                (Fragment::Text(text), Texts::Llama(longest)) => {
                    let read = enough(text, *longest, output.room());
                    output.tokens.extend(model.vocab().tokenize(read, false, false));
                    if read.len() < text.len() {
                        return Err(Full);
                    }
                }
            }
            let (Fragment::Text(text) | Fragment::Token(_, text)) = fragment;
            output.locate(&self.vocabulary, text, start, first);
            start += text.len();
        }
        if add_special {
            self.after.iter().for_each(|&token| output.push(token, whole.len()..whole.len()));
        }
        Ok(())
    }
}

/// The tokens that llama.cpp adds before and after a text.
fn around(model: &Model) -> (Vec<Token>, Vec<Token>) {
    // Any text would do. It tells those before from those after.
    const TEXT: &str = "a";
    let tokens = |text: &str, add_special: bool| model.vocab().tokenize(text, add_special, false);
    let mut before = tokens("", true);
    let (bare, whole) = (tokens(TEXT, false), tokens(TEXT, true));
    let is_split = |&at: &usize| whole == [&before[..at], &bare, &before[at..]].concat();
    let at = (0..=before.len()).find(is_split).unwrap_or(before.len());
    let after = before.split_off(at);
    (before, after)
}

fn specials_of(model: &Model) -> Vec<Special> {
    let vocab = model.vocab();
    let special = |token: Token| {
        let attributes = vocab.attributes(token);
        let has = |attribute: sys::llama_token_attr| attributes & attribute != 0;
        let control = has(sys::LLAMA_TOKEN_ATTR_CONTROL | sys::LLAMA_TOKEN_ATTR_UNKNOWN);
        if !control && !has(sys::LLAMA_TOKEN_ATTR_USER_DEFINED) {
            return None;
        }
        Some(Special {
            token,
            // A text that is not UTF-8 is in no text.
            text: std::str::from_utf8(vocab.text(token)).ok()?.to_owned(),
            control,
            strips_before: has(sys::LLAMA_TOKEN_ATTR_LSTRIP),
            strips_after: has(sys::LLAMA_TOKEN_ATTR_RSTRIP),
        })
    };
    vocab.tokens().filter_map(special).collect()
}
