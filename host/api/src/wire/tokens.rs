//! Reads token ids in a body, and turns tokens into text.
use camshaft_core::ids::Token;
use camshaft_core::limits::Range;
use camshaft_core::vocabulary::Vocabulary;
use serde_json::Value;

use crate::wire::error::RequestError;
use crate::wire::fields;

/// Reads token ids and checks that the vocabulary has them.
///
/// # Errors
/// 400 that names the entry, such as `prompt[3]`.
pub(crate) fn read(list: &[Value], path: &str, vocabulary: &Vocabulary) -> Result<Vec<Token>, RequestError> {
    let range = Range { min: 0.0, max: vocabulary.size().saturating_sub(1) as f64 };
    let ids = list.iter().enumerate().map(|(i, value)| match value.as_u64() {
        // Build the path only for an error.
        Some(id) if (id as usize) < vocabulary.size() => Ok(Token(id as u32)),
        _ => fields::integer(value, &format!("{path}[{i}]"), range).map(Token),
    });
    ids.collect()
}

/// The text of tokens. Replaces bytes that are not UTF-8.
pub(crate) fn text(vocabulary: &Vocabulary, tokens: &[Token]) -> String {
    let bytes: Vec<u8> =
        tokens.iter().flat_map(|&token| vocabulary.token_bytes(token).unwrap_or_default()).copied().collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
