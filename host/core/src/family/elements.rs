//! Arguments as elements, one for each, made into JSON: `<parameter=KEY>` value `</parameter>` … `</function>`.
use std::sync::Arc;

use serde_json::Value;

use crate::family::json::{Json, Progress, push_escaped, quoted};
use crate::family::marker::{Found, Markers};
use crate::family::prefix::{Cursor, Stop};
use crate::family::tools::Tools;

pub(crate) const KEY_BEGIN: &str = "<parameter=";
pub(crate) const VALUE_END: &str = "</parameter>";
pub(crate) const END: &str = "</function>";
/// Bytes of an argument's name, at most.
pub(crate) const KEY_BYTES: usize = 128;

/// Elements of which some text has come.
#[derive(Debug, Clone)]
pub(crate) struct Elements {
    tools: Arc<Tools>,
    /// Which of the tools is called.
    tool: usize,
    ends: Markers,
    empty: bool,
    stage: Stage,
}

#[derive(Debug, Clone)]
enum Stage {
    /// Before an element, or the end.
    Between,
    Text,
    Json(Json),
    JsonEnd,
}

/// Whether a value of this schema is written as text: only if it can be nothing but a string.
pub(crate) fn is_text(schema: &Value) -> bool {
    schema.get("type").is_some_and(|kind| kind == "string")
}

/// Whether an argument of this name can be written as an element.
pub(crate) fn is_key(key: &str) -> bool {
    (1..=KEY_BYTES).contains(&key.len()) && !key.contains(['<', '>', '\n'])
}

impl Elements {
    /// `tool`: which of the tools is called.
    pub(crate) fn new(tools: Arc<Tools>, tool: usize) -> Self {
        let ends = Markers::new(vec![format!("\n{VALUE_END}"), VALUE_END.to_owned()]);
        Self { tools, tool, ends, empty: true, stage: Stage::Between }
    }

    /// As [`crate::family::arguments::Arguments::feed`].
    pub(crate) fn feed(&mut self, text: &str, out: &mut String) -> (usize, Progress) {
        let mut at = 0;
        loop {
            let rest = &text[at..];
            let mut cursor = Cursor::new(rest);
            let stop = match &mut self.stage {
                Stage::Between => match element(&mut cursor) {
                    Ok(None) => {
                        out.push_str(if self.empty { "{}" } else { "}" });
                        return (at + cursor.at(), Progress::Done);
                    }
                    Ok(Some(key)) => {
                        out.push_str(if self.empty { "{" } else { ", " });
                        self.empty = false;
                        out.push_str(&quoted(key));
                        out.push_str(": ");
                        let json = self.is_json(key);
                        if !json {
                            out.push('"');
                        }
                        self.stage = if json { Stage::Json(Json::new()) } else { Stage::Text };
                        Ok(cursor.at())
                    }
                    Err(stop) => Err((0, stop)),
                },
                Stage::Text => match self.ends.find(rest) {
                    Found::Marker { at, which } => {
                        push_escaped(&rest[..at], out);
                        out.push('"');
                        self.stage = Stage::Between;
                        Ok(at + self.ends.len(which))
                    }
                    Found::Rest { at } => {
                        push_escaped(&rest[..at], out);
                        Err((at, Stop::More))
                    }
                },
                Stage::Json(json) => {
                    let (used, progress) = json.feed(rest.as_bytes());
                    out.push_str(&rest[..used]);
                    match progress {
                        Progress::Done => {
                            self.stage = Stage::JsonEnd;
                            Ok(used)
                        }
                        Progress::More => Err((used, Stop::More)),
                        Progress::Broken => Err((used, Stop::Fail)),
                    }
                }
                Stage::JsonEnd => match cursor.spaced(VALUE_END) {
                    Ok(()) => {
                        self.stage = Stage::Between;
                        Ok(cursor.at())
                    }
                    Err(stop) => Err((0, stop)),
                },
            };
            match stop {
                Ok(used) => at += used,
                Err((used, Stop::More)) => return (at + used, Progress::More),
                Err((used, Stop::Fail)) => return (at + used, Progress::Broken),
            }
        }
    }

    /// Whether the value of this argument is written as JSON. All others are text as it is.
    fn is_json(&self, key: &str) -> bool {
        let tool = self.tools.callable().get(self.tool);
        tool.and_then(|tool| tool.argument(key)).is_some_and(|schema| !is_text(schema))
    }
}

/// The key of the next element, or the end.
fn element<'a>(cursor: &mut Cursor<'a>) -> Result<Option<&'a str>, Stop> {
    cursor.space()?;
    let key = match cursor.literal(KEY_BEGIN) {
        Ok(()) => cursor.until('>', KEY_BYTES)?,
        Err(Stop::More) => return Err(Stop::More),
        Err(Stop::Fail) => return cursor.literal(END).map(|()| None),
    };
    // A line break belongs to the element, not to its text.
    match cursor.literal("\n") {
        Err(Stop::More) => Err(Stop::More),
        _ if is_key(key) => Ok(Some(key)),
        _ => Err(Stop::Fail),
    }
}
