//! Reads what the chat and the completion endpoint answer, whole or in chunks, for endpoints that answer in other shapes.
use serde::Deserialize;
use serde_json::value::RawValue;

/// An answer, a chunk of one, or the error that ends a stream.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ChatAnswer {
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) choices: Vec<Choice>,
    pub(crate) usage: Option<Usage>,
    pub(crate) error: Option<StreamError>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Choice {
    /// Of a chat; whole in an answer.
    #[serde(alias = "message")]
    pub(crate) delta: Delta,
    /// Of a completion.
    pub(crate) text: String,
    pub(crate) logprobs: Option<Box<RawValue>>,
    pub(crate) finish_reason: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Delta {
    pub(crate) reasoning_content: Option<String>,
    pub(crate) content: Option<String>,
    pub(crate) refusal: Option<String>,
    pub(crate) tool_calls: Option<Vec<CallDelta>>,
}

/// A part of a tool call. Calls of a whole answer have no index: their order tells it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct CallDelta {
    pub(crate) index: Option<usize>,
    pub(crate) id: Option<String>,
    pub(crate) function: FunctionDelta,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct FunctionDelta {
    pub(crate) name: Option<String>,
    pub(crate) arguments: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: u64,
    pub(crate) completion_tokens: u64,
    pub(crate) total_tokens: u64,
    pub(crate) prompt_tokens_details: PromptDetails,
    pub(crate) completion_tokens_details: CompletionDetails,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct PromptDetails {
    pub(crate) cached_tokens: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct CompletionDetails {
    pub(crate) reasoning_tokens: u64,
}

/// How far a stream is that is written in another shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nothing was written.
    New,
    Begun,
    /// The last event was written.
    Ended,
}

impl Stage {
    /// Begins a stream. Whether it is new.
    pub(crate) fn begin(&mut self) -> bool {
        let is_new = *self == Self::New;
        if is_new {
            *self = Self::Begun;
        }
        is_new
    }
}

/// The error object that ends a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct StreamError {
    pub(crate) message: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) param: Option<String>,
    pub(crate) code: Option<String>,
}

impl StreamError {
    /// Of a stream that ended without its last frame.
    pub(crate) fn cut() -> Self {
        let message = "the stream ended before the generation was done".to_owned();
        Self { message, kind: "server_error".to_owned(), param: None, code: Some("server_error".to_owned()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_answers_chunks_and_errors() {
        let read = |text: &str| serde_json::from_str::<ChatAnswer>(text).unwrap();
        let whole = read(
            r#"{"id":"chatcmpl-1","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,
            "message":{"role":"assistant","content":null,"refusal":null,"reasoning_content":"r",
            "tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},
            "logprobs":null,"finish_reason":"tool_calls"}],
            "usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,
            "prompt_tokens_details":{"cached_tokens":1},"completion_tokens_details":{"reasoning_tokens":1}}}"#,
        );
        let choice = &whole.choices[0];
        assert_eq!((whole.created, whole.model.as_str()), (7, "m"));
        assert_eq!((choice.delta.content.as_ref(), choice.finish_reason.as_deref()), (None, Some("tool_calls")));
        let calls = choice.delta.tool_calls.as_ref().unwrap();
        assert_eq!((calls[0].index, calls[0].function.name.as_deref()), (None, Some("f")));
        let usage = whole.usage.unwrap();
        assert_eq!(
            (usage.prompt_tokens_details.cached_tokens, usage.completion_tokens_details.reasoning_tokens),
            (1, 1)
        );
        let chunk = read(r#"{"choices":[{"delta":{"content":"x"},"logprobs":{"content":[]},"finish_reason":null}]}"#);
        assert_eq!(chunk.choices[0].logprobs.as_ref().unwrap().get(), r#"{"content":[]}"#);
        let failed = read(r#"{"error":{"message":"m","type":"server_error","param":null,"code":"server_error"}}"#);
        assert_eq!(failed.error.unwrap().message, "m");
    }
}
