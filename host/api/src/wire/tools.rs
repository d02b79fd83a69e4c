//! Reads the functions that a chat's answer may call, and which of them it may or must call.
use std::sync::Arc;

use camshaft_core::family::tools::{Tool, ToolChoice, Tools, ToolsError};
use camshaft_core::limits;
use serde_json::{Map, Value, json};

use crate::wire::echo::Shown;
use crate::wire::error::RequestError;
use crate::wire::fields::{Fields, wrong_type};
use crate::wire::messages::function_type;

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
    /// Reads `tools`, `tool_choice` and `parallel_tool_calls`.
    ///
    /// # Errors
    /// 400 that names the tool and field, such as `tools[2].function.name`.
    pub(crate) fn read(fields: &Fields<'_>) -> Result<Self, RequestError> {
        let list = fields.list(TOOLS)?.map_or(&[][..], Vec::as_slice);
        if list.len() > limits::TOOLS {
            return Err(refused(&ToolsError::TooMany { count: list.len() }));
        }
        let all = list.iter().enumerate().map(|(i, value)| tool(value, &format!("{TOOLS}[{i}]")));
        let all = all.collect::<Result<Vec<_>, RequestError>>()?;
        let choice = choice(fields)?;
        let parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
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

fn tool(value: &Value, path: &str) -> Result<Tool, RequestError> {
    let fields = Fields::of(value, path)?;
    function_type(&fields)?;
    let function = Fields::of(fields.require("function")?, &fields.path("function"))?;
    function.require("name")?;
    Ok(Tool {
        name: function.text("name")?.unwrap_or_default().to_owned(),
        description: function.text("description")?.map(str::to_owned),
        parameters: function.object("parameters")?.cloned().map(Value::Object),
        strict: function.flag("strict")?.unwrap_or(false),
    })
}

/// A function as chat templates see it: as OpenAI has it, with a schema in any case.
fn template_tool(tool: &Tool) -> Value {
    let mut function = Map::new();
    function.insert("name".to_owned(), tool.name.as_str().into());
    function.extend(tool.description.as_ref().map(|text| ("description".to_owned(), text.as_str().into())));
    function.insert("parameters".to_owned(), Value::Object(tool.schema()));
    json!({"type": "function", "function": function})
}

fn choice(fields: &Fields<'_>) -> Result<ToolChoice, RequestError> {
    let choice = match fields.get(CHOICE) {
        None => return Ok(ToolChoice::Auto),
        Some(Value::String(mode)) => return mode_of(mode, CHOICE),
        Some(value @ Value::Object(_)) => Fields::of(value, CHOICE)?,
        Some(other) => return Err(wrong_type(CHOICE, "a string or an object", other)),
    };
    choice.require("type")?;
    match choice.text("type")?.unwrap_or_default() {
        "function" => Ok(ToolChoice::Named(name(&choice)?)),
        "allowed_tools" => {
            let allowed = Fields::of(choice.require("allowed_tools")?, &choice.path("allowed_tools"))?;
            allowed.require("tools")?;
            let names = allowed.list("tools")?.into_iter().flatten().enumerate();
            let names = names.map(|(i, value)| {
                let tool = Fields::of(value, &allowed.path(&format!("tools[{i}]")))?;
                function_type(&tool)?;
                name(&tool)
            });
            let names = names.collect::<Result<Vec<_>, RequestError>>()?;
            let required = match allowed.text("mode")?.unwrap_or("auto") {
                "auto" => false,
                "required" => true,
                other => {
                    let message = format!("{} must be auto or required, got {:?}", allowed.path("mode"), Shown(other));
                    return Err(RequestError::field(allowed.path("mode"), message));
                }
            };
            if names.is_empty() {
                let path = allowed.path("tools");
                let message = format!("{path} must hold at least one tool; for no calls at all, {CHOICE} is none");
                return Err(RequestError::field(path, message));
            }
            Ok(ToolChoice::Allowed { names, required })
        }
        other => {
            let message = format!("{CHOICE}.type must be function or allowed_tools, got {:?}", Shown(other));
            Err(RequestError::field(choice.path("type"), message))
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

/// `function.name`.
fn name(fields: &Fields<'_>) -> Result<String, RequestError> {
    let function = Fields::of(fields.require("function")?, &fields.path("function"))?;
    function.require("name")?;
    Ok(function.text("name")?.unwrap_or_default().to_owned())
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
        WantedTools::read(&Fields::of_body(body.as_object().unwrap()))
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
            let error = read(body).unwrap_err().answer().body().error;
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
            let message = read(body).unwrap_err().answer().body().error.message;
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
    }
}
