//! A conversation as chat templates see it.
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One message.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Message {
    pub role: Role,
    /// `None` only beside calls, for templates that show calls only then.
    pub content: Option<String>,
    /// Of the assistant's: what it thought before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Of the assistant's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Of a tool's: the call that it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// Of a tool's: the name of the function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    System,
    #[default]
    User,
    Assistant,
    Tool,
}

/// An earlier call of a function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "function")]
pub struct ToolCall {
    pub id: String,
    pub function: CalledFunction,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CalledFunction {
    pub name: String,
    /// An object; for templates that write it as it is, its JSON. What is no JSON, because the call was cut, as it is.
    pub arguments: Value,
}

impl Message {
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: Some(content.into()), ..Self::default() }
    }

    /// The content's text.
    pub fn text(&self) -> &str {
        self.content.as_deref().unwrap_or_default()
    }
}

/// Messages with what else a template is given.
#[derive(Debug, Clone, Copy)]
pub struct Conversation<'a> {
    pub messages: &'a [Message],
    /// The functions that the assistant knows, as OpenAI has them.
    pub tools: &'a [Value],
    /// Further variables.
    pub variables: &'a Map<String, Value>,
}
