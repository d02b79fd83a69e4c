//! Filter policy: text that matches a pattern is redacted, or ends the choice.
//!
//! Patterns are regular expressions in the syntax of Rust's `regex` crate. Classes such as `\w` and the folding of case are those
//! of ASCII, and `.` is any byte but a new line (a match is widened to whole characters). A pattern with characters beyond ASCII
//! has no such classes, and case counts in it: with `ignore-case` it is refused. Patterns are found over the borders of tokens:
//! text that may still become a match is held, until it is one or cannot be one any more. Matches are those that a search of the
//! whole text would find: leftmost, and without empty ones. A search takes steps in proportion to the text that it looks at,
//! whatever the patterns. The prompt is not checked.
//!
//! | setting | |
//! |---|---|
//! | `patterns` | 1 to 64 patterns of 1 to 512 bytes |
//! | `ignore-case` | `false` (default) |
//! | `action` | `"redact"` (default): the match goes out as `replacement`; `"finish"`: the text ends before it, with `content_filter` |
//! | `replacement` | up to 256 bytes; `"[removed]"` |
//! | `max-match-bytes` | 1 to 16384; 1024. What may become a longer match is not held for longer: what matched so far counts |
#![forbid(unsafe_code)]

mod automaton;
mod patterns;

use camshaft_plugin::filter::{Ending, Piece, Policy, Reason, Refusal, Replacement, Verdict};
use serde::Deserialize;

pub use patterns::{Found, Patterns};

const MAX_REPLACEMENT_BYTES: usize = 256;
const MAX_MATCH_BYTES: usize = 16 << 10;

/// `[settings]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Settings {
    pub patterns: Vec<String>,
    #[serde(default)]
    pub ignore_case: bool,
    #[serde(default)]
    pub action: Action,
    #[serde(default = "removed")]
    pub replacement: String,
    #[serde(default = "kibibyte")]
    pub max_match_bytes: usize,
}

/// What becomes of a match.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    #[default]
    Redact,
    Finish,
}

fn removed() -> String {
    "[removed]".to_owned()
}

fn kibibyte() -> usize {
    1024
}

/// The policy's state for one choice.
#[derive(Debug)]
pub struct DenyPatterns {
    patterns: Patterns,
    action: Action,
    replacement: String,
}

impl Policy for DenyPatterns {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const SCHEMA: &'static str = include_str!("../settings.schema.json");
    type Settings = Settings;

    fn new(settings: Settings) -> Result<Self, String> {
        let Settings { patterns, ignore_case, action, replacement, max_match_bytes } = settings;
        if replacement.len() > MAX_REPLACEMENT_BYTES {
            let bytes = replacement.len();
            return Err(format!("settings.replacement has {bytes} bytes, at most {MAX_REPLACEMENT_BYTES} are allowed"));
        }
        if !(1..=MAX_MATCH_BYTES).contains(&max_match_bytes) {
            return Err(format!("settings.max-match-bytes is {max_match_bytes}, 1 to {MAX_MATCH_BYTES} are allowed"));
        }
        Ok(Self { patterns: Patterns::new(&patterns, ignore_case, max_match_bytes)?, action, replacement })
    }

    fn check(&mut self, piece: &Piece<'_>) -> Result<Verdict, Refusal> {
        // Patterns may ask what the character before a match is.
        let before = if piece.start == 0 { String::new() } else { piece.before(4) };
        let found = self.patterns.find(&before, &piece.text, piece.last);
        Ok(match (found, self.action) {
            (Found::Nothing, _) => piece.pass_all(),
            (Found::Open { start, matched: Some(_) } | Found::Match { start, .. }, Action::Finish) => {
                Verdict::Finish(Ending { at: piece.at(start), reason: Reason::ContentFilter })
            }
            (Found::Open { start, .. }, _) => piece.pass(start),
            (Found::Match { start, end }, Action::Redact) => {
                let text = self.replacement.clone();
                Verdict::Replace(Replacement { start: piece.at(start), end: piece.at(end), text })
            }
        })
    }
}

camshaft_plugin::export_filter!(DenyPatterns);

#[cfg(test)]
mod tests;
