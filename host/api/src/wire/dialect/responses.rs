//! OpenAI's Responses API, stateless: its requests as chats.
use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{AnswerFormat, Converted};
use crate::wire::conversation::Conversation;
use crate::wire::echo::Shown;
use crate::wire::error::RequestError;
use crate::wire::messages::placeholder;
use crate::wire::names::{Names, Paths, Place};
use crate::wire::read::{Body, LIST_BYTES, OBJECT_BYTES, VALUE_BYTES};
use crate::wire::types::chat::{
    AllowedTool, AllowedTools, ChatRequest, ChatTool, FunctionDefinition, NamedFunction, Role, ToolChoiceObject,
    ToolChoiceType,
};
use crate::wire::types::generation::{GenerationFields, NamedSchema, ResponseFormat, ResponseFormatType};
use crate::wire::types::responses::{
    CustomFormat, InputItem, InputPart, ItemRole, Repeated, RepeatedReasoning, ResponsesRequest, ResponsesTool,
    ResponsesToolChoice, TextFormat, TextOptions, Truncation,
};
use crate::wire::types::values::{TextOrList, TextOrObject, Whole};

/// What the chat endpoint calls the fields of this one. (The role of a message is at fault only where a result answers no call.)
const PATHS: &Paths = &[
    ("messages[].tool_calls[].id", "input[].call_id"),
    ("messages[].tool_calls[].function", "input[]"),
    ("messages[].tool_calls", "input"),
    ("messages[].tool_call_id", "input[].call_id"),
    ("messages[].role", "input[].call_id"),
    ("messages[]", "input[]"),
    ("messages", "input"),
    ("max_completion_tokens", "max_output_tokens"),
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
    ("tools[].function", "tools[]"),
    ("tool_choice.allowed_tools", "tool_choice"),
    ("tool_choice.function", "tool_choice"),
];
const LOGPROBS: &str = "message.output_text.logprobs";
/// Between a namespace and the name of a tool in it, where both are one name.
const NAMESPACE: &str = "__";
/// The argument that stands for the text of a custom tool.
pub(crate) const CUSTOM_INPUT: &str = "input";
/// The function that stands for a client's own shell.
const SHELL: &str = "local_shell";
/// Items that only OpenAI's own server can read.
const OF_THEIR_SERVER: [&str; 9] = [
    "compaction",
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "tool_search_call",
    "tool_search_output",
    "additional_tools",
    "mcp_list_tools",
];

/// What the answer needs of the request.
#[derive(Debug, Default)]
pub(crate) struct ResponseEcho {
    /// What it repeats.
    pub(crate) fields: Map<String, Value>,
    /// They take this much memory.
    pub(crate) bytes: usize,
    pub(crate) calls: CallNames,
}

/// The client's own names of functions that have others here.
#[derive(Debug, Default, Clone)]
pub(crate) struct CallNames(BTreeMap<String, CalledTool>);

/// A tool of the client's that is called as a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CalledTool {
    pub(crate) name: String,
    pub(crate) namespace: Option<String>,
    /// It takes a text instead of arguments.
    pub(crate) is_custom: bool,
}

impl CallNames {
    /// `None`: the function is the client's as it is.
    pub(crate) fn of(&self, function: &str) -> Option<&CalledTool> {
        self.0.get(function)
    }
}

/// # Errors
/// 400 that names the field.
pub(super) fn chat(body: Body<ResponsesRequest>) -> Result<Converted<ChatRequest>, RequestError> {
    let mut request = body.request;
    let fields = echo(&request);
    let mut conversation = Conversation::default();
    if let Some(instructions) = request.instructions.take() {
        conversation.say(Role::System, vec![instructions]);
    }
    let mut left_out = Vec::new();
    match request.input.take() {
        None => {}
        Some(TextOrList::Text(text)) => conversation.say(Role::User, vec![text]),
        Some(TextOrList::List(items)) => {
            for (i, item) in items.into_iter().enumerate() {
                conversation.read_at(Place::item(i));
                if !add(item, &format!("input[{i}]"), &mut conversation)? {
                    left_out.push("items of OpenAI's server");
                }
            }
        }
    }
    let (messages, origins) = conversation.messages();
    let mut offered = Offered::default();
    for (i, tool) in request.tools.take().into_iter().flatten().enumerate() {
        offered.add(tool, None, format!("tools[{i}]"))?;
    }
    left_out.extend(&offered.left_out);
    left_out.sort_unstable();
    left_out.dedup();
    if request.context_management.is_some() {
        left_out.push("context_management");
    }
    let tool_choice = request.tool_choice.take().map(|choice| offered.choice(choice)).transpose()?;
    let TextOptions { format, verbosity } = request.text.take().unwrap_or_default();
    let asks_logprobs = request.include.iter().flatten().any(|name| name == LOGPROBS);
    let top_logprobs = request.top_logprobs.filter(|top| asks_logprobs || *top != Whole(0));
    let text = |text: Option<String>| text.map(Value::String);
    let chat = ChatRequest {
        messages: Some(messages),
        logprobs: (asks_logprobs || top_logprobs.is_some()).then_some(true),
        top_logprobs,
        tools: (!offered.tools.is_empty()).then_some(offered.tools),
        tool_choice,
        parallel_tool_calls: request.parallel_tool_calls,
        reasoning_effort: request.reasoning.and_then(|reasoning| reasoning.effort),
        chat_template_kwargs: request.chat_template_kwargs,
        thinking_budget: request.thinking_budget,
        verbosity: text(verbosity),
        generation: GenerationFields {
            max_completion_tokens: request.max_output_tokens,
            user: text(request.user),
            safety_identifier: text(request.safety_identifier),
            response_format: format.map(response_format).transpose()?.flatten(),
            ..request.generation
        },
        ..ChatRequest::default()
    };
    let bytes = held_bytes(&fields);
    let echo = ResponseEcho { fields, bytes, calls: CallNames(offered.names) };
    let names = Names::new(PATHS, origins, offered.paths);
    Converted::new(chat, body.unknown, AnswerFormat::Responses(echo), names, left_out)
}

