//! The tools of a request and which of them an answer may call, checked against their bounds.
use serde_json::{Map, Value, json};

use crate::grammar::loosened;
use crate::limits;
use crate::shown::cut;

/// A function that a model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    pub name: String,
    pub description: Option<String>,
    /// JSON Schema of the arguments, which are an object. Absent: the function takes none.
    pub parameters: Option<Value>,
    /// The client asks that arguments follow the schema exactly, and wants an error where that cannot be guaranteed.
    pub strict: bool,
}

/// Whether an answer calls tools, and which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides.
    Auto,
    None,
    /// At least one call of any tool.
    Required,
    /// A call of this tool.
    Named(String),
    /// Only these tools. At least one call if `required`.
    Allowed {
        names: Vec<String>,
        required: bool,
    },
}

/// The tools that an answer may call: checked, without those that the choice excludes.
#[derive(Debug, Clone, PartialEq)]
pub struct Tools {
    callable: Vec<Tool>,
    required: bool,
    parallel: bool,
    /// Those of which part of the schema is left out.
    loosened: Vec<usize>,
}

/// Why tools are refused. Tools are counted from 0, as the client listed them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToolsError {
    #[error("{count} tools are more than the maximum of {}", limits::TOOLS)]
    TooMany { count: usize },
    #[error(
        "descriptions and parameters of all tools have {bytes} bytes, more than the maximum of {}",
        limits::TOOLS_BYTES
    )]
    TooLarge { bytes: usize },
    #[error(
        "the name {name:?} of tool {tool} has other characters than letters, digits, `_`, `-` and `.`, or not 1 to {} of them",
        limits::TOOL_NAME_BYTES
    )]
    Name { tool: usize, name: String },
    #[error("tools {first} and {second} have the same name {name:?}")]
    SameName { first: usize, second: usize, name: String },
    #[error("the parameters of tool {tool} are no JSON Schema of an object, but {found}")]
    Parameters { tool: usize, found: String },
    #[error("the choice of tools names {name:?}, which is none of the tools")]
    UnknownChoice { name: String },
    #[error("the choice of tools demands a call, but there are no tools")]
    NoTools,
}

impl ToolsError {
    /// The tool that is refused, where it is a single one.
    pub fn tool(&self) -> Option<usize> {
        match self {
            Self::Name { tool, .. } | Self::Parameters { tool, .. } => Some(*tool),
            Self::SameName { second, .. } => Some(*second),
            Self::TooMany { .. } | Self::TooLarge { .. } | Self::UnknownChoice { .. } | Self::NoTools => None,
        }
    }
}

impl Tools {
    /// `parallel`: an answer may call several tools.
    ///
    /// # Errors
    /// If there are too many tools, or they are too large, a name is not well-formed or not unique, parameters are no schema of an
    /// object, or the choice names an unknown tool, or requires a call without tools.
    pub fn new(tools: Vec<Tool>, choice: &ToolChoice, parallel: bool) -> Result<Self, ToolsError> {
        if tools.len() > limits::TOOLS {
            return Err(ToolsError::TooMany { count: tools.len() });
        }
        for (tool, checked) in tools.iter().enumerate() {
            check(tool, checked)?;
            if let Some(first) = tools[..tool].iter().position(|earlier| earlier.name == checked.name) {
                return Err(ToolsError::SameName { first, second: tool, name: checked.name.clone() });
            }
        }
        let bytes = tools.iter().map(Tool::bytes).sum();
        if bytes > limits::TOOLS_BYTES {
            return Err(ToolsError::TooLarge { bytes });
        }
        let chosen: Option<&[String]> = match choice {
            ToolChoice::Auto | ToolChoice::Required => None,
            ToolChoice::None => Some(&[]),
            ToolChoice::Named(name) => Some(std::slice::from_ref(name)),
            ToolChoice::Allowed { names, .. } => Some(names),
        };
        let unknown = |name: &&String| !tools.iter().any(|tool| tool.name == **name);
        if let Some(name) = chosen.into_iter().flatten().find(unknown) {
            return Err(ToolsError::UnknownChoice { name: cut(name) });
        }
        let required = match choice {
            ToolChoice::Auto | ToolChoice::None => false,
            ToolChoice::Required | ToolChoice::Named(_) => true,
            ToolChoice::Allowed { required, .. } => *required,
        };
        let mut callable = tools;
        callable.retain(|tool| chosen.is_none_or(|names| names.contains(&tool.name)));
        if required && callable.is_empty() {
            return Err(ToolsError::NoTools);
        }
        Ok(Self { callable, required, parallel, loosened: Vec::new() })
    }

