//! Misbehaving guest for the validator hook: see `misbehave::Behaviour`.
#![forbid(unsafe_code)]

use camshaft_plugin::validator::{Policy, Refusal, Request, Verdict};
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

    fn validate(&mut self, request: &Request<'_>) -> Result<Verdict, Refusal> {
        match self.0.when_asked() {
            Answer::Well => Ok(Verdict::Accept),
            Answer::Tell => {
                let fields = ["/max_tokens", "/nothing"].map(|pointer| request.field(pointer));
                let told = format!("{} {} {fields:?}", request.tenant(), request.body());
                Err(Refusal::new(400, "told", told))
            }
            Answer::Nonsense => Err(Refusal::new(200, "misbehave", "a refusal with a status that is none")),
            Answer::Leak => Ok(Verdict::Amend("x".repeat(LEAK_BYTES))),
        }
    }
}

camshaft_plugin::export_validator!(Misbehave);
