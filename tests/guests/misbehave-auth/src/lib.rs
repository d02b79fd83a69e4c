//! Misbehaving guest for the auth hook: see `misbehave::Behaviour`.
#![forbid(unsafe_code)]

use camshaft_plugin::Setup;
use camshaft_plugin::auth::{Policy, Principal, Refusal, Request, Verdict};
use misbehave::{Answer, Behaviour, LEAK_BYTES, Settings};

/// The guest.
#[derive(Debug)]
pub struct Misbehave {
    behaviour: Behaviour,
    reuse: bool,
    /// What `setup` said.
    place: String,
}

impl Policy for Misbehave {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    type Settings = Settings;

    fn new(settings: Settings) -> Result<Self, String> {
        Ok(Self { behaviour: settings.behave.at_start()?, reuse: settings.reuse, place: String::new() })
    }

    fn set_up(&mut self, setup: &Setup) {
        if self.reuse {
            setup.reuse();
        }
        if self.behaviour == Behaviour::Tell {
            self.place = format!("{}/{} on {}", setup.hook(), setup.name(), setup.host_version());
        }
    }

    fn authenticate(&mut self, request: &Request<'_>) -> Result<Verdict, Refusal> {
        let mut principal = Principal::new("anonymous", "anonymous");
        match self.behaviour.when_asked() {
            Answer::Well => {}
            Answer::Tell => return Err(Refusal::new(403, "told", tell(request, &self.place))),
            Answer::Nonsense => principal.weight = f64::NAN,
            Answer::Leak => principal.name = "x".repeat(LEAK_BYTES),
        }
        Ok(Verdict::Allow(principal))
    }
}

fn tell(request: &Request<'_>, place: &str) -> String {
    let (values, names) = (request.values("x-a"), request.names());
    let unknown = request.set_limit("requests-per-day", 1.0);
    format!("{place}; {} {} {values:?} {names:?} {unknown:?}", request.id(), request.query())
}

camshaft_plugin::export_auth!(Misbehave);
