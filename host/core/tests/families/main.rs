//! Answers of every family of models: golden transcripts, cut anywhere, and what the families' grammars generate.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

mod bounds;
mod goldens;
mod grammars;
mod schemas;
mod soup;
mod support;
mod vocabulary;
mod walks;
