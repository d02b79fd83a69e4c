//! Reads token ids in a body, and turns tokens into text.
use camshaft_core::ids::Token;
use camshaft_core::limits::Range;
use camshaft_core::vocabulary::Vocabulary;
use serde_json::Value;

use crate::wire::error::RequestError;
use crate::wire::fields;

/// Checks that the vocabulary has these ids.
///
/// # Errors
/// 400 that names the entry, such as `prompt[3]`.
pub(crate) fn read(ids: &[u32], path: &str, vocabulary: &Vocabulary) -> Result<Vec<Token>, RequestError> {
    match ids.iter().position(|&id| id as usize >= vocabulary.size()) {
        None => Ok(ids.iter().copied().map(Token).collect()),
        Some(entry) => Err(bad_id(&Value::from(ids[entry]), &format!("{path}[{entry}]"), vocabulary)),
    }
}

/// The first entry of a list that is not a list of ids.
///
/// # Errors
/// Always, 400, unless all are ids after all.
pub(crate) fn refuse(list: &[Value], path: &str, vocabulary: &Vocabulary) -> Result<Vec<Token>, RequestError> {
    let one = |(entry, value): (usize, &Value)| match value.as_u64().and_then(|id| u32::try_from(id).ok()) {
        Some(id) if (id as usize) < vocabulary.size() => Ok(Token(id)),
        _ => Err(bad_id(value, &format!("{path}[{entry}]"), vocabulary)),
    };
    list.iter().enumerate().map(one).collect()
}

fn bad_id(value: &Value, path: &str, vocabulary: &Vocabulary) -> RequestError {
    let range = Range { min: 0.0, max: vocabulary.size().saturating_sub(1) as f64 };
    match fields::integer(value, path, range) {
        Err(error) => error,
        // Cannot be: the caller found it out of range.
        Ok(_) => RequestError::field(path, format!("{path} is not a token id")),
    }
}

/// The text of tokens. Replaces bytes that are not UTF-8.
pub(crate) fn text(vocabulary: &Vocabulary, tokens: &[Token]) -> String {
    let bytes: Vec<u8> =
        tokens.iter().flat_map(|&token| vocabulary.token_bytes(token).unwrap_or_default()).copied().collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
