//! Conversations that try out a model's chat template before it is served.
use camshaft_core::engine::ModelInfo;
use serde_json::{Map, Value, json};

use crate::flow::error::FlowError;
use crate::flow::reading::Reading;
use crate::flow::template::ChatTemplate;
use crate::wire::messages::{CalledFunction, Conversation, Ending, Message, Role, ToolCall};

/// Turns of the longest conversation.
const TURNS: usize = 64;
/// Bytes of each of its messages.
const MESSAGE_BYTES: usize = 4 << 10;

/// Renders a few conversations with the model's chat template. A template may refuse them: the outcome does not matter, but
/// what it costs does. To be called where memory and time are bounded, because no count of instructions bounds them.
pub fn render_samples(info: &ModelInfo) {
    // The server itself reports a template that does not compile.
    let Ok(template) = ChatTemplate::compile(&info.name, info) else { return };
    let (variables, tools) = (Map::new(), [tool()]);
    let chats = conversations().into_iter().map(|messages| (messages, &[][..]));
    for (messages, tools) in chats.chain([(calls(), &tools[..])]) {
        let conversation =
            Conversation { messages: &messages, tools, variables: &variables, ending: Ending::default() };
        let _: Result<String, FlowError> = template.render(conversation, &Reading::default());
    }
}

fn tool() -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    json!({"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": parameters}})
}

/// A call and its result.
fn calls() -> Vec<Message> {
    let (id, function) =
        ("abcDEF123", CalledFunction { name: "weather".to_owned(), arguments: json!({"city": "Rome"}) });
    let call = ToolCall { id: id.to_owned(), function };
    vec![
        Message::new(Role::User, "Hello"),
        Message { tool_calls: vec![call], ..Message::new(Role::Assistant, "") },
        Message { tool_call_id: Some(id.to_owned()), ..Message::new(Role::Tool, "Sunny") },
    ]
}

fn conversations() -> [Vec<Message>; 3] {
    let message = |role: Role, content: &str| Message::new(role, content);
    let long = "a ".repeat(MESSAGE_BYTES / 2);
    let turns = (0..TURNS).map(|turn| message(if turn % 2 == 0 { Role::User } else { Role::Assistant }, &long));
    [
        vec![message(Role::User, "Hello")],
        vec![message(Role::System, "Be brief."), message(Role::User, "Hello")],
        turns.chain([message(Role::User, "Go on")]).collect(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_alternates_and_ends_with_the_user() {
        for conversation in conversations() {
            let spoken: Vec<Role> =
                conversation.iter().map(|message| message.role).filter(|role| *role != Role::System).collect();
            assert!(spoken.iter().enumerate().all(|(at, role)| (*role == Role::User) == (at % 2 == 0)), "{spoken:?}");
            assert_eq!(spoken.last(), Some(&Role::User));
        }
    }
}
