//! Translates llama.cpp's grammars to Lark.
mod emit;
mod parse;

use super::error::GrammarError;

/// The grammar in Lark.
///
/// # Errors
/// It is none, or over a bound. Errors name line and column.
pub(super) fn to_lark(text: &str) -> Result<String, GrammarError> {
    let rules = parse::parse(text)?;
    emit::emit(&rules)
}

#[cfg(test)]
#[path = "gbnf_tests.rs"]
mod tests;
