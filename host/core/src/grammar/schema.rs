//! Reads a JSON Schema before it is compiled: refuses what is not supported, by keyword and path.
//!
//! What it returns says the same in fewer words: without annotations, and with each referenced schema once in the root's `$defs`. Its
//! depth, along references too, is bounded, because the compiler recurses over it.
mod exclusive;
mod keywords;
mod path;
mod walk;

pub(crate) use keywords::is_annotation;
pub(crate) use walk::loosened;
pub(super) use walk::{Checked, check, check_value};

#[cfg(test)]
#[path = "schema_tests.rs"]
mod tests;
