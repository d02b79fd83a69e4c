//! A request of the Responses API as one of a chat.
use serde_json::{Map, Value, json};

use super::{items, tools};
use crate::wire::conversation::{Conversation, object};
use crate::wire::echo::Shown;
use crate::wire::effort;
use crate::wire::error::RequestError;
use crate::wire::fields::wrong_type;
use crate::wire::json::Body;
use crate::wire::metadata;
use crate::wire::names::Origin;
use crate::wire::taken::Taken;
use crate::wire::translated::refuse;
use crate::wire::types::responses::{REFUSED, STATELESS};

/// The chat, where its messages come from, and what the answer repeats.
pub(super) struct Request {
    pub(super) chat: Map<String, Value>,
    pub(super) origins: Vec<Origin>,
    pub(super) echo: Map<String, Value>,
}

/// Texts that the answer repeats.
const REPEATED: [&str; 4] = ["user", "safety_identifier", "prompt_cache_key", "service_tier"];
/// Numbers that the answer repeats.
const NUMBERS: [&str; 5] = ["temperature", "top_p", "max_output_tokens", "max_tool_calls", "top_logprobs"];
const LOGPROBS: &str = "message.output_text.logprobs";

/// # Errors
/// 400 that names the field.
pub(super) fn read(body: Body) -> Result<Request, RequestError> {
    let (map, lists) = body.into_parts();
    if lists.get("input").is_some() {
        return Err(RequestError::field("input", items::NONE));
    }
    let mut fields = Taken::of_body(map);
    refuse(&fields, REFUSED)?;
    let mut echo = echo(&mut fields)?;
    let mut chat = Map::new();
    let mut conversation = Conversation::default();
    let instructions = fields.text("instructions")?;
    echo.insert("instructions".to_owned(), instructions.clone().into());
    add_instructions(instructions, &mut conversation);
    items::read(fields.take("input").ok_or_else(|| fields.missing("input"))?, &mut conversation)?;
    let (messages, origins) = conversation.messages();
    chat.insert("messages".to_owned(), messages.into());
    read_tools(&mut fields, &mut chat, &mut echo)?;
    read_text(&mut fields, &mut chat, &mut echo)?;
    read_reasoning(&mut fields, &mut chat, &mut echo)?;
    read_logprobs(&mut fields, &mut chat)?;
    chat.extend(fields.take("max_output_tokens").map(|most| ("max_completion_tokens".to_owned(), most)));
    fields.take("stream_options");
    let mut rest = fields.rest();
    rest.append(&mut chat);
    Ok(Request { chat: rest, origins, echo })
}

fn add_instructions(instructions: Option<String>, conversation: &mut Conversation) {
    if let Some(instructions) = instructions {
        conversation.say("system", vec![instructions]);
    }
}

/// What the answer repeats of fields that the chat reads, too, or that have one value here.
fn echo(fields: &mut Taken) -> Result<Map<String, Value>, RequestError> {
    if fields.flag("background")?.unwrap_or(false) {
        return Err(RequestError::field("background", format!("background is not supported: {STATELESS}")));
    }
    match fields.text("truncation")?.as_deref() {
        None | Some("disabled") => {}
        Some(other) => {
            let message = format!("truncation must be disabled, got {:?}: no input is left out", Shown(other));
            return Err(RequestError::field("truncation", message));
        }
    }
    // Whatever it is, nothing is stored.
    fields.flag("store")?;
    let mut echo = Map::new();
    let fixed = json!({"background": false, "previous_response_id": null, "store": false, "truncation": "disabled"});
    if let Value::Object(fixed) = fixed {
        echo.extend(fixed);
    }
    let mut put_back = Vec::new();
    for name in REPEATED {
        let text = fields.text(name)?;
        echo.insert(name.to_owned(), text.clone().into());
        put_back.extend(text.map(|text| (name, text.into())));
    }
    for name in NUMBERS {
        let number = fields.take(name);
        if let Some(other) = number.as_ref().filter(|number| !number.is_number()) {
            return Err(wrong_type(name, "a number", other));
        }
        echo.insert(name.to_owned(), number.clone().into());
        put_back.extend(number.map(|number| (name, number)));
    }
    let parallel = fields.flag("parallel_tool_calls")?;
    echo.insert("parallel_tool_calls".to_owned(), parallel.unwrap_or(true).into());
    put_back.extend(parallel.map(|parallel| ("parallel_tool_calls", parallel.into())));
    let metadata = fields.take("metadata");
    metadata::check(metadata.as_ref())?;
    echo.insert("metadata".to_owned(), metadata.clone().unwrap_or_else(|| json!({})));
    put_back.extend(metadata.map(|metadata| ("metadata", metadata)));
    put_back.into_iter().for_each(|(name, value)| fields.put(name, value));
    Ok(echo)
}

