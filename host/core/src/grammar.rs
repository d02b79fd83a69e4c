//! Constrained decoding: a request's grammar says which tokens may come next, and nothing else is drawn.
//!
//! A [`Grammar`] is plain data that travels with a request. A [`GrammarStore`] compiles it for one vocabulary, with `llguidance`, and
//! keeps what was compiled; each generation has a [`Matcher`] of it, which gives a mask for each token. What is supported, and what
//! is refused, stands in docs/structured-output.md.
mod beside;
mod compile;
mod error;
mod gbnf;
mod lark;
mod matcher;
mod quoted;
mod schema;
mod spec;
mod store;
mod trie;

pub mod fuzz;

pub use beside::{IsRoom, MaskJob, MaskThread};
pub use error::{GrammarError, GrammarFault};
pub use matcher::{Mask, Matcher, MatcherError};
pub(crate) use schema::{is_annotation, loosened};
pub use spec::{Grammar, GrammarSpec};
pub use store::{GrammarStore, InUse};

#[cfg(test)]
#[path = "grammar_tests.rs"]
mod tests;