    /// No tools at all.
    pub fn none() -> Self {
        Self { callable: Vec::new(), required: false, parallel: false, loosened: Vec::new() }
    }

    /// The tools that may be called, as the client listed them.
    pub fn callable(&self) -> &[Tool] {
        &self.callable
    }

    /// The same tools, but this one, counted among those that may be called, takes more arguments: for a tool that is not strict, and
    /// whose schema is not supported. At first what is not supported of the schema is left out, then the whole schema.
    #[must_use]
    pub fn relaxed(&self, tool: usize) -> Self {
        let mut tools = self.clone();
        if let Some(relaxed) = tools.callable.get_mut(tool) {
            let schema = Value::Object(relaxed.schema());
            let is_new = |less: &Value| !self.loosened.contains(&tool) && *less != schema;
            let less = loosened(&schema).filter(is_new);
            relaxed.parameters = Some(less.unwrap_or_else(|| json!({ "type": "object" })));
            tools.loosened.push(tool);
        }
        tools
    }

    /// The answer must call a tool.
    pub fn required(&self) -> bool {
        self.required
    }

    /// The answer may have several calls.
    pub fn parallel(&self) -> bool {
        self.parallel
    }

    /// The tool of this name, if it may be called.
    pub fn get(&self, name: &str) -> Option<&Tool> {
        self.position(name).and_then(|tool| self.callable.get(tool))
    }

    /// Which of the callable tools has this name.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.callable.iter().position(|tool| tool.name == name)
    }
}

impl Tool {
    /// Of its description and its parameters, as JSON.
    fn bytes(&self) -> usize {
        let description = self.description.as_ref().map_or(0, String::len);
        description + self.parameters.as_ref().map_or(0, |parameters| parameters.to_string().len())
    }

    /// The schema of an argument.
    pub(crate) fn argument(&self, key: &str) -> Option<&Value> {
        self.parameters.as_ref()?.get("properties")?.get(key)
    }

    /// The schema of the arguments: always of an object, and with an empty one where the client gave none.
    pub fn schema(&self) -> Map<String, Value> {
        let mut schema = match &self.parameters {
            Some(Value::Object(schema)) => schema.clone(),
            _ => Map::from_iter([
                ("properties".to_owned(), Value::Object(Map::new())),
                ("additionalProperties".to_owned(), Value::Bool(false)),
            ]),
        };
        schema.insert("type".to_owned(), Value::from("object"));
        schema
    }
}

/// Whether a character may occur in a tool's name.
pub(crate) fn of_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '_' | '-' | '.')
}