fn read_tools(
    fields: &mut Taken,
    chat: &mut Map<String, Value>,
    echo: &mut Map<String, Value>,
) -> Result<(), RequestError> {
    let list = fields.list("tools")?.unwrap_or_default();
    let choice = fields.take("tool_choice");
    echo.insert("tools".to_owned(), list.clone().into());
    echo.insert("tool_choice".to_owned(), choice.clone().unwrap_or_else(|| "auto".into()));
    let tools = tools::tools(list)?;
    if !tools.is_empty() {
        chat.insert("tools".to_owned(), tools.into());
    }
    if let Some(choice) = choice {
        chat.insert("tool_choice".to_owned(), tools::choice(choice)?);
    }
    Ok(())
}

fn read_text(
    fields: &mut Taken,
    chat: &mut Map<String, Value>,
    echo: &mut Map<String, Value>,
) -> Result<(), RequestError> {
    let mut told = json!({"format": {"type": "text"}});
    if let Some(mut text) = fields.object("text")? {
        if let Some(verbosity) = text.text("verbosity")? {
            told["verbosity"] = verbosity.clone().into();
            chat.insert("verbosity".to_owned(), verbosity.into());
        }
        if let Some(format) = text.take("format") {
            told["format"] = format.clone();
            let mut format = Taken::of(format, "text.format")?;
            let wanted = match format.required_text("type")?.as_str() {
                "text" => None,
                "json_object" => Some(json!({"type": "json_object"})),
                "json_schema" => Some(object([("type", "json_schema".into()), ("json_schema", format.rest().into())])),
                other => {
                    let shown = Shown(other);
                    let message = format!("text.format.type must be text, json_object or json_schema, got {shown:?}");
                    return Err(RequestError::field("text.format.type", message));
                }
            };
            chat.extend(wanted.map(|wanted| ("response_format".to_owned(), wanted)));
        }
    }
    echo.insert("text".to_owned(), told);
    Ok(())
}

fn read_reasoning(
    fields: &mut Taken,
    chat: &mut Map<String, Value>,
    echo: &mut Map<String, Value>,
) -> Result<(), RequestError> {
    let (mut effort, mut summary) = (None, None);
    if let Some(mut reasoning) = fields.object("reasoning")? {
        effort = effort::read(&mut reasoning)?;
        // What was thought is in the answer as it is.
        summary = reasoning.text("summary")?;
    }
    let chat_effort = effort.map(effort::of_chat);
    echo.insert("reasoning".to_owned(), json!({"effort": effort, "summary": summary}));
    chat.extend(chat_effort.map(|effort| ("reasoning_effort".to_owned(), effort.into())));
    Ok(())
}

/// `include` asks for log-probabilities, and so does a number of alternatives.
fn read_logprobs(fields: &mut Taken, chat: &mut Map<String, Value>) -> Result<(), RequestError> {
    let include = fields.list("include")?.unwrap_or_default();
    if let Some(other) = include.iter().find(|name| !name.is_string()) {
        return Err(wrong_type("include", "a list of strings", other));
    }
    let asked = include.iter().any(|name| name.as_str() == Some(LOGPROBS));
    let top = fields.take("top_logprobs");
    if asked || top.as_ref().is_some_and(|top| top.as_u64() != Some(0)) {
        chat.insert("logprobs".to_owned(), true.into());
        chat.extend(top.map(|top| ("top_logprobs".to_owned(), top)));
    }
    Ok(())
}
