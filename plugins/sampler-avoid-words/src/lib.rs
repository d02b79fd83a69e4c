//! Sampler policy: configured words never appear in the generated text, however the model cuts them into tokens.
//!
//! Before each token, everything is banned that would complete a word: tokens that contain one, and, where the text so
//! far ends with the beginning of a word, tokens that go on with the rest of it. A word is found inside others too:
//! with `red` in the list, `bored` cannot appear. Words of the prompt are not looked at.
//!
//! It only bans. Alone it is followed by the host's own standard chain, so temperature and the rest count as ever. Beside
//! another sampler it comes best first (`10-avoid-words.wasm`, `20-standard.wasm`), so that top-k counts tokens that may be
//! drawn. Where a sampler before this one left only banned tokens, the host draws the best token that is not banned.
//!
//! | setting | |
//! |---|---|
//! | `words` | 1 to 256 words of 1 to 64 bytes; white space around them is dropped |
//! | `ignore-case` | `true` (default): the letters A to Z are equal to a to z |
#![forbid(unsafe_code)]

mod watch;
mod words;

use camshaft_plugin::sampler::{Policy, Request, Row};
use camshaft_plugin::vocabulary;
use serde::Deserialize;

pub use watch::{Lookup, Watch};
pub use words::Words;

/// `[settings]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Settings {
    pub words: Vec<String>,
    #[serde(default = "yes")]
    pub ignore_case: bool,
}

fn yes() -> bool {
    true
}

/// The policy: what it watches for in one sequence.
#[derive(Debug)]
pub struct AvoidWords {
    watch: Watch,
}

impl Policy for AvoidWords {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const SCHEMA: &'static str = include_str!("../settings.schema.json");
    type Settings = Settings;

    fn new(settings: Settings) -> Result<Self, String> {
        Ok(Self { watch: Watch::new(Words::new(&settings.words, settings.ignore_case)?) })
    }

    fn start(&mut self, _: &Request) {
        self.watch.start(&Model);
    }

    fn sample(&mut self, row: &Row) -> Option<u32> {
        let tail = match self.watch.tail_bytes() {
            0 => Vec::new(),
            bytes => row.text_tail(bytes),
        };
        let banned = self.watch.banned(&tail, &Model);
        if !banned.is_empty() {
            row.ban(banned);
        }
        None
    }
}

/// The vocabulary of the sequence's model.
#[derive(Debug)]
struct Model;

impl Lookup for Model {
    fn beginning_with(&self, prefix: &[u8], ignore_case: bool) -> Vec<u32> {
        vocabulary::tokens_with_prefix(prefix, ignore_case)
    }

    fn containing(&self, needle: &[u8], ignore_case: bool) -> Vec<u32> {
        vocabulary::tokens_containing(needle, ignore_case)
    }

    fn ending_the_text(&self) -> Vec<u32> {
        vocabulary::end_tokens()
    }
}

camshaft_plugin::export_sampler!(AvoidWords);

#[cfg(test)]
mod tests;
