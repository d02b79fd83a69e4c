//! What a reader is asked, and what it answers.
use std::collections::HashMap;
use std::fmt;

use camshaft_core::engine::Encoded;
use camshaft_core::grammar::{Grammar, GrammarError};
use camshaft_core::ids::{TenantId, Token};
use camshaft_template::{Message, TemplateTraits};
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Whoever reads for one model.
pub trait Reader: Send + Sync + fmt::Debug {
    /// What was found out when the model was loaded.
    fn facts(&self) -> &Facts;

    /// Does a task when it is the asker's turn. Dropping the future gives up.
    ///
    /// # Errors
    /// What is wrong with what was to be read; or it was not read.
    fn read<'a>(&'a self, asker: Asker<'a>, task: Task) -> BoxFuture<'a, Result<Answer, ReadError>>;
}

/// Who asks. Tenants take turns, and short bodies wait for no long ones.
#[derive(Debug, Clone, Copy)]
pub struct Asker<'a> {
    pub tenant: &'a TenantId,
    /// Of the request's body.
    pub bytes: usize,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Task {
    /// Finds out what the template takes.
    Describe,
    Chat(Box<Chat>),
    Texts(Texts),
    /// Finds out whether a grammar can be compiled.
    Grammar(Box<Grammar>),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Answer {
    Template(TemplateTraits),
    Chat(Rendered),
    /// Of each text.
    Texts(Vec<Encoded>),
    Grammar,
}

/// What is known of a model before anybody asks.
#[derive(Debug, Clone)]
pub struct Facts {
    /// What the chat template takes, or why it cannot be used.
    pub template: Result<TemplateTraits, String>,
    /// The tokens of texts that may spell control tokens.
    pub markers: HashMap<String, Vec<Token>>,
}

impl Facts {
    /// What is asked of a reader to find out the tokens of `markers`.
    pub fn of_markers(markers: &[String]) -> Task {
        Task::Texts(Texts { texts: markers.to_vec(), parse_special: true, most: usize::MAX, ..Texts::default() })
    }

    /// `read`: the answer to [`Facts::of_markers`].
    pub fn new(markers: Vec<String>, read: Vec<Encoded>, template: Result<TemplateTraits, String>) -> Self {
        let tokens = read.into_iter().map(|encoded| encoded.tokens);
        Self { template, markers: markers.into_iter().zip(tokens).collect() }
    }
}

/// A conversation that was written for the model's template.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Chat {
    pub messages: Vec<Message>,
    pub tools: Vec<Value>,
    /// Further variables.
    pub variables: Map<String, Value>,
    /// Whether it has tools, even if they are described in a message.
    pub has_tools: bool,
    pub ending: Ending,
    /// The rest of a prompt that has more tokens than this need not be read.
    pub most: usize,
    /// Whether the answer has the prompt's text. Otherwise it has only what the text ends with.
    pub whole_text: bool,
}

/// What a chat's prompt ends with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// The beginning of the assistant's next message.
    #[default]
    Next,
    /// The end of the last message.
    Last,
    /// The text of the last message, which goes on.
    Open,
}

/// A conversation as the model reads it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Rendered {
    /// The prompt, or its end.
    pub text: String,
    pub tokens: Vec<Token>,
}

/// Texts to tokenize.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Texts {
    pub texts: Vec<String>,
    /// Adds what the model expects around a text.
    pub add_special: bool,
    /// Turns the spelling of a control token into that token.
    pub parse_special: bool,
    /// Says which part of the text each token comes from.
    pub offsets: bool,
    /// The rest of a text that has more tokens than this need not be read.
    pub most: usize,
}

/// What is being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    Template,
    Vocabulary,
    Grammar,
}

/// What a reader ran into.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Bound {
    Time,
    Memory,
    /// It crashed.
    Crash(String),
    /// Others had the processor for too long: it may do with more of it.
    Wait,
}

/// Why something was not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum ReadError {
    /// A field of the request is wrong.
    #[error("{message}")]
    Field { field: String, message: String },
    /// The template fails on the messages.
    #[error("the model's chat template cannot render these messages: {0}")]
    Template(String),
    #[error("{0}")]
    Grammar(GrammarError),
    #[error("too many requests are being read")]
    Busy,
    #[error("too many grammars are being compiled")]
    GrammarsBusy,
    /// Reading was ended.
    #[error("{}", ended(*.0, .1))]
    Ended(Stage, Bound),
    /// Why is for the log.
    #[error("nobody reads for the model at the moment")]
    Lost(String),
}

fn ended(stage: Stage, bound: &Bound) -> String {
    let of = match stage {
        Stage::Template => "rendering the messages with the model's chat template",
        Stage::Vocabulary => "tokenizing the text with the model's vocabulary",
        Stage::Grammar => "compiling the grammar",
    };
    match bound {
        Bound::Time => format!("{of} takes too much time"),
        Bound::Wait => format!("{of} was not given the processor for long enough"),
        Bound::Memory => format!("{of} takes too much memory"),
        Bound::Crash(why) => format!("{of} ended the process that did it ({why})"),
    }
}

impl ReadError {
    pub(crate) fn field(field: &str, message: impl Into<String>) -> Self {
        Self::Field { field: field.to_owned(), message: message.into() }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Template => "template",
            Self::Vocabulary => "vocabulary",
            Self::Grammar => "grammar",
        })
    }
}
