//! Tools of the Messages API as those of a chat.
use serde_json::{Map, Value};

use crate::wire::conversation::object;
use crate::wire::echo::Shown;
use crate::wire::error::RequestError;
use crate::wire::taken::Taken;

/// The tools of a chat.
///
/// # Errors
/// 400: a tool is malformed, or one that only Anthropic's own server has.
pub(super) fn tools(list: Vec<Value>) -> Result<Vec<Value>, RequestError> {
    let one = |(i, tool): (usize, Value)| {
        let mut tool = Taken::of(tool, &format!("tools[{i}]"))?;
        match tool.text("type")?.as_deref() {
            None | Some("custom") => {}
            Some(other) => {
                let message = format!("tools of type {:?} are not supported, only custom", Shown(other));
                return Err(RequestError::field(tool.path("type"), message));
            }
        }
        let mut function = Map::new();
        function.insert("name".to_owned(), tool.required_text("name")?.into());
        for (theirs, ours) in [("description", "description"), ("input_schema", "parameters"), ("strict", "strict")] {
            function.extend(tool.take(theirs).map(|value| (ours.to_owned(), value)));
        }
        Ok(object([("type", "function".into()), ("function", function.into())]))
    };
    list.into_iter().enumerate().map(one).collect()
}

/// Adds `tool_choice` to a chat.
///
/// # Errors
/// 400: it is malformed.
pub(super) fn choose(mut choice: Taken, chat: &mut Map<String, Value>) -> Result<(), RequestError> {
    let kind = choice.required_text("type")?;
    let chosen = match kind.as_str() {
        "auto" | "none" => kind.into(),
        "any" => "required".into(),
        "tool" => {
            let function = object([("name", choice.required_text("name")?.into())]);
            object([("type", "function".into()), ("function", function)])
        }
        other => {
            let message = format!("tool_choice.type must be auto, any, tool or none, got {:?}", Shown(other));
            return Err(RequestError::field(choice.path("type"), message));
        }
    };
    chat.insert("tool_choice".to_owned(), chosen);
    if let Some(alone) = choice.flag("disable_parallel_tool_use")? {
        chat.insert("parallel_tool_calls".to_owned(), (!alone).into());
    }
    Ok(())
}
