//! Reads a Lark grammar before it is compiled: bounds its nesting, refuses what cannot be taken back
//! or would be ignored, and checks the JSON schemas in it.
mod check;
mod lexer;

pub(super) use check::{JSON_OPTIONS, check};
pub(super) use lexer::position;

#[cfg(test)]
#[path = "lark_tests.rs"]
mod tests;
