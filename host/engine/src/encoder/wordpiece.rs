//! Tokenizes with WordPiece's vocabularies, those of BERT: each word becomes the longest token that it begins with, then
//! the longest that its rest begins with, and so on. llama.cpp looks up every part of a word that could be a token.
use std::ops::Range;

use aho_corasick::Anchored;
use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use camshaft_core::ids::Token;

use super::normalizer::{Normalizer, Read};
use super::output::{Full, Output};
use super::spm::SPACE;
use crate::gguf::TokenizerKeys;
use crate::model::Model;

const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
/// Where the file names none.
const UNKNOWN_DEFAULT: u32 = 100;

#[derive(Debug)]
pub(super) struct WordPiece {
    normalizer: Normalizer,
    /// The texts of all tokens, in the order of their ids. It is searched as a trie: from the start of a text only.
    tokens: NFA,
    root: StateID,
    /// Stands for a word that tokens do not spell.
    unknown: Option<Token>,
}

/// A word, with the space that the vocabulary puts in front of it.
#[derive(Debug, Default)]
struct Word {
    text: String,
    characters: Vec<Character>,
}

/// A character of a word.
#[derive(Debug)]
struct Character {
    /// Where it begins in the word. Texts come in bodies of requests: at most a GiB.
    at: u32,
    /// What it was made of.
    part: Range<u32>,
}

impl WordPiece {
    /// `None` for another kind of vocabulary.
    ///
    /// # Errors
    /// A vocabulary that is too large, in words about the file.
    pub(super) fn new(model: &Model, keys: &TokenizerKeys) -> Result<Option<Self>, String> {
        if keys.model != "bert" {
            return Ok(None);
        }
        let vocab = model.vocab();
        let texts = vocab.tokens().map(|token| vocab.text(token));
        let size = vocab.size();
        let named = model.metadata(UNKNOWN).and_then(|id| id.parse().ok()).filter(|&id: &u32| id < size);
        let unknown = named.or(Some(UNKNOWN_DEFAULT).filter(|&id| id < size)).map(Token);
        let found = Self::with(texts, unknown, Normalizer::new(model));
        found.map(Some).map_err(|error| format!("its vocabulary cannot be searched: {error}"))
    }

    /// `texts` are those of all tokens, in the order of their ids.
    fn with<'a>(
        texts: impl Iterator<Item = &'a [u8]>,
        unknown: Option<Token>,
        normalizer: Normalizer,
    ) -> Result<Self, String> {
        let tokens = NFA::new(texts).map_err(|error| error.to_string())?;
        let root = tokens.start_state(Anchored::Yes).map_err(|error| error.to_string())?;
        Ok(Self { normalizer, tokens, root, unknown })
    }

    /// Appends the tokens of a text without special tokens, which begins at `start` in the whole text.
    pub(super) fn tokenize(&self, text: &str, start: usize, output: &mut Output) -> Result<(), Full> {
        self.tokenize_reading(text, start, output, &mut 0)
    }

    /// The same. `read` grows by the bytes of words that were looked at.
    fn tokenize_reading(&self, text: &str, start: usize, output: &mut Output, read: &mut usize) -> Result<(), Full> {
        let mut word = Word::default();
        for (at, c) in text.char_indices() {
            let part = start + at..start + at + c.len_utf8();
            match self.normalizer.read(c) {
                Read::Nothing => {}
                Read::Blank => self.end(&mut word, output, read)?,
                Read::Part(c) => word.push(c, part),
                Read::Alone(c) => {
                    self.end(&mut word, output, read)?;
                    word.push(c, part);
                    self.end(&mut word, output, read)?;
                }
            }
        }
        self.end(&mut word, output, read)
    }

    /// Appends the tokens of a word, and empties it.
    fn end(&self, word: &mut Word, output: &mut Output, read: &mut usize) -> Result<(), Full> {
        // Not in a word: what it becomes may be taken back.
        output.check_room()?;
        let first = output.tokens.len();
        let mut at = 0;
        while at < word.text.len() {
            match self.longest(&word.text.as_bytes()[at..], read) {
                Some((token, length)) => {
                    let part = if output.wants_offsets() { word.part(at, at + length) } else { 0..0 };
                    output.push(token, part);
                    at += length;
                }
                None => {
                    output.truncate(first);
                    if let Some(unknown) = self.unknown {
                        output.push(unknown, word.part(0, word.text.len()));
                    }
                    break;
                }
            }
        }
        word.text.clear();
        word.characters.clear();
        Ok(())
    }

    /// The longest token that `text` begins with, and its length. Reads no further than the longest text of a token.
    fn longest(&self, text: &[u8], read: &mut usize) -> Option<(Token, usize)> {
        let (mut state, mut longest) = (self.root, None);
        for (&byte, length) in text.iter().zip(1..) {
            *read += 1;
            state = self.tokens.next_state(Anchored::Yes, state, byte);
            if self.tokens.is_dead(state) {
                break;
            }
            // Those that end here and begin later follow the one that begins at the root.
            if self.tokens.is_match(state) {
                let token = self.tokens.match_pattern(state, 0);
                if self.tokens.pattern_len(token) == length {
                    longest = Some((Token(token.as_u32()), length));
                }
            }
        }
        longest
    }
}

impl Word {
    fn push(&mut self, c: char, part: Range<usize>) {
        if self.text.is_empty() {
            self.text.push_str(SPACE);
        }
        let part = part.start as u32..part.end as u32;
        self.characters.push(Character { at: self.text.len() as u32, part });
        self.text.push(c);
    }

    /// What the word was made of between two of its bytes.
    fn part(&self, from: usize, to: usize) -> Range<usize> {
        let first = self.characters.partition_point(|character| character.at as usize <= from).saturating_sub(1);
        let end = self.characters.partition_point(|character| (character.at as usize) < to);
        let start = self.characters.get(first).map_or(0, |character| character.part.start as usize);
        // The space in front of it was made of nothing.
        let last = end.checked_sub(1).and_then(|last| self.characters.get(last));
        start..last.map_or(start, |character| character.part.end as usize)
    }
}

#[cfg(test)]
mod tests;
