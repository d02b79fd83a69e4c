//! The arguments of a call as they come, in any family's notation, as JSON text.
use std::sync::Arc;

use crate::family::braces::Braces;
use crate::family::description::Form;
use crate::family::elements::Elements;
use crate::family::json::{Json, Progress};
use crate::family::tools::Tools;

/// Arguments of which some text has come.
#[derive(Debug, Clone)]
pub(crate) enum Arguments {
    /// Already JSON: passed on as it is.
    Json(Json),
    Elements(Elements),
    Braces(Braces),
}

impl Arguments {
    /// `tool`: which of the tools is called.
    pub(crate) fn new(form: &Form, tools: &Arc<Tools>, tool: usize) -> Self {
        match form {
            Form::Object(_) | Form::List(_) | Form::Named { .. } => Self::Json(Json::new()),
            Form::Elements => Self::Elements(Elements::new(tools.clone(), tool)),
            Form::Braces { quote } => Self::Braces(Braces::new(quote)),
        }
    }

    /// Appends JSON text to `out`. Tells how many bytes of `text` that took: with [`Progress::More`], what is left must come
    /// again with more behind it; with [`Progress::Broken`], it cannot belong to the arguments.
    pub(crate) fn feed(&mut self, text: &str, out: &mut String) -> (usize, Progress) {
        match self {
            Self::Json(json) => {
                let (used, progress) = json.feed(text.as_bytes());
                out.push_str(&text[..used]);
                (used, progress)
            }
            Self::Elements(elements) => elements.feed(text, out),
            Self::Braces(braces) => braces.feed(text, out),
        }
    }
}
