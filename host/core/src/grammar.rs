//! Constrained decoding: a request's grammar says which tokens may come next, and nothing else is drawn.
//!
//! A [`Grammar`] is plain data that travels with a request. A [`GrammarStore`] compiles it for one vocabulary, with `llguidance`, and
//! keeps what was compiled; each generation has a [`Matcher`] of it, which gives a mask for each token. What is supported, and what
//! is refused, stands in docs/structured-output.md.
mod compile;
mod error;
mod gbnf;
mod lark;
mod matcher;
mod schema;
mod spec;
mod store;

pub use error::{GrammarError, GrammarFault};
pub(crate) use lark::lark_string;
pub use matcher::{Mask, Matcher, MatcherError};
pub(crate) use schema::{is_annotation, loosened};
pub use spec::{Grammar, GrammarSpec};
pub use store::{CompiledElsewhere, GrammarStore, InUse};

/// What the fuzz targets call: what reads grammars before the compiler does. The compiler itself may take all time and memory, and runs
/// where that ends a process alone.
pub mod fuzz {
    /// Reads the bytes as a JSON schema.
    pub fn schema(data: &[u8]) {
        let Ok(text) = std::str::from_utf8(data) else { return };
        let _ = super::schema::parse(text).and_then(|schema| super::schema::check(&schema));
    }

    /// Reads the bytes as a grammar in GBNF, and as one in Lark.
    ///
    /// # Panics
    /// If this server refuses what a grammar in GBNF becomes.
    pub fn gbnf(data: &[u8]) {
        let Ok(text) = std::str::from_utf8(data) else { return };
        if let Ok(translated) = super::gbnf::to_lark(text) {
            let read = super::lark::check(&translated);
            assert!(read.is_ok(), "{read:?}");
        }
        let _ = super::lark::check(text);
    }
}

#[cfg(test)]
#[path = "grammar_tests.rs"]
mod tests;
