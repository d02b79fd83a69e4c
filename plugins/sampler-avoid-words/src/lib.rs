//! Sampler policy: configured words never appear in the generated text, however the model splits them into tokens.
//!
//! Before each token, the policy bans every token that would complete a word: tokens that contain one, and, if the text
//! so far ends with the start of a word, tokens that begin with the rest of it. Words match inside other words: with
//! `red` in the list, `bored` cannot appear. The prompt is not checked.
//!
//! The policy only bans. If it is the only sampler, the host's standard chain follows, so temperature and the other
//! parameters apply as usual. Beside another sampler, put it first (`05-avoid-words.wasm`, `10-standard.wasm`), so that
//! top-k counts only allowed tokens. If an earlier sampler kept only banned tokens, the host draws the best allowed
//! token.
//!
//! | setting | |
//! |---|---|
//! | `words` | 1 to 256 words of 1 to 64 bytes; surrounding white space is removed |
//! | `ignore-case` | `true` (default): A to Z match a to z |
#![forbid(unsafe_code)]

mod watch;
mod words;

use camshaft_plugin::sampler::{Plan, Policy, Refusal, Request, Row};
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

/// The policy's state for one sequence.
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

    fn start(&mut self, _: &Request<'_>) -> Result<Option<Plan>, Refusal> {
        self.watch.start(&Model);
        Ok(None)
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
