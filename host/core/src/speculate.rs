//! Speculative decoding: drafts of a sequence's next tokens are verified in the step that computes the next one.
//!
//! Verification draws from each row as if there were no draft (through the request's own sampler chain and seeded
//! generator) and continues to the next row only while the drawn token equals the draft. So every token is drawn from
//! the distribution that it would have had without drafts (Leviathan et al. 2023, for a drafter that proposes one token
//! with certainty), greedy or not, under any sampler policy.
mod drafter;
mod lookup;
mod model;
mod odds;

pub use drafter::{Ask, Drafter};
pub use lookup::PromptLookup;
pub use model::ModelDrafter;
pub(crate) use odds::{Odds, Price};