/// What the answer repeats.
fn echo(request: &ResponsesRequest) -> Map<String, Value> {
    let mut text = Map::from_iter([("format".to_owned(), json!({"type": "text"}))]);
    if let Some(TextOptions { format, verbosity }) = &request.text {
        text.extend(format.as_ref().map(|format| ("format".to_owned(), json!(format))));
        text.extend(verbosity.as_ref().map(|verbosity| ("verbosity".to_owned(), json!(verbosity))));
    }
    let reasoning = request.reasoning.as_ref();
    let generation = &request.generation;
    let repeated = Repeated {
        background: false,
        previous_response_id: None,
        store: false,
        truncation: Truncation::Disabled,
        user: request.user.as_deref(),
        safety_identifier: request.safety_identifier.as_deref(),
        prompt_cache_key: generation.prompt_cache_key.as_deref(),
        service_tier: request.service_tier.as_deref(),
        temperature: generation.temperature,
        top_p: generation.top_p,
        max_output_tokens: request.max_output_tokens,
        max_tool_calls: request.max_tool_calls,
        top_logprobs: request.top_logprobs,
        parallel_tool_calls: request.parallel_tool_calls.unwrap_or(true),
        metadata: request.metadata.as_ref().map(Cow::Borrowed).unwrap_or_default(),
        instructions: request.instructions.as_deref(),
        tools: request.tools.as_deref().unwrap_or_default(),
        tool_choice: request.tool_choice.clone().unwrap_or_else(|| TextOrObject::Text("auto".to_owned())),
        text,
        reasoning: RepeatedReasoning {
            effort: reasoning.and_then(|reasoning| reasoning.effort),
            summary: reasoning.and_then(|reasoning| reasoning.summary.as_deref()),
        },
    };
    match json!(repeated) {
        Value::Object(repeated) => repeated,
        _ => Map::new(),
    }
}

/// What the members of a JSON object take in memory, at most.
fn held_bytes(map: &Map<String, Value>) -> usize {
    fn of_value(value: &Value) -> usize {
        VALUE_BYTES
            + match value {
                Value::Null | Value::Bool(_) | Value::Number(_) => 0,
                Value::String(text) => text.len(),
                Value::Array(list) => LIST_BYTES + list.iter().map(of_value).sum::<usize>(),
                Value::Object(map) => held_bytes(map),
            }
    }
    OBJECT_BYTES + map.iter().map(|(name, value)| name.len() + of_value(value)).sum::<usize>()
}

