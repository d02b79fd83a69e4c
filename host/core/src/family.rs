//! How families of models write tool calls and thinking: one description of each, from which come both the grammar that
//! constrains an answer and the parser that takes it apart.
mod arguments;
mod braces;
mod bracing;
pub mod constraint;
mod content;
pub mod description;
pub mod detect;
mod elements;
pub mod event;
pub mod fuzz;
pub mod instructions;
mod json;
mod known;
mod lark;
mod marker;
mod nesting;
pub mod parser;
mod prefix;
mod rules;
mod schemas;
mod spelling;
pub mod tools;
