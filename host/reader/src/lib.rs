//! Reads what comes with a model's file and what clients write, where both meet: renders chats with the model's template, tokenizes
//! with its vocabulary, and finds out whether grammars can be compiled for it.
//!
//! A [`Task`] goes in and an [`Answer`] comes out, both plain data. [`Reader`] is who does it: [`LocalReader`] on threads of this
//! process, or a process that may be killed (in the server). Both take turns between tenants ([`Turns`]).
//!
//! **Invariants.** Nothing here bounds what a task takes of time, memory or stack: templates, vocabularies and grammars may be hostile,
//! and whoever reads does so in a process that has bounds. A [`Stage`] says what was being read when one was met.
#![forbid(unsafe_code)]

mod grammar_turns;
mod local;
mod model;
mod prompt;
mod task;
mod turns;

pub use grammar_turns::{GrammarTurn, GrammarTurns};
pub use local::LocalReader;
pub use model::{ModelReader, TemplateSource};
pub use task::{Answer, Asker, Bound, Chat, Ending, Facts, ReadError, Reader, Rendered, Stage, Task, Texts};
pub use turns::{Permit, SHORT_BYTES, Turns};
