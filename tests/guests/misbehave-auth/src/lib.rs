//! Misbehaving guest for the auth hook: see `misbehave::Behaviour`.
#![forbid(unsafe_code)]

use camshaft_plugin::auth::{Policy, Principal, Refusal, Request, Verdict};
use camshaft_plugin::{Setup, documents};
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

    fn set_up(&mut self, setup: &Setup) -> Result<(), String> {
        if self.reuse {
            setup.reuse();
        }
        if self.behaviour == Behaviour::Tell {
            let secret = setup.secret("key").map(String::from_utf8);
            self.place = format!("{}/{} on {} {secret:?}", setup.hook(), setup.name(), setup.host_version());
        }
        Ok(())
    }

    fn authenticate(&mut self, request: &Request<'_>) -> Result<Verdict, Refusal> {
        let mut principal = Principal::new("anonymous", "anonymous");
        match self.behaviour.when_asked() {
            Answer::Well => note(request).map_err(|error| Refusal::new(400, "attribute", error))?,
            Answer::Tell => return Err(Refusal::new(403, "told", tell(request, &self.place))),
            Answer::Nonsense => principal.weight = f64::NAN,
            Answer::Leak => principal.name = "x".repeat(LEAK_BYTES),
        }
        Ok(Verdict::Allow(principal))
    }
}

/// Where a header names an attribute, sets it.
fn note(request: &Request<'_>) -> Result<(), String> {
    match request.header("x-attribute").as_deref().and_then(|header| header.split_once('=')) {
        Some((name, value)) => request.set_attribute(name, value),
        None => Ok(()),
    }
}

fn tell(request: &Request<'_>, place: &str) -> String {
    let (values, names) = (request.values("x-a"), request.names());
    let unknown = request.set_limit("requests-per-day", 1.0);
    let read = |name: &String| {
        (documents::version(name), documents::read(name).map(|(version, bytes)| (version, bytes.len())))
    };
    let documents: Vec<_> = documents::names().iter().map(|name| (name.clone(), read(name))).collect();
    let refused = request.set_attribute("Tier", "gold").is_err();
    format!("{place}; {} {} {values:?} {names:?} {unknown:?} {documents:?} {refused}", request.id(), request.query())
}

camshaft_plugin::export_auth!(Misbehave);
