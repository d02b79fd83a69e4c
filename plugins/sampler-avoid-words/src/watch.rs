//! Decides which tokens are banned next.
use std::collections::BTreeMap;

use crate::words::Words;

/// The vocabulary queries that the watch needs.
pub trait Lookup {
    /// Tokens whose bytes begin with `prefix`.
    fn beginning_with(&self, prefix: &[u8], ignore_case: bool) -> Vec<u32>;
    /// Tokens whose bytes contain `needle`.
    fn containing(&self, needle: &[u8], ignore_case: bool) -> Vec<u32>;
    /// Tokens that end a generation instead of adding text.
    fn ending_the_text(&self) -> Vec<u32>;
}

/// Tracks banned tokens of one sequence.
#[derive(Debug)]
pub struct Watch {
    words: Words,
    /// Tokens that contain a word, followed in each step by those that complete one.
    banned: Vec<u32>,
    always: usize,
    ends: Vec<u32>,
    /// Tokens that begin with the rest of a word, looked up when the text first reaches that prefix.
    completing: BTreeMap<Vec<u8>, Vec<u32>>,
}

impl Watch {
    pub fn new(words: Words) -> Self {
        Self { words, banned: Vec::new(), always: 0, ends: Vec::new(), completing: BTreeMap::new() }
    }

    /// Reads the vocabulary, before the first token.
    pub fn start(&mut self, vocabulary: &impl Lookup) {
        // The name of an end token such as `</s>` is not text; without this the word `s` would ban the end token.
        self.ends = vocabulary.ending_the_text();
        self.ends.sort_unstable();
        self.banned.clear();
        for word in self.words.iter() {
            self.banned.extend(vocabulary.containing(word, self.words.ignore_case()));
        }
        self.banned.sort_unstable();
        self.banned.dedup();
        self.banned.retain(|token| self.ends.binary_search(token).is_err());
        self.always = self.banned.len();
        self.completing.clear();
    }

    /// How many bytes of the generated text's end `banned` needs.
    pub fn tail_bytes(&self) -> u32 {
        u32::try_from(self.words.longest().saturating_sub(1)).unwrap_or(u32::MAX)
    }

    /// The tokens banned after a text that ends with `tail`. A token may be listed twice.
    pub fn banned(&mut self, tail: &[u8], vocabulary: &impl Lookup) -> &[u32] {
        let Self { words, banned, always, ends, completing } = self;
        banned.truncate(*always);
        for rest in words.rests(tail) {
            if !completing.contains_key(rest) {
                let mut tokens = vocabulary.beginning_with(rest, words.ignore_case());
                tokens.retain(|token| ends.binary_search(token).is_err());
                completing.insert(rest.to_vec(), tokens);
            }
            banned.extend(completing.get(rest).into_iter().flatten());
        }
        banned
    }
}
