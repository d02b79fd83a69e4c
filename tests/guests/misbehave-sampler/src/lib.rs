//! Misbehaving guest for the sampler hook: see `misbehave::Behaviour`.
//!
//! Its answer is one number, so it leaks through the token list of a row operation instead.
#![forbid(unsafe_code)]

use std::hint::black_box;

use camshaft_plugin::sampler::{Plan, Policy, Refusal, Request, Row};
use camshaft_plugin::{log, vocabulary};
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

    fn start(&mut self, request: &Request<'_>) -> Result<Option<Plan>, Refusal> {
        if self.0 == Behaviour::Tell {
            let (tier, field) = (request.attribute("tier"), request.field("/max_tokens"));
            log::info(&format!("told: {} {} {tier:?} {field:?}", request.model(), request.tenant()));
        }
        Ok(None)
    }

    fn sample(&mut self, row: &Row) -> Option<u32> {
        if self.0 == Behaviour::QueryVocabulary {
            for number in 0_u64.. {
                black_box(vocabulary::tokens_containing(number.to_string().as_bytes(), false));
                black_box(vocabulary::tokens_with_prefix(&number.to_le_bytes(), true));
            }
        }
        match self.0.when_asked() {
            Answer::Well | Answer::Tell => None,
            Answer::Nonsense => {
                // What is left of the row is nonsense, too.
                row.write(0, &vec![-1.0; row.size() as usize]);
                row.keep_top_k(1);
                Some(u32::MAX)
            }
            Answer::Leak => {
                row.ban(&vec![0; LEAK_BYTES / size_of::<u32>()]);
                None
            }
        }
    }
}

camshaft_plugin::export_sampler!(Misbehave);