fn check(tool: usize, checked: &Tool) -> Result<(), ToolsError> {
    let Tool { name, parameters, .. } = checked;
    if !(1..=limits::TOOL_NAME_BYTES).contains(&name.len()) || !name.chars().all(of_name) {
        return Err(ToolsError::Name { tool, name: cut(name) });
    }
    let found = match parameters {
        None => return Ok(()),
        Some(Value::Object(schema)) => match schema.get("type") {
            None => return Ok(()),
            Some(Value::String(kind)) if kind == "object" => return Ok(()),
            Some(other) => format!("of type {other}"),
        },
        Some(other) => other.to_string(),
    };
    Err(ToolsError::Parameters { tool, found: cut(&found) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str, parameters: Value) -> Tool {
        let parameters = (!parameters.is_null()).then_some(parameters);
        Tool { name: name.to_owned(), description: None, parameters, strict: false }
    }

    fn named(names: &[&str]) -> Vec<Tool> {
        names.iter().map(|name| tool(name, Value::Null)).collect()
    }

    fn check(tools: &[&str], choice: &ToolChoice, expected: &Result<(&[&str], bool), ToolsError>) {
        let tools = Tools::new(named(tools), choice, true);
        let found = tools.as_ref().map(|tools| {
            let names: Vec<&str> = tools.callable().iter().map(|tool| tool.name.as_str()).collect();
            (names, tools.required())
        });
        assert_eq!(found, expected.as_ref().map(|(names, required)| (names.to_vec(), *required)));
    }

    #[test]
    fn a_choice_says_which_tools_may_be_called_and_whether_one_must() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let allowed = |of: &[&str], required| ToolChoice::Allowed { names: names(of), required };
        check(&["a", "b"], &ToolChoice::Auto, &Ok((&["a", "b"], false)));
        check(&["a", "b"], &ToolChoice::None, &Ok((&[], false)));
        check(&["a", "b"], &ToolChoice::Required, &Ok((&["a", "b"], true)));
        check(&["a", "b"], &ToolChoice::Named("b".into()), &Ok((&["b"], true)));
        check(&["a", "b", "c"], &allowed(&["c", "a"], false), &Ok((&["a", "c"], false)));
        check(&["a", "b", "c"], &allowed(&["b"], true), &Ok((&["b"], true)));
        check(&[], &ToolChoice::Auto, &Ok((&[], false)));
    }

    #[test]
    fn a_choice_of_what_there_is_not_is_refused() {
        let unknown = ToolsError::UnknownChoice { name: "c".into() };
        check(&["a"], &ToolChoice::Named("c".into()), &Err(unknown.clone()));
        check(&["a"], &ToolChoice::Allowed { names: vec!["a".into(), "c".into()], required: false }, &Err(unknown));
        check(&[], &ToolChoice::Required, &Err(ToolsError::NoTools));
        check(&["a"], &ToolChoice::Allowed { names: vec![], required: true }, &Err(ToolsError::NoTools));
        let long = ToolsError::UnknownChoice { name: "x".repeat(128) };
        check(&["a"], &ToolChoice::Named("x".repeat(2 << 20)), &Err(long));
    }

    #[test]
    fn names_have_1_to_128_letters_digits_underscores_hyphens_and_dots() {
        let longest = "x".repeat(128);
        check(&["mcp.weather-2_x", &longest], &ToolChoice::Auto, &Ok((&["mcp.weather-2_x", &longest], false)));
        for bad in ["", "a b", "a/b", "é", &"x".repeat(129)] {
            check(&["ok", bad], &ToolChoice::Auto, &Err(ToolsError::Name { tool: 1, name: cut(bad) }));
        }
        let same = ToolsError::SameName { first: 0, second: 2, name: "a".into() };
        assert_eq!(same.tool(), Some(2));
        check(&["a", "b", "a"], &ToolChoice::Auto, &Err(same));
    }

    #[test]
    fn takes_128_tools_and_not_one_more() {
        let tools = |count: usize| {
            named(
                &(0..count)
                    .map(|at| format!("t{at}"))
                    .collect::<Vec<_>>()
                    .iter()
                    .map(String::as_str)
                    .collect::<Vec<_>>(),
            )
        };
        assert!(Tools::new(tools(128), &ToolChoice::Auto, true).is_ok());
        assert_eq!(Tools::new(tools(129), &ToolChoice::Auto, true), Err(ToolsError::TooMany { count: 129 }));
    }

    #[test]
    fn descriptions_and_parameters_have_512_kib_together_and_not_one_byte_more() {
        let tools = |bytes: usize| {
            let first = Tool { description: Some("x".repeat(bytes - 19)), ..tool("a", Value::Null) };
            Tools::new(
                vec![first, tool("b", json!({ "type": "object" })), tool("c", json!({}))],
                &ToolChoice::Auto,
                true,
            )
        };
        assert!(tools(512 << 10).is_ok());
        assert_eq!(tools((512 << 10) + 1), Err(ToolsError::TooLarge { bytes: (512 << 10) + 1 }));
    }

    #[test]
    fn parameters_are_a_schema_of_an_object() {
        let check = |parameters: Value, found: &str| {
            let error = Tools::new(vec![tool("a", parameters)], &ToolChoice::Auto, true).unwrap_err();
            assert_eq!(error, ToolsError::Parameters { tool: 0, found: found.to_owned() });
            assert!(error.to_string().starts_with("the parameters of tool 0 are no JSON Schema of an object, but "));
        };
        check(json!("object"), "\"object\"");
        check(json!(true), "true");
        check(json!({"type": "string"}), "of type \"string\"");
        check(json!({"type": ["object", "null"]}), "of type [\"object\",\"null\"]");
        let fine = |parameters| Tools::new(vec![tool("a", parameters)], &ToolChoice::Auto, true).unwrap();
        assert_eq!(fine(json!({"anyOf": []})).callable()[0].schema()["type"], "object");
        assert_eq!(fine(Value::Null).callable()[0].schema()["additionalProperties"], false);
    }
}