/// Adds an item to the conversation. False: it is left out.
fn add(item: InputItem, path: &str, conversation: &mut Conversation) -> Result<bool, RequestError> {
    let required = |name: &str| {
        let path = format!("{path}.{name}");
        RequestError::field(path.clone(), format!("{path} is required"))
    };
    match item.r#type.as_deref().unwrap_or("message") {
        "message" => {
            let role = item.role.ok_or_else(|| required("role"))?;
            let Parts { texts, refusal } = parts_of(item.content.ok_or_else(|| required("content"))?, path)?;
            match role {
                ItemRole::Assistant => conversation.said(texts, refusal),
                ItemRole::System => conversation.say(Role::System, texts),
                ItemRole::Developer => conversation.say(Role::Developer, texts),
                ItemRole::User => conversation.say(Role::User, texts),
            }
        }
        "function_call" => {
            let (call, name) = (item.call_id.ok_or_else(|| required("call_id"))?, item.name);
            let name = in_namespace(item.namespace.as_deref(), &name.ok_or_else(|| required("name"))?);
            conversation.called(call, name, item.arguments);
        }
        "custom_tool_call" => {
            let (call, name) = (item.call_id.ok_or_else(|| required("call_id"))?, item.name);
            let input = Value::String(item.input.ok_or_else(|| required("input"))?);
            let arguments = TextOrObject::Object(Map::from_iter([(CUSTOM_INPUT.to_owned(), input)]));
            let name = in_namespace(item.namespace.as_deref(), &name.ok_or_else(|| required("name"))?);
            conversation.called(call, name, Some(arguments));
        }
        "local_shell_call" => {
            let call = item.call_id.ok_or_else(|| required("call_id"))?;
            conversation.called(call, SHELL.to_owned(), item.action.map(TextOrObject::Object));
        }
        "function_call_output" | "custom_tool_call_output" | "local_shell_call_output" => {
            let call = item.call_id.ok_or_else(|| required("call_id"))?;
            conversation.result(call, output(item.output.ok_or_else(|| required("output"))?));
        }
        "reasoning" => {
            // What was thought, or else what is told of it. What only another server can read is left out.
            let told = item.summary.into_iter().flatten().filter_map(|part| part.text).collect::<String>();
            let thought = item.content.map(output).unwrap_or_default();
            let text = if thought.is_empty() { told } else { thought };
            if !text.is_empty() {
                conversation.thought(&text);
            }
        }
        kind if OF_THEIR_SERVER.contains(&kind) => return Ok(false),
        "item_reference" => {
            let message = format!("{path}.type: an item_reference leads nowhere: no response is stored here");
            return Err(RequestError::field(format!("{path}.type"), message));
        }
        other => {
            let message = format!("{path}.type: items of type {:?} are not supported", Shown(other));
            return Err(RequestError::field(format!("{path}.type"), message));
        }
    }
    Ok(true)
}

struct Parts {
    texts: Vec<String>,
    refusal: Option<String>,
}

