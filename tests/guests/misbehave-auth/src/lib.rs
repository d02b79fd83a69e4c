//! Misbehaving guest for the auth hook: see `misbehave::Behaviour`.
#![forbid(unsafe_code)]

use std::time::Duration;

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
            Answer::Well => {
                obey(request).map_err(|error| Refusal::new(400, "bounds", &error))?;
                if let Some(tenant) = request.header("x-tenant") {
                    principal.tenant = tenant;
                }
                if let Some(ms) = number(request, "x-refuse-ms") {
                    request.set_retry_after(Duration::from_millis(ms));
                    return Err(Refusal::new(429, "later", "as asked"));
                }
            }
            Answer::Tell => return Err(Refusal::new(403, "told", tell(request, &self.place))),
            Answer::Nonsense => principal.weight = f64::NAN,
            Answer::Leak => principal.name = "x".repeat(LEAK_BYTES),
        }
        Ok(Verdict::Allow(principal))
    }
}

/// Does what the headers ask for.
fn obey(request: &Request<'_>) -> Result<(), String> {
    let pair = |name: &str| {
        let header = request.header(name)?;
        header.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
    };
    if let Some((name, value)) = pair("x-attribute") {
        request.set_attribute(&name, &value)?;
    }
    if let Some((name, value)) = pair("x-reply") {
        request.set_response_header(&name, &value)?;
    }
    if request.header("x-digest").is_some() {
        let digest = request.body_sha256().ok_or("there is no digest")?;
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        request.set_response_header("x-body-sha256", &digest)?;
    }
    match number(request, "x-reuse-ms") {
        Some(ms) => request.reuse_for(Duration::from_millis(ms), &["x-tenant"]),
        None => Ok(()),
    }
}

fn number(request: &Request<'_>, header: &str) -> Option<u64> {
    request.header(header)?.parse().ok()
}

fn tell(request: &Request<'_>, place: &str) -> String {
    let (values, names) = (request.values("x-a"), request.names());
    let unknown = request.set_limit("requests-per-day", 1.0);
    let read = |name: &String| {
        (documents::version(name), documents::read(name).map(|(version, bytes)| (version, bytes.len())))
    };
    let documents: Vec<_> = documents::names().iter().map(|name| (name.clone(), read(name))).collect();
    let refused = [
        request.set_attribute("Tier", "gold"),
        request.set_response_header("set-cookie", "a=b"),
        request.set_response_header("x-a", "1\r\nset-cookie: a=b"),
        request.reuse_for(Duration::from_secs(601), &[]),
    ];
    let refused = refused.iter().filter(|set| set.is_err()).count();
    let certificates: Vec<usize> = request.peer_certificates().iter().map(Vec::len).collect();
    let shown = format!("{certificates:?} {:?} {refused}", request.body_sha256().map(|digest| digest.len()));
    let (id, query) = (request.id(), request.query());
    format!("{place}; {id} {query} {values:?} {names:?} {unknown:?} {documents:?} {shown}")
}

camshaft_plugin::export_auth!(Misbehave);
