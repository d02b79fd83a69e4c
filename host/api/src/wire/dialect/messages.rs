//! Anthropic's Messages API: its requests as chats.
use serde_json::{Map, Value};

use super::{AnswerFormat, Converted};
use crate::wire::conversation::Conversation;
use crate::wire::echo::Shown;
use crate::wire::error::RequestError;
use crate::wire::messages::placeholder;
use crate::wire::names::{Names, Paths, Place};
use crate::wire::read::Body;
use crate::wire::types::chat::{
    ChatRequest, ChatTool, FunctionDefinition, NamedFunction, ReasoningEffort, Role, ToolChoiceObject, ToolChoiceType,
};
use crate::wire::types::generation::{GenerationFields, NamedSchema, ResponseFormat, ResponseFormatType};
use crate::wire::types::messages::{
    BlockContent, CountTokensRequest, DocumentSource, MessageBlock, MessageRole, MessagesTool, MessagesToolChoice,
    MessagesToolChoiceType, OutputConfig, OutputFormat, Thinking, ThinkingType,
};
use crate::wire::types::values::{TextOrList, TextOrObject, Whole};

/// What the chat endpoint calls the fields of this one. (The role of a message is at fault only where a result answers no call.)
const PATHS: &Paths = &[
    ("messages[].tool_calls[].function.arguments", "messages[].content[].input"),
    ("messages[].tool_calls[].function", "messages[].content[]"),
    ("messages[].tool_calls[]", "messages[].content[]"),
    ("messages[].tool_calls", "messages[].content"),
    ("messages[].tool_call_id", "messages[].content[].tool_use_id"),
    ("messages[].role", "messages[].content[].tool_use_id"),
    ("messages[]", "messages[]"),
    ("continue_final_message", "messages"),
    ("stop", "stop_sequences"),
    ("response_format.json_schema", "output_config.format"),
    ("response_format", "output_config.format"),
    ("reasoning_effort", "output_config.effort"),
    ("thinking_budget", "thinking.budget_tokens"),
    ("tools[].function.parameters", "tools[].input_schema"),
    ("tools[].function", "tools[]"),
    ("tool_choice.function", "tool_choice"),
    ("parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
    ("user", "metadata.user_id"),
];
/// Blocks that only Anthropic's own server can read: of its tools, and thinking that it has encrypted.
const OF_THEIR_SERVER: [&str; 4] = ["redacted_thinking", "server_tool_use", "tool_reference", "container_upload"];
const THEIR_RESULT: &str = "_tool_result";

/// # Errors
/// 400 that names the field.
pub(super) fn chat(body: Body<CountTokensRequest>) -> Result<Converted<ChatRequest>, RequestError> {
    let CountTokensRequest { messages, system, tools, tool_choice, thinking, generation, .. } = body.request;
    let mut reading = Reading::default();
    if let Some(system) = system {
        let texts = reading.texts(blocks(system), "system")?;
        reading.conversation.say(Role::System, texts);
    }
    let messages = messages.unwrap_or_default();
    let last = messages.len().saturating_sub(1);
    let mut continues = false;
    for (i, message) in messages.into_iter().enumerate() {
        reading.conversation.read_at(Place::item(i));
        let (path, content) = (format!("messages[{i}].content"), blocks(message.content));
        match message.role {
            MessageRole::User => reading.of_user(content, (&path, i))?,
            MessageRole::System => {
                let texts = reading.texts(content, &path)?;
                reading.conversation.say(Role::System, texts);
            }
            MessageRole::Assistant => {
                let is_text = reading.of_assistant(content, (&path, i))?;
                reading.conversation.end_turn();
                if i == last && !is_text {
                    let why = "must be a text and nothing else, because the answer continues the last message";
                    return Err(RequestError::field(path.clone(), format!("{path} {why}")));
                }
                continues = i == last;
            }
        }
    }
    let Reading { conversation, mut left_out } = reading;
    let (messages, origins) = conversation.messages();
    let (tools, paths, choice) = tools_of(tools.unwrap_or_default(), tool_choice, &mut left_out)?;
    if body.request.context_management.is_some_and(|value| value != Value::Object(Map::new())) {
        left_out.push("context_management");
    }
    let OutputConfig { effort, format } = body.request.output_config.unwrap_or_default();
    let request = ChatRequest {
        messages: Some(messages),
        continue_final_message: continues.then_some(true),
        tools: (!tools.is_empty()).then_some(tools),
        tool_choice: choice.tool_choice,
        parallel_tool_calls: choice.parallel,
        // What `output_config.effort` says has precedence.
        reasoning_effort: effort.or_else(|| thinking.as_ref().and_then(effort_of)),
        thinking_budget: body.request.thinking_budget.or(thinking.and_then(|thinking| thinking.budget_tokens)),
        chat_template_kwargs: body.request.chat_template_kwargs,
        generation: GenerationFields {
            stop: body.request.stop_sequences.map(TextOrList::List),
            user: body.request.metadata.and_then(|metadata| metadata.user_id).map(Value::String).or(generation.user),
            response_format: format.map(response_format),
            ..generation
        },
        ..ChatRequest::default()
    };
    Converted::new(request, body.unknown, AnswerFormat::Messages, Names::new(PATHS, origins, paths), left_out)
}

/// A conversation that is being read.
#[derive(Default)]
struct Reading {
    conversation: Conversation,
    left_out: Vec<&'static str>,
}

impl Reading {
    fn leave_out(&mut self, what: &'static str) {
        if !self.left_out.contains(&what) {
            self.left_out.push(what);
        }
    }

    fn of_user(&mut self, blocks: Vec<MessageBlock>, (path, i): (&str, usize)) -> Result<(), RequestError> {
        let mut said = Vec::new();
        for (part, block) in blocks.into_iter().enumerate() {
            let path = format!("{path}[{part}]");
            if block.r#type != "tool_result" {
                said.extend(self.text(block, &path)?);
                continue;
            }
            if !said.is_empty() {
                self.conversation.say(Role::User, std::mem::take(&mut said));
            }
            let call = required(block.tool_use_id, &path, "tool_use_id")?;
            let text = result(block.content);
            self.conversation.read_at(Place::item(i).part(part));
            self.conversation.result(call, text);
            self.conversation.read_at(Place::item(i));
        }
        if !said.is_empty() {
            self.conversation.say(Role::User, said);
        }
        Ok(())
    }

    /// Whether it is a text that is not blank, and nothing else.
    fn of_assistant(&mut self, blocks: Vec<MessageBlock>, (path, i): (&str, usize)) -> Result<bool, RequestError> {
        let (mut said, mut calls, mut thought) = (Vec::new(), Vec::new(), false);
        for (part, block) in blocks.into_iter().enumerate() {
            let path = format!("{path}[{part}]");
            match block.r#type.as_str() {
                "thinking" => {
                    thought = true;
                    self.conversation.thought(&required(block.thinking, &path, "thinking")?);
                }
                "tool_use" => {
                    let (id, name) = (required(block.id, &path, "id")?, required(block.name, &path, "name")?);
                    let input = required(block.input, &path, "input")?;
                    calls.push((Place::item(i).part(part), (id, name, TextOrObject::Object(input))));
                }
                _ => said.extend(self.text(block, &path)?),
            }
        }
        let is_text = said.iter().any(|text: &String| !text.trim().is_empty()) && calls.is_empty() && !thought;
        if !said.is_empty() || calls.is_empty() {
            self.conversation.said(said, None);
        }
        for (at, (id, name, arguments)) in calls {
            self.conversation.read_at(at);
            self.conversation.called(id, name, Some(arguments));
        }
        Ok(is_text)
    }

    fn texts(&mut self, blocks: Vec<MessageBlock>, path: &str) -> Result<Vec<String>, RequestError> {
        let texts = blocks.into_iter().enumerate().map(|(i, block)| self.text(block, &format!("{path}[{i}]")));
        texts.filter_map(Result::transpose).collect()
    }

    /// The text of a block; `None`: it is left out.
    fn text(&mut self, block: MessageBlock, path: &str) -> Result<Option<String>, RequestError> {
        match block.r#type.as_str() {
            "text" => required(block.text, path, "text").map(Some),
            "search_result" => {
                let source = match &block.source {
                    Some(TextOrObject::Text(source)) => format!(" ({source})"),
                    _ => String::new(),
                };
                let texts = result(block.content);
                Ok(Some(format!("{}{source}\n{texts}", block.title.unwrap_or_default())))
            }
            "document" => {
                let text = match block.source {
                    Some(TextOrObject::Object(DocumentSource { data: Some(text), r#type, .. })) if r#type == "text" => {
                        text
                    }
                    Some(TextOrObject::Object(DocumentSource { content: Some(content), .. })) => result(Some(content)),
                    _ => return Err(unsupported("document without a text", path)),
                };
                let title = block.title.map(|title| format!("{title}\n")).unwrap_or_default();
                Ok(Some(format!("{title}{text}")))
            }
            kind if OF_THEIR_SERVER.contains(&kind) || kind.ends_with(THEIR_RESULT) => {
                self.leave_out("content blocks of Anthropic's server");
                Ok(None)
            }
            kind => Err(unsupported(kind, path)),
        }
    }
}

