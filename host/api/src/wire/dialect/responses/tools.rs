//! Tools of the Responses API as those of a chat.
use serde_json::{Map, Value};

use crate::wire::conversation::object;
use crate::wire::echo::Shown;
use crate::wire::error::RequestError;
use crate::wire::fields::wrong_type;
use crate::wire::taken::Taken;

/// The tools of a chat, each `{"type":"function","function":{…}}`.
///
/// # Errors
/// 400: a tool is not an object, or of another type than `function`.
pub(super) fn tools(list: Vec<Value>) -> Result<Vec<Value>, RequestError> {
    list.into_iter().enumerate().map(|(i, tool)| one(tool, &format!("tools[{i}]"))).collect()
}

fn one(tool: Value, path: &str) -> Result<Value, RequestError> {
    let mut tool = Taken::of(tool, path)?;
    check_type(&mut tool)?;
    let name = tool.required_text("name")?;
    let mut function = Map::new();
    function.insert("name".to_owned(), name.into());
    for member in ["description", "parameters", "strict"] {
        function.extend(tool.take(member).map(|value| (member.to_owned(), value)));
    }
    Ok(object([("type", "function".into()), ("function", function.into())]))
}

fn check_type(tool: &mut Taken) -> Result<(), RequestError> {
    match tool.required_text("type")?.as_str() {
        "function" => Ok(()),
        other => {
            let message = format!("tools of type {:?} are not supported, only function", Shown(other));
            Err(RequestError::field(tool.path("type"), message))
        }
    }
}

/// `tool_choice` of a chat.
///
/// # Errors
/// 400: it is malformed, or names a tool of another type than `function`.
pub(super) fn choice(choice: Value) -> Result<Value, RequestError> {
    const PATH: &str = "tool_choice";
    let mut choice = match choice {
        Value::String(mode) => return Ok(mode.into()),
        Value::Object(_) => Taken::of(choice, PATH)?,
        other => return Err(wrong_type(PATH, "a string or an object", &other)),
    };
    match choice.required_text("type")?.as_str() {
        "function" => Ok(named(choice.required_text("name")?)),
        "allowed_tools" => {
            let mode = choice.text("mode")?.unwrap_or_else(|| "auto".to_owned());
            let list = choice.list("tools")?.ok_or_else(|| choice.missing("tools"))?;
            let tool = |(i, tool): (usize, Value)| {
                let mut tool = Taken::of(tool, &format!("{PATH}.tools[{i}]"))?;
                check_type(&mut tool)?;
                Ok(named(tool.required_text("name")?))
            };
            let tools = list.into_iter().enumerate().map(tool).collect::<Result<Vec<_>, RequestError>>()?;
            let allowed = object([("mode", mode.into()), ("tools", tools.into())]);
            Ok(object([("type", "allowed_tools".into()), ("allowed_tools", allowed)]))
        }
        other => {
            let shown = Shown(other);
            let message = format!("tool_choice of type {shown:?} is not supported, only function and allowed_tools");
            Err(RequestError::field(choice.path("type"), message))
        }
    }
}

fn named(name: String) -> Value {
    object([("type", "function".into()), ("function", object([("name", name.into())]))])
}
