//! Misbehaving guest for the auth hook: see `misbehave::Behaviour`.
#![forbid(unsafe_code)]

use camshaft_plugin::auth::{Policy, Principal, Refusal, Request, Verdict};
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

    fn authenticate(&mut self, _: &Request<'_>) -> Result<Verdict, Refusal> {
        let mut principal = Principal::new("anonymous", "anonymous");
        match self.0.when_asked() {
            Answer::Well => {}
            Answer::Nonsense => principal.weight = f64::NAN,
            Answer::Leak => principal.name = "x".repeat(LEAK_BYTES),
        }
        Ok(Verdict::Allow(principal))
    }
}

camshaft_plugin::export_auth!(Misbehave);
