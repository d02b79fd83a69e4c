//! A request of the Messages API as one of a chat.
use camshaft_core::limits::{THINKING_HIGH, THINKING_MEDIUM, THINKING_TOKENS};
use serde_json::{Map, Value};

use super::blocks::{self, Ending};
use super::tools;
use crate::wire::conversation::{Conversation, object};
use crate::wire::echo::Shown;
use crate::wire::effort;
use crate::wire::error::RequestError;
use crate::wire::json::Body;
use crate::wire::names::Origin;
use crate::wire::taken::Taken;
use crate::wire::translated::refuse;
use crate::wire::types::messages::REFUSED;

/// The chat, and where its messages come from.
///
/// # Errors
/// 400 that names the field.
pub(super) fn read(body: Body) -> Result<(Map<String, Value>, Vec<Origin>), RequestError> {
    let fields = Taken::of_body(body.into_parts().0);
    if !fields.has("max_tokens") {
        return Err(fields.missing("max_tokens"));
    }
    translate(fields)
}

/// As [`read`], of a request to count the tokens of its prompt.
///
/// # Errors
/// 400 that names the field.
pub(super) fn counted(body: Body) -> Result<(Map<String, Value>, Vec<Origin>), RequestError> {
    translate(Taken::of_body(body.into_parts().0))
}

fn translate(mut fields: Taken) -> Result<(Map<String, Value>, Vec<Origin>), RequestError> {
    refuse(&fields, REFUSED)?;
    let mut conversation = Conversation::default();
    if let Some(system) = fields.take("system") {
        blocks::system(system, &mut conversation)?;
    }
    let messages = fields.list("messages")?.ok_or_else(|| fields.missing("messages"))?;
    let ending = blocks::read(messages, &mut conversation)?;
    let mut chat = Map::new();
    let (messages, origins) = conversation.messages();
    chat.insert("messages".to_owned(), messages.into());
    if ending == Ending::Begun {
        chat.insert("continue_final_message".to_owned(), true.into());
    }
    let tools = tools::tools(fields.list("tools")?.unwrap_or_default())?;
    if !tools.is_empty() {
        chat.insert("tools".to_owned(), tools.into());
    }
    if let Some(choice) = fields.object("tool_choice")? {
        tools::choose(choice, &mut chat)?;
    }
    chat.extend(fields.list("stop_sequences")?.map(|stop| ("stop".to_owned(), stop.into())));
    if let Some(mut metadata) = fields.object("metadata")? {
        chat.extend(metadata.text("user_id")?.map(|user| ("user".to_owned(), user.into())));
    }
    read_output(&mut fields, &mut chat)?;
    read_thinking(&mut fields, &mut chat)?;
    let mut rest = fields.rest();
    rest.append(&mut chat);
    Ok((rest, origins))
}

/// `output_config`: the format, and how much effort the model makes.
fn read_output(fields: &mut Taken, chat: &mut Map<String, Value>) -> Result<(), RequestError> {
    let Some(mut config) = fields.object("output_config")? else { return Ok(()) };
    if let Some(effort) = effort::read(&mut config)? {
        chat.insert("reasoning_effort".to_owned(), effort::of_chat(effort).into());
    }
    if let Some(mut format) = config.object("format")? {
        match format.required_text("type")?.as_str() {
            "json_schema" => {
                let schema = format.take("schema").ok_or_else(|| format.missing("schema"))?;
                let schema = object([("name", "output".into()), ("schema", schema), ("strict", true.into())]);
                let format = object([("type", "json_schema".into()), ("json_schema", schema)]);
                chat.insert("response_format".to_owned(), format);
            }
            other => {
                let message = format!("output_config.format.type must be json_schema, got {:?}", Shown(other));
                return Err(RequestError::field(format.path("type"), message));
            }
        }
    }
    Ok(())
}

/// A budget of tokens becomes an effort; `disabled` is none.
fn read_thinking(fields: &mut Taken, chat: &mut Map<String, Value>) -> Result<(), RequestError> {
    let Some(mut thinking) = fields.object("thinking")? else { return Ok(()) };
    let effort = match thinking.required_text("type")?.as_str() {
        "disabled" => Some("none"),
        "adaptive" => None,
        "enabled" => {
            let budget = thinking.integer("budget_tokens", THINKING_TOKENS)?;
            let budget = budget.ok_or_else(|| thinking.missing("budget_tokens"))?;
            Some(match budget {
                THINKING_HIGH.. => "high",
                THINKING_MEDIUM.. => "medium",
                _ => "low",
            })
        }
        other => {
            let message = format!("thinking.type must be enabled, adaptive or disabled, got {:?}", Shown(other));
            return Err(RequestError::field(thinking.path("type"), message));
        }
    };
    if let Some(effort) = effort {
        // What `output_config.effort` says has precedence.
        chat.entry("reasoning_effort").or_insert_with(|| effort.into());
    }
    Ok(())
}
