//! The arguments of a call as they come, in any family's notation, as JSON text.
use serde_json::{Map, Value};

use crate::family::braces::Braces;
use crate::family::description::Form;
use crate::family::elements::Elements;
use crate::family::json::{Json, Progress};

/// Arguments of which some text has come.
#[derive(Debug, Clone)]
pub(crate) enum Arguments {
    /// Already JSON: passed on as it is.
    Json(Json),
    Elements(Elements),
    Braces(Braces),
}

impl Arguments {
    /// `schema`: of the tool that is called.
    pub(crate) fn new(form: &Form, schema: &Map<String, Value>) -> Self {
        match form {
            Form::Object(_) | Form::List(_) | Form::Named { .. } => Self::Json(Json::new()),
            Form::Elements => Self::Elements(Elements::new(schema)),
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
