//! The functions that a chat's answer may call, and which of them it may or must call.
use std::sync::Arc;

use camshaft_core::family::tools::{Tool, ToolChoice, Tools, ToolsError};
use serde_json::{Map, Value, json};

use crate::wire::echo::Shown;
use crate::wire::error::RequestError;
use crate::wire::types::chat::{
    AllowedToolsMode, ChatRequest, FunctionDefinition, NamedFunction, ToolChoiceObject, ToolChoiceType,
};
use crate::wire::types::values::TextOrObject;

pub(crate) const TOOLS: &str = "tools";
const CHOICE: &str = "tool_choice";

/// The functions of a request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WantedTools {
    /// Those that an answer may call.
    pub(crate) tools: Arc<Tools>,
    /// Those that the prompt speaks of, as chat templates see them: all, unless none may be called.
    pub(crate) shown: Vec<Value>,
    /// Of those that may be called, their places in the client's list.
    pub(crate) places: Vec<usize>,
}

impl WantedTools {
    /// Reads `tools`, `tool_choice` and `parallel_tool_calls`, or their older forms.
    ///
    /// # Errors
    /// 400 that names the tool and field, such as `tools[2].function.name`.
    pub(crate) fn read(request: &ChatRequest) -> Result<Self, RequestError> {
        let newer = request.tools.iter().flatten().map(|tool| &tool.function);
        let all: Vec<Tool> = newer.chain(request.functions.iter().flatten()).map(tool).collect();
        let choice = choice(request)?;
        let parallel = request.parallel_tool_calls.unwrap_or(request.functions.is_none());
        let shown = match choice {
            ToolChoice::None => Vec::new(),
            _ => all.iter().map(template_tool).collect(),
        };
        let names: Vec<String> = all.iter().map(|tool| tool.name.clone()).collect();
        let tools = Tools::new(all, &choice, parallel).map_err(|error| refused(&error))?;
        let place = |tool: &Tool| names.iter().position(|name| *name == tool.name).unwrap_or_default();
        let places = tools.callable().iter().map(place).collect();
        Ok(Self { tools: Arc::new(tools), shown, places })
    }

    /// The field that holds the schema of a tool that may be called.
    pub(crate) fn schema_path(&self, callable: usize) -> String {
        format!("{TOOLS}[{}].function.parameters", self.places.get(callable).copied().unwrap_or_default())
    }
}

fn tool(function: &FunctionDefinition) -> Tool {
    Tool {
        name: function.name.clone(),
        description: function.description.clone(),
        parameters: function.parameters.clone().map(Value::Object),
        strict: function.strict.unwrap_or(false),
    }
}

/// A function as chat templates see it: as OpenAI has it, with a schema in any case.
fn template_tool(tool: &Tool) -> Value {
    let mut function = Map::new();
    function.insert("name".to_owned(), tool.name.as_str().into());
    function.extend(tool.description.as_ref().map(|text| ("description".to_owned(), text.as_str().into())));
    function.insert("parameters".to_owned(), Value::Object(tool.schema()));
    json!({"type": "function", "function": function})
}

fn choice(request: &ChatRequest) -> Result<ToolChoice, RequestError> {
    let chosen = match (&request.tool_choice, &request.function_call) {
        (Some(TextOrObject::Text(mode)), _) => return mode_of(mode, CHOICE),
        (Some(TextOrObject::Object(chosen)), _) => chosen,
        (None, Some(TextOrObject::Text(mode))) => return mode_of(mode, "function_call"),
        (None, Some(TextOrObject::Object(NamedFunction { name }))) => return Ok(ToolChoice::Named(name.clone())),
        (None, None) => return Ok(ToolChoice::Auto),
    };
    let required = |name: &str| {
        let path = format!("{CHOICE}.{name}");
        RequestError::field(path.clone(), format!("{path} is required"))
    };
    match chosen {
        ToolChoiceObject { r#type: ToolChoiceType::Function, function, .. } => {
            let function = function.as_ref().ok_or_else(|| required("function"))?;
            Ok(ToolChoice::Named(function.name.clone()))
        }
        ToolChoiceObject { r#type: ToolChoiceType::AllowedTools, allowed_tools, .. } => {
            let allowed = allowed_tools.as_ref().ok_or_else(|| required("allowed_tools"))?;
            if allowed.tools.is_empty() {
                let path = format!("{CHOICE}.allowed_tools.tools");
                let message = format!("{path} must hold at least one tool; for no calls at all, {CHOICE} is none");
                return Err(RequestError::field(path, message));
            }
            let names = allowed.tools.iter().map(|tool| tool.function.name.clone()).collect();
            Ok(ToolChoice::Allowed { names, required: allowed.mode == Some(AllowedToolsMode::Required) })
        }
    }
}

fn mode_of(mode: &str, path: &str) -> Result<ToolChoice, RequestError> {
    match mode {
        "auto" => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::None),
        "required" => Ok(ToolChoice::Required),
        other => {
            let message = format!("{path} must be auto, none, required or an object, got {:?}", Shown(other));
            Err(RequestError::field(path, message))
        }
    }
}

