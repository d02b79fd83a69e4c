//! Reads the inputs of plain completions and embeddings: one or several texts or lists of token ids.
use camshaft_core::ids::Token;
use camshaft_core::vocabulary::Vocabulary;
use serde_json::Value;

use crate::wire::error::RequestError;
use crate::wire::fields::{self, Fields};
use crate::wire::lists::IdLists;
use crate::wire::tokens;

/// One text or list of tokens, with its path in the body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BodyInput {
    pub(crate) path: String,
    pub(crate) content: InputContent,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InputContent {
    Text(String),
    Tokens(Vec<Token>),
}

/// Reads a string, a list of strings, a list of token ids, or a list of such lists, at most `max` inputs in all.
///
/// # Errors
/// 400 that names the entry, such as `input[3]`.
pub(crate) fn read(
    fields: &Fields<'_>,
    name: &str,
    max: usize,
    vocabulary: &Vocabulary,
) -> Result<Vec<BodyInput>, RequestError> {
    let one = |content| Ok(vec![BodyInput { path: name.to_owned(), content }]);
    match fields.ids(name) {
        Some(IdLists::One(ids)) => return one(InputContent::Tokens(tokens::read(ids, name, vocabulary)?)),
        Some(IdLists::Several(lists)) => {
            check_count(name, lists.len(), max)?;
            let entry = |(i, ids): (usize, &Vec<u32>)| {
                let path = format!("{name}[{i}]");
                let content = InputContent::Tokens(tokens::read(ids, &path, vocabulary)?);
                Ok(BodyInput { path, content })
            };
            return lists.iter().enumerate().map(entry).collect();
        }
        None => {}
    }
    let list = match fields.require(name)? {
        Value::String(text) => return one(InputContent::Text(text.clone())),
        Value::Array(list) if !list.is_empty() => list,
        Value::Array(_) => return Err(RequestError::field(name, format!("{name} must not be an empty list"))),
        other => return Err(fields::wrong_type(name, "a string, a list of strings or a list of token ids", other)),
    };
    if list[0].is_number() {
        return one(InputContent::Tokens(tokens::refuse(list, name, vocabulary)?));
    }
    check_count(name, list.len(), max)?;
    let entry = |(i, value): (usize, &Value)| {
        let path = format!("{name}[{i}]");
        let content = match value {
            Value::String(text) => InputContent::Text(text.clone()),
            Value::Array(ids) => InputContent::Tokens(tokens::refuse(ids, &path, vocabulary)?),
            other => return Err(fields::wrong_type(&path, "a string or a list of token ids", other)),
        };
        Ok(BodyInput { path, content })
    };
    list.iter().enumerate().map(entry).collect()
}

fn check_count(name: &str, count: usize, max: usize) -> Result<(), RequestError> {
    if count <= max {
        return Ok(());
    }
    Err(RequestError::field(name, format!("{name} may hold at most {max} {name}s, got {count}")))
}
