//! Answers of every family of models: golden transcripts, cut anywhere, and what the families' grammars generate.
mod bounds;
mod goldens;
mod grammars;
mod soup;
mod support;
mod vocabulary;
mod walks;
