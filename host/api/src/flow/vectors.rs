//! Reads what is to be embedded. For every endpoint over vectors.
use std::sync::Arc;

use camshaft_core::ids::Token;
use camshaft_core::limits;

use crate::flow::context::ParseContext;
use crate::flow::error::{FlowError, TokenCount};
use crate::flow::served::Served;
use crate::wire::fields::Fields;
use crate::wire::input::{self, BodyInput, InputContent};

/// Reads the field `name`: one or several texts or lists of token ids.
///
/// # Errors
/// 400: the model embeds nothing, or an input is malformed, empty or longer than the embedder takes.
pub(crate) fn inputs(
    context: ParseContext<'_>,
    fields: &Fields<'_>,
    name: &str,
    served: &Served,
) -> Result<Vec<Arc<[Token]>>, FlowError> {
    let one = |BodyInput { path, content }: BodyInput| match content {
        InputContent::Text(text) => tokens_of(context, &path, &text, served),
        InputContent::Tokens(tokens) => check(context, &path, tokens, served),
    };
    let inputs = input::read(fields, name, limits::EMBED_INPUTS, &served.text()?.info.vocabulary)?;
    inputs.into_iter().map(one).collect()
}

/// The tokens of a text, which the body has at `path`.
///
/// # Errors
/// 400: the model embeds nothing, or the text is empty or longer than the embedder takes.
pub(crate) fn tokens_of(
    context: ParseContext<'_>,
    path: &str,
    text: &str,
    served: &Served,
) -> Result<Arc<[Token]>, FlowError> {
    context.check()?;
    let tokens = match text.is_empty() {
        true => Vec::new(),
        // The spelling of a special token stays text.
        false => context.tokenize(served, (text, false), served.embedder()?.input_tokens)?,
    };
    check(context, path, tokens, served)
}

fn check(
    context: ParseContext<'_>,
    path: &str,
    tokens: Vec<Token>,
    served: &Served,
) -> Result<Arc<[Token]>, FlowError> {
    context.check()?;
    let max = served.embedder()?.input_tokens;
    match tokens.len() {
        0 => Err(FlowError::field(path, format!("{path} is empty"))),
        tokens if tokens > max as usize => {
            Err(FlowError::InputLength { tokens: TokenCount::of(tokens, max), max, param: path.to_owned() })
        }
        _ => Ok(Arc::from(tokens)),
    }
}
