//! What an answer's text must look like: the grammar that it follows, and what takes it apart.
use std::sync::Arc;

use camshaft_core::family::description::{ContentForm, Family, ThinkingState};
use camshaft_core::family::parser::Parser;
use camshaft_core::family::tools::Tools;
use camshaft_core::grammar::{Grammar, InUse};
use camshaft_core::ids::Token;
use camshaft_core::message::ShownToken;
use camshaft_core::thinking::ThinkingBudget;

/// Estimated copies of a grammar's text, and of its tools' schemas, in memory.
const COPIES: usize = 4;

/// See the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct AnswerForm {
    /// `None`: it may be anything.
    pub(crate) grammar: Option<HeldGrammar>,
    /// `None`: all of it is content.
    pub(crate) parts: Option<Parts>,
    /// Control tokens that are part of the text.
    pub(crate) shown: Arc<[ShownToken]>,
    /// Tokens that end it, besides the model's.
    pub(crate) stops: Vec<Token>,
    /// How much of it may be thinking.
    pub(crate) thinking_budget: Option<ThinkingBudget>,
}

/// A grammar that is compiled as long as the request lives, so that its worker need not.
#[derive(Debug, Clone)]
pub(crate) struct HeldGrammar {
    pub(crate) grammar: Arc<Grammar>,
    _compiled: InUse,
}

impl HeldGrammar {
    pub(crate) fn new(grammar: Arc<Grammar>, compiled: InUse) -> Self {
        Self { grammar, _compiled: compiled }
    }
}

/// What an answer may be made of.
#[derive(Debug, Clone)]
pub(crate) struct Parts {
    pub(crate) family: &'static Family,
    pub(crate) tools: Arc<Tools>,
    pub(crate) form: ContentForm,
    pub(crate) thinking: ThinkingState,
}

impl Parts {
    pub(crate) fn parser(&self) -> Parser {
        Parser::new(self.family, self.tools.clone(), self.form, self.thinking)
    }
}

impl AnswerForm {
    /// What it takes in memory.
    pub(crate) fn held_bytes(&self) -> usize {
        self.grammar.as_ref().map_or(0, |held| held.grammar.spec().text_bytes().saturating_mul(COPIES))
    }
}