fn required<T>(value: Option<T>, path: &str, name: &str) -> Result<T, RequestError> {
    value.ok_or_else(|| {
        let path = format!("{path}.{name}");
        RequestError::field(path.clone(), format!("{path} is required"))
    })
}

fn unsupported(kind: &str, path: &str) -> RequestError {
    let path = format!("{path}.type");
    let message = format!("{path}: content blocks of type {:?} are not supported here", Shown(kind));
    RequestError::field(path, message)
}

/// The blocks of a content. A text is one.
fn blocks(content: TextOrList<MessageBlock>) -> Vec<MessageBlock> {
    match content {
        TextOrList::List(blocks) => blocks,
        TextOrList::Text(text) => {
            vec![MessageBlock { r#type: "text".to_owned(), text: Some(text), ..MessageBlock::default() }]
        }
    }
}

/// The text of a tool's result. What the model cannot read is named in its place.
fn result(content: Option<BlockContent>) -> String {
    let one = |block: MessageBlock| match (block.text, block.content) {
        (Some(text), _) if block.r#type == "text" => text,
        (_, content @ Some(_)) => result(content),
        _ => placeholder(&block.r#type),
    };
    match content {
        None | Some(BlockContent::Other(_)) => String::new(),
        Some(BlockContent::Text(text)) => text,
        Some(BlockContent::Blocks(blocks)) => blocks.into_iter().map(one).collect(),
    }
}

#[derive(Default)]
struct Choice {
    tool_choice: Option<TextOrObject<ToolChoiceObject>>,
    parallel: Option<bool>,
}

/// The tools that the client calls itself, the client's path of each, and which may be called.
fn tools_of(
    tools: Vec<MessagesTool>,
    choice: Option<MessagesToolChoice>,
    left_out: &mut Vec<&'static str>,
) -> Result<(Vec<ChatTool>, Vec<String>, Choice), RequestError> {
    let (mut all, mut paths) = (Vec::new(), Vec::new());
    let (mut others, mut hosted) = (Vec::new(), false);
    for (i, tool) in tools.into_iter().enumerate() {
        if tool.r#type.as_deref().is_some_and(|kind| kind != "custom") {
            others.extend(tool.name);
            hosted = true;
            continue;
        }
        let path = format!("tools[{i}]");
        let MessagesTool { name, description, input_schema: parameters, strict, .. } = tool;
        let name = required(name, &path, "name")?;
        all.push(ChatTool { r#type: None, function: FunctionDefinition { name, description, parameters, strict } });
        paths.push(path);
    }
    if hosted {
        left_out.push("tools of Anthropic's server");
    }
    let Some(MessagesToolChoice { r#type: kind, name, disable_parallel_tool_use }) = choice else {
        return Ok((all, paths, Choice::default()));
    };
    let mode = |mode: &str| Some(TextOrObject::Text(mode.to_owned()));
    let tool_choice = match kind {
        MessagesToolChoiceType::Auto => mode("auto"),
        MessagesToolChoiceType::None => mode("none"),
        // There may be none left to call.
        MessagesToolChoiceType::Any if all.is_empty() && !others.is_empty() => mode("auto"),
        MessagesToolChoiceType::Any => mode("required"),
        MessagesToolChoiceType::Tool => {
            let name = required(name, "tool_choice", "name")?;
            match others.contains(&name) {
                true => mode("auto"),
                false => Some(TextOrObject::Object(ToolChoiceObject {
                    r#type: ToolChoiceType::Function,
                    function: Some(NamedFunction { name }),
                    allowed_tools: None,
                })),
            }
        }
    };
    let parallel = disable_parallel_tool_use.map(|alone| !alone);
    Ok((all, paths, Choice { tool_choice, parallel }))
}

/// A budget of tokens becomes an effort; `disabled` is none.
fn effort_of(Thinking { r#type: kind, budget_tokens }: &Thinking) -> Option<ReasoningEffort> {
    match kind {
        ThinkingType::Disabled => Some(ReasoningEffort::None),
        ThinkingType::Adaptive => None,
        ThinkingType::Enabled => Some(ReasoningEffort::of_budget(budget_tokens.map_or(0, Whole::get))),
    }
}

fn response_format(OutputFormat { schema, .. }: OutputFormat) -> ResponseFormat {
    let named = NamedSchema { name: Some("output".to_owned()), description: None, schema, strict: Some(true) };
    ResponseFormat { r#type: ResponseFormatType::JsonSchema, json_schema: Some(named), schema: None }
}
