//! Misbehaving guest for the validator hook: see `misbehave::Behaviour`.
#![forbid(unsafe_code)]

use camshaft_plugin::Setup;
use camshaft_plugin::validator::{Policy, Priority, Refusal, Request, Verdict};
use misbehave::{Answer, Behaviour, LEAK_BYTES, Settings};

/// The guest.
#[derive(Debug)]
pub struct Misbehave {
    behaviour: Behaviour,
    reuse: bool,
}

impl Policy for Misbehave {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    type Settings = Settings;

    fn new(settings: Settings) -> Result<Self, String> {
        Ok(Self { behaviour: settings.behave.at_start()?, reuse: settings.reuse })
    }

    fn set_up(&mut self, setup: &Setup) -> Result<(), String> {
        if self.reuse {
            setup.reuse();
        }
        Ok(())
    }

    fn validate(&mut self, request: &Request<'_>) -> Result<Verdict, Refusal> {
        match self.behaviour.when_asked() {
            Answer::Well => {
                if let Some(tier) = request.attribute("tier") {
                    let set = request.set_attribute("seen", &tier);
                    set.map_err(|error| Refusal::new(400, "attribute", error))?;
                    request.set_priority(Priority::LOW);
                }
                Ok(Verdict::Accept)
            }
            Answer::Tell => {
                let fields = ["/max_tokens", "/nothing"].map(|pointer| request.field(pointer));
                let (tier, cost, priority) = (request.attribute("tier"), request.estimated_cost(), request.priority());
                let who = format!("{}/{} {tier:?} {cost} {priority}", request.tenant(), request.principal());
                let told = format!("{who} {} {fields:?}", request.body());
                Err(Refusal::new(400, "told", told))
            }
            Answer::Nonsense => Err(Refusal::new(200, "misbehave", "a refusal with a status that is none")),
            Answer::Leak => Ok(Verdict::Amend("x".repeat(LEAK_BYTES))),
        }
    }
}

camshaft_plugin::export_validator!(Misbehave);
