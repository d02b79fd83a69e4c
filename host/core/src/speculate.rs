//! Speculative decoding: a guess at a sequence's next tokens is decoded in the step that gives the next one.
//!
//! Verification draws from each row as if nothing had been guessed (through the request's own sampler chain and seeded
//! generator) and goes on to the next row only while what was drawn is what was guessed. So every token is drawn from the
//! distribution that it would have been drawn from without (Leviathan et al. 2023, for a drafter that proposes one token
//! with certainty), greedy or not, and any sampler policy composes with it.
mod drafter;
mod lookup;
mod model;
mod odds;

pub use drafter::{Ask, Drafter};
pub use lookup::PromptLookup;
pub use model::ModelDrafter;
pub(crate) use odds::{Odds, Price};
