//! Filter policy: API keys, e-mail addresses and card numbers go out masked, as `[key]`, `[email]` and `[card]`.
//!
//! Found are keys of common shapes (a known prefix and at least 16 more letters, digits, `-` and `_`), addresses with a
//! top-level domain, and card numbers of 13 to 19 digits, with single spaces or hyphens between them (also those at which no
//! line breaks), whose check digit is right (Luhn) and which no letter or other digit touches. Letters of addresses are those of
//! scripts with spaces between words, such as Latin, Greek and Cyrillic. A word is held until it is complete, so the text is late
//! by a word at most; what is longer than 512 bytes counts as several words, but a key is masked to its end. The prompt is not
//! checked.
//!
//! | setting | |
//! |---|---|
//! | `keys`, `email-addresses`, `card-numbers` | `true` (default): they are masked |
//! | `key-prefixes` | up to 64 prefixes of 3 to 32 bytes, besides the known ones |
#![forbid(unsafe_code)]

mod secrets;
mod words;

use camshaft_plugin::filter::{Piece, Policy, Refusal, Replacement, Verdict};
use serde::Deserialize;

pub use secrets::{Kinds, Secret};
pub use words::Word;

const MAX_PREFIXES: usize = 64;

/// `[settings]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Settings {
    #[serde(default = "yes")]
    pub keys: bool,
    #[serde(default = "yes")]
    pub email_addresses: bool,
    #[serde(default = "yes")]
    pub card_numbers: bool,
    #[serde(default)]
    pub key_prefixes: Vec<String>,
}

fn yes() -> bool {
    true
}

/// The policy's state for one choice.
#[derive(Debug)]
pub struct MaskSecrets {
    kinds: Kinds,
    /// A key was masked up to this byte of the text, where its word was cut: what follows may belong to it.
    masked_to: Option<u64>,
}

impl Policy for MaskSecrets {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const SCHEMA: &'static str = include_str!("../settings.schema.json");
    type Settings = Settings;

    fn new(Settings { keys, email_addresses, card_numbers, key_prefixes }: Settings) -> Result<Self, String> {
        if key_prefixes.len() > MAX_PREFIXES {
            let count = key_prefixes.len();
            return Err(format!("settings.key-prefixes has {count} prefixes, at most {MAX_PREFIXES} are allowed"));
        }
        for (index, prefix) in key_prefixes.iter().enumerate() {
            let is_word = prefix.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
            if !(3..=32).contains(&prefix.len()) || !is_word {
                let name = format!("settings.key-prefixes[{index}]");
                return Err(format!("{name} is not 3 to 32 letters, digits, hyphens, points and underscores"));
            }
        }
        Ok(Self { kinds: Kinds { keys, email_addresses, card_numbers, key_prefixes }, masked_to: None })
    }

    fn check(&mut self, piece: &Piece<'_>) -> Result<Verdict, Refusal> {
        // Another filter may have taken back what was masked.
        let continues = self.masked_to.take() == Some(piece.at(0));
        let rest = if continues { secrets::rest_of_key(piece.text.as_bytes()) } else { 0 };
        if rest > 0 {
            let end = piece.at(rest);
            self.masked_to = (rest == piece.text.len()).then_some(end);
            return Ok(Verdict::Replace(Replacement { start: piece.at(0), end, text: String::new() }));
        }
        let mut at = 0;
        while at < piece.text.len() {
            let (end, is_cut) = match words::first(&piece.text[at..], piece.last) {
                Word::Open => return Ok(piece.pass(at)),
                Word::Complete { end } => (at + end, false),
                Word::Cut { end } => (at + end, true),
            };
            let word = &piece.text[at..end];
            if let Some(Secret { start, end, mask }) = self.kinds.find(word) {
                let reaches_cut = is_cut && end == word.len() && mask == secrets::KEY_MASK;
                let (start, end) = (piece.at(at + start), piece.at(at + end));
                self.masked_to = reaches_cut.then_some(end);
                return Ok(Verdict::Replace(Replacement { start, end, text: mask.to_owned() }));
            }
            // A key that has begun is looked at as a whole.
            let begun = if is_cut { self.kinds.begun_key(word.as_bytes()) } else { None };
            at = begun.map_or(end, |begun| at + begun);
        }
        Ok(piece.pass_all())
    }
}

camshaft_plugin::export_filter!(MaskSecrets);

#[cfg(test)]
mod tests;
