//! Filter policy: configured phrases never go out; the model writes something else in their place.
//!
//! A phrase is found as text, also inside longer words and over the borders of tokens. The text that the model began it with
//! is taken back and drawn anew, without the token that began it. The beginning of a phrase is held until it is clear what
//! becomes of it. The prompt is not checked.
//!
//! | setting | |
//! |---|---|
//! | `phrases` | 1 to 256 phrases of 1 to 256 bytes |
//! | `ignore-case` | `true` (default): A to Z match a to z |
//! | `max-rewinds` | after so many (0 to 127; 100 by default) the text ends before the phrase, with `content_filter` |
#![forbid(unsafe_code)]

mod phrases;

use camshaft_plugin::filter::{Ending, Piece, Policy, Reason, Refusal, Verdict};
use serde::Deserialize;

pub use phrases::{Found, Phrases};

/// The host allows 128.
const MAX_REWINDS: u32 = 127;

/// `[settings]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Settings {
    pub phrases: Vec<String>,
    #[serde(default = "yes")]
    pub ignore_case: bool,
    #[serde(default = "hundred")]
    pub max_rewinds: u32,
}

fn yes() -> bool {
    true
}

fn hundred() -> u32 {
    100
}

/// The policy's state for one choice.
#[derive(Debug)]
pub struct RewindPhrases {
    phrases: Phrases,
    max_rewinds: u32,
}

impl Policy for RewindPhrases {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const SCHEMA: &'static str = include_str!("../settings.schema.json");
    type Settings = Settings;

    fn new(Settings { phrases, ignore_case, max_rewinds }: Settings) -> Result<Self, String> {
        if max_rewinds > MAX_REWINDS {
            return Err(format!("settings.max-rewinds is {max_rewinds}, at most {MAX_REWINDS} are allowed"));
        }
        Ok(Self { phrases: Phrases::new(&phrases, ignore_case)?, max_rewinds })
    }

    fn check(&mut self, piece: &Piece<'_>) -> Result<Verdict, Refusal> {
        // What went out may begin a phrase, too: something else followed it then, which was taken back since.
        let before = if piece.start == 0 { String::new() } else { piece.before(self.phrases.longest() - 1) };
        Ok(match self.phrases.find(before.as_bytes(), piece.text.as_bytes()) {
            Found::Phrase(byte) if piece.rewinds() >= self.max_rewinds => {
                Verdict::Finish(Ending { at: piece.at(byte), reason: Reason::ContentFilter })
            }
            Found::Phrase(byte) => Verdict::Rewind(piece.at(byte)),
            Found::Beginning(byte) if !piece.last => piece.pass(byte),
            Found::Beginning(_) | Found::Nothing => piece.pass_all(),
        })
    }
}

camshaft_plugin::export_filter!(RewindPhrases);

#[cfg(test)]
mod tests;
