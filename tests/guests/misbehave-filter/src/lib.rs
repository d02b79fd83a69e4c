//! Misbehaving guest for the filter hook: see `misbehave::Behaviour`.
//!
//! Well-behaved, it passes everything. It leaks through the text of a replacement.
#![forbid(unsafe_code)]

use camshaft_plugin::filter::{Piece, Policy, Refusal, Replacement, Verdict};
use misbehave::{Answer, Behaviour, LEAK_BYTES, Settings};

/// The guest.
#[derive(Debug)]
pub struct Misbehave(Behaviour);

impl Policy for Misbehave {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    type Settings = Settings;

    fn new(settings: Settings) -> Result<Self, String> {
        settings.behave.at_start().map(Self)
    }

    fn check(&mut self, piece: &Piece<'_>) -> Result<Verdict, Refusal> {
        match self.0 {
            Behaviour::HoldForever => return Ok(piece.pass(0)),
            Behaviour::RewindForever => return Ok(Verdict::Rewind(piece.start)),
            // The middle of the first character beyond ASCII.
            Behaviour::SplitCharacter => {
                let wide = piece.text.bytes().position(|byte| !byte.is_ascii());
                return Ok(wide.map_or_else(|| piece.pass_all(), |at| piece.pass(at + 1)));
            }
            _ => {}
        }
        match self.0.when_asked() {
            Answer::Well => Ok(piece.pass_all()),
            Answer::Nonsense => Ok(Verdict::Pass(u64::MAX)),
            Answer::Leak => {
                let text = "x".repeat(LEAK_BYTES);
                Ok(Verdict::Replace(Replacement { start: piece.start, end: piece.end(), text }))
            }
            Answer::Tell => {
                let (tokens, logprobs) = (piece.tokens(0, u32::MAX), piece.logprobs(0, u32::MAX));
                let known = !tokens.is_empty()
                    && tokens.len() == logprobs.len()
                    && logprobs.iter().all(|logprob| *logprob <= 0.0);
                let asked = format!("{known} {:?} {:?}", piece.attribute("tier"), piece.field("/max_tokens"));
                let told =
                    [piece.model(), piece.tenant(), piece.choice().to_string(), asked, piece.before(5)].join(" ");
                // Once there is something before it.
                if piece.start < 5 { Ok(piece.pass_all()) } else { Err(Refusal::new(451, "told", &told)) }
            }
        }
    }
}

camshaft_plugin::export_filter!(Misbehave);