fn refused(error: &ToolsError) -> RequestError {
    let path = match error {
        ToolsError::TooMany { .. } | ToolsError::TooLarge { .. } => TOOLS.to_owned(),
        ToolsError::Name { tool, .. } | ToolsError::SameName { second: tool, .. } => {
            format!("{TOOLS}[{tool}].function.name")
        }
        ToolsError::Parameters { tool, .. } => format!("{TOOLS}[{tool}].function.parameters"),
        ToolsError::UnknownChoice { .. } | ToolsError::NoTools => CHOICE.to_owned(),
    };
    let message = format!("{path}: {error}");
    RequestError::field(path, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &Value) -> Result<WantedTools, RequestError> {
        let mut body = body.clone();
        body["messages"] = json!([{"role": "user", "content": "hi"}]);
        WantedTools::read(&crate::wire::read::read(&body.to_string())?.request)
    }

    fn names(wanted: &WantedTools) -> Vec<&str> {
        wanted.tools.callable().iter().map(|tool| tool.name.as_str()).collect()
    }

    fn function(name: &str) -> Value {
        json!({"type": "function", "function": {"name": name, "description": "d", "parameters": {"type": "object"}}})
    }

    fn with(choice: &Value) -> Value {
        json!({"tools": [function("a"), function("b")], "tool_choice": choice})
    }

    #[test]
    fn reads_functions_and_what_may_be_called() {
        let named = json!({"type": "function", "function": {"name": "b"}});
        let allowed = |mode: &str| json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [named]}});
        let cases = [
            (json!(null), vec!["a", "b"], false, 2),
            (json!("auto"), vec!["a", "b"], false, 2),
            (json!("required"), vec!["a", "b"], true, 2),
            (json!("none"), vec![], false, 0),
            (named.clone(), vec!["b"], true, 2),
            (allowed("auto"), vec!["b"], false, 2),
            (allowed("required"), vec!["b"], true, 2),
        ];
        for (choice, callable, required, shown) in cases {
            let wanted = read(&with(&choice)).unwrap();
            assert_eq!(names(&wanted), callable, "{choice}");
            assert_eq!((wanted.tools.required(), wanted.shown.len()), (required, shown), "{choice}");
        }
        assert_eq!(read(&with(&named)).unwrap().schema_path(0), "tools[1].function.parameters");
        assert!(read(&with(&json!("auto"))).unwrap().tools.parallel());
        assert!(!read(&json!({"tools": [function("a")], "parallel_tool_calls": false})).unwrap().tools.parallel());
    }

    #[test]
    fn templates_see_functions_as_openai_has_them() {
        let tools = json!({"tools": [{"type": "function", "function": {"name": "f", "strict": true}}]});
        let shown = read(&tools).unwrap().shown;
        let parameters = json!({"properties": {}, "additionalProperties": false, "type": "object"});
        assert_eq!(shown, [json!({"type": "function", "function": {"name": "f", "parameters": parameters}})]);
    }

    #[test]
    fn no_tools_are_none_and_may_be_chosen_among() {
        for body in [json!({}), json!({"tools": []}), json!({"tool_choice": "auto"}), json!({"tool_choice": "none"})] {
            let wanted = read(&body).unwrap();
            assert!(wanted.shown.is_empty() && wanted.tools.callable().is_empty(), "{body}");
        }
    }

    #[test]
    fn names_the_tool_and_field_at_fault() {
        let check = |body: &Value, param: &str| {
            let error = read(body).unwrap_err().answer().note().object.clone();
            assert_eq!(error.param.as_deref(), Some(param), "{body}: {}", error.message);
        };
        let tools = |tool: Value| json!({"tools": [function("a"), tool]});
        check(&json!({"tools": "a"}), "tools");
        check(&tools(json!("b")), "tools[1]");
        check(&tools(json!({"type": "custom", "custom": {}})), "tools[1].type");
        check(&tools(json!({"type": "function"})), "tools[1].function");
        check(&tools(json!({"type": "function", "function": {}})), "tools[1].function.name");
        check(&tools(function("a b")), "tools[1].function.name");
        check(&tools(function("a")), "tools[1].function.name");
        for (field, value) in [("parameters", json!([])), ("description", json!(1)), ("strict", json!("yes"))] {
            check(&tools(json!({"function": {"name": "b", field: value}})), &format!("tools[1].function.{field}"));
        }
        let parameters = tools(json!({"function": {"name": "b", "parameters": {"type": "string"}}}));
        check(&parameters, "tools[1].function.parameters");
        let named = |name: &str| json!({"type": "function", "function": {"name": name}});
        // Where the client is told no field beside it, the message has to name it.
        for (body, field) in [(&parameters, "tools[1].function.parameters: "), (&with(&named("c")), "tool_choice: ")] {
            let message = read(body).unwrap_err().answer().note().object.message.clone();
            assert!(message.starts_with(field), "{message}");
        }
        check(&with(&json!(1)), "tool_choice");
        check(&with(&json!("any")), "tool_choice");
        check(&with(&json!({})), "tool_choice.type");
        check(&with(&json!({"type": "mcp"})), "tool_choice.type");
        check(&with(&json!({"type": "function"})), "tool_choice.function");
        check(&with(&named("c")), "tool_choice");
        let allowed = |allowed: Value| with(&json!({"type": "allowed_tools", "allowed_tools": allowed}));
        check(&allowed(json!({})), "tool_choice.allowed_tools.tools");
        check(&allowed(json!({"tools": [1]})), "tool_choice.allowed_tools.tools[0]");
        check(&allowed(json!({"tools": [], "mode": "must"})), "tool_choice.allowed_tools.mode");
        for mode in ["auto", "required"] {
            check(&allowed(json!({"tools": [], "mode": mode})), "tool_choice.allowed_tools.tools");
        }
        check(&json!({"tool_choice": "required"}), "tool_choice");
        check(&json!({"tools": [function("a")], "parallel_tool_calls": 1}), "parallel_tool_calls");
        let older = json!({"functions": [{"name": "a"}, {"name": "b"}], "function_call": {"name": "b"}});
        let wanted = read(&older).unwrap();
        assert_eq!((names(&wanted), wanted.tools.required(), wanted.tools.parallel()), (vec!["b"], true, false));
    }
}
