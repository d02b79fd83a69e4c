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
    let max = served.embedder()?.input_tokens;
    let one = |input: BodyInput| {
        context.check()?;
        let tokens = match input.content {
            InputContent::Text(text) if text.is_empty() => Vec::new(),
            // The spelling of a special token stays text.
            InputContent::Text(text) => context.tokenize(served, (&text, false), max)?,
            InputContent::Tokens(tokens) => tokens,
        };
        match tokens.len() {
            0 => Err(FlowError::field(input.path.clone(), format!("{} is empty", input.path))),
            tokens if tokens > max as usize => {
                Err(FlowError::InputLength { tokens: TokenCount::of(tokens, max), max, param: input.path })
            }
            _ => Ok(Arc::from(tokens)),
        }
    };
    let inputs = input::read(fields, name, limits::EMBED_INPUTS, &served.text()?.info.vocabulary)?;
    inputs.into_iter().map(one).collect()
}