fn parts_of(content: TextOrList<InputPart>, path: &str) -> Result<Parts, RequestError> {
    let parts = match content {
        TextOrList::Text(text) => return Ok(Parts { texts: vec![text], refusal: None }),
        TextOrList::List(parts) => parts,
    };
    let mut read = Parts { texts: Vec::with_capacity(parts.len()), refusal: None };
    for (i, InputPart { r#type: kind, text, refusal }) in parts.into_iter().enumerate() {
        let path = |name: &str| format!("{path}.content[{i}].{name}");
        let required = |name: &str| RequestError::field(path(name), format!("{} is required", path(name)));
        match kind.as_str() {
            "input_text" | "output_text" | "text" => read.texts.push(text.ok_or_else(|| required("text"))?),
            "refusal" => read.refusal.get_or_insert_default().push_str(&refusal.ok_or_else(|| required("refusal"))?),
            other => {
                let message =
                    format!("{}: parts of type {:?} are not supported, only text", path("type"), Shown(other));
                return Err(RequestError::field(path("type"), message));
            }
        }
    }
    Ok(read)
}

/// The text of a call's output. What the model cannot read is named in its place.
fn output(output: TextOrList<InputPart>) -> String {
    match output {
        TextOrList::Text(text) => text,
        TextOrList::List(parts) => {
            parts.into_iter().map(|part| part.text.unwrap_or_else(|| placeholder(&part.r#type))).collect()
        }
    }
}

fn in_namespace(namespace: Option<&str>, name: &str) -> String {
    namespace.map_or_else(|| name.to_owned(), |namespace| format!("{namespace}{NAMESPACE}{name}"))
}

/// The client's tools as functions of a chat.
#[derive(Default)]
struct Offered {
    tools: Vec<ChatTool>,
    /// The client's path of each.
    paths: Vec<String>,
    names: BTreeMap<String, CalledTool>,
    left_out: Vec<&'static str>,
}

impl Offered {
    fn add(&mut self, tool: ResponsesTool, namespace: Option<&str>, path: String) -> Result<(), RequestError> {
        let ResponsesTool { r#type: kind, name, description, parameters, strict, format, tools } = tool;
        let is_custom = kind == "custom";
        match kind.as_str() {
            "function" | "custom" => {}
            "namespace" if namespace.is_none() => {
                let name = named(name, &path)?;
                let within = tools.into_iter().flatten().enumerate();
                return within
                    .into_iter()
                    .try_for_each(|(i, tool)| self.add(tool, Some(&name), format!("{path}.tools[{i}]")));
            }
            _ => {
                self.left_out.push("tools of OpenAI's server");
                return Ok(());
            }
        }
        let name = named(name, &path)?;
        let called = in_namespace(namespace, &name);
        if is_custom || namespace.is_some() {
            let namespace = namespace.map(str::to_owned);
            self.names.insert(called.clone(), CalledTool { name, namespace, is_custom });
        }
        let function = match is_custom {
            false => FunctionDefinition { name: called, description, parameters, strict },
            true => self.of_text(called, description, format),
        };
        self.tools.push(ChatTool { r#type: None, function });
        self.paths.push(path);
        Ok(())
    }

    /// A custom tool: a function of one text.
    fn of_text(
        &mut self,
        name: String,
        description: Option<String>,
        format: Option<CustomFormat>,
    ) -> FunctionDefinition {
        let mut input = json!({"type": "string"});
        let mut is_held = false;
        let mut description = description.unwrap_or_default();
        if let Some(CustomFormat { syntax, definition: Some(definition), .. }) = format {
            match syntax.as_deref() {
                Some("regex") => {
                    input["pattern"] = format!("^(?:{definition})$").into();
                    is_held = true;
                }
                // Within a text of JSON the decoder holds the model to no grammar.
                _ => self.left_out.push("the grammar of a custom tool"),
            }
            description.push_str(&format!("\n\nThe input follows this grammar:\n{definition}"));
        }
        let parameters = json!({"type": "object", "properties": {CUSTOM_INPUT: input}, "required": [CUSTOM_INPUT],
            "additionalProperties": false});
        let description = Some(description).filter(|text| !text.is_empty());
        FunctionDefinition {
            name,
            description,
            parameters: parameters.as_object().cloned(),
            strict: is_held.then_some(true),
        }
    }

    fn choice(
        &self,
        choice: TextOrObject<ResponsesToolChoice>,
    ) -> Result<TextOrObject<ToolChoiceObject>, RequestError> {
        let auto = || TextOrObject::Text("auto".to_owned());
        let choice = match choice {
            // There may be none left to call.
            TextOrObject::Text(mode) if mode == "required" && self.tools.is_empty() && !self.left_out.is_empty() => {
                return Ok(auto());
            }
            TextOrObject::Text(mode) => return Ok(TextOrObject::Text(mode)),
            TextOrObject::Object(choice) => choice,
        };
        let called = self.called();
        let function = |name: String, namespace: Option<&str>| {
            let name = match (namespace, called.get(name.as_str())) {
                (Some(_), _) => in_namespace(namespace, &name),
                (None, Some(called)) => (*called).to_owned(),
                (None, None) => name,
            };
            NamedFunction { name }
        };
        match choice.r#type.as_str() {
            "function" | "custom" => Ok(TextOrObject::Object(ToolChoiceObject {
                r#type: ToolChoiceType::Function,
                function: Some(function(named(choice.name, "tool_choice")?, choice.namespace.as_deref())),
                allowed_tools: None,
            })),
            "allowed_tools" => {
                let mut tools = Vec::new();
                for (i, tool) in choice.tools.into_iter().flatten().enumerate() {
                    if matches!(tool.r#type.as_str(), "function" | "custom") {
                        let name = named(tool.name, &format!("tool_choice.tools[{i}]"))?;
                        tools.push(AllowedTool { r#type: None, function: function(name, tool.namespace.as_deref()) });
                    }
                }
                Ok(TextOrObject::Object(ToolChoiceObject {
                    r#type: ToolChoiceType::AllowedTools,
                    function: None,
                    allowed_tools: Some(AllowedTools { mode: choice.mode, tools }),
                }))
            }
            _ if !self.left_out.is_empty() => Ok(auto()),
            other => {
                let path = "tool_choice.type";
                let message = format!("{path}: a choice of type {:?} is not supported", Shown(other));
                Err(RequestError::field(path, message))
            }
        }
    }

    /// The function that stands for a tool, by the tool's name: one that is offered under just that, or else of a namespace.
    fn called(&self) -> BTreeMap<&str, &str> {
        let of_namespaces = self.names.iter().rev().map(|(called, tool)| (tool.name.as_str(), called.as_str()));
        let offered = self.tools.iter().map(|tool| (tool.function.name.as_str(), tool.function.name.as_str()));
        of_namespaces.chain(offered).collect()
    }
}

fn named(name: Option<String>, path: &str) -> Result<String, RequestError> {
    let path = format!("{path}.name");
    name.ok_or_else(|| RequestError::field(path.clone(), format!("{path} is required")))
}

/// `None`: any text.
fn response_format(format: TextFormat) -> Result<Option<ResponseFormat>, RequestError> {
    let TextFormat { r#type, name, description, schema, strict } = format;
    let json_schema = match r#type {
        ResponseFormatType::Text => return Ok(None),
        ResponseFormatType::JsonObject => None,
        ResponseFormatType::JsonSchema => {
            let path = "text.format.schema";
            let schema = schema.ok_or_else(|| RequestError::field(path, format!("{path} is required")))?;
            Some(NamedSchema { name, description, schema, strict })
        }
    };
    Ok(Some(ResponseFormat { r#type, json_schema, schema: None }))
}
