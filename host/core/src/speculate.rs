//! Speculative decoding: a drafter proposes a sequence's next tokens, and one step verifies them.
//!
//! The worker draws from each row as if there were no draft, through the request's own sampler chain and seeded
//! generator. It goes on to the next row only while the drawn token equals the draft. So every token has the
//! distribution that it would have without drafts, greedy or not, under any sampler policy (Leviathan et al. 2023, for
//! a drafter that proposes one token with certainty).
mod acceptance;
mod drafter;
mod lookup;
mod model;

pub(crate) use acceptance::{AcceptanceRate, break_even};
pub use drafter::{DraftRequest, Drafter};
pub use lookup::PromptLookup;
pub use model::ModelDrafter;
