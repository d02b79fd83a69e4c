//! What a prompt says of tools where the model's chat template says nothing.
use serde_json::{Map, Value, json};

use crate::family::description::Family;
use crate::family::tools::Tools;

/// Describes the tools and how the family writes a call, for the system message.
pub fn instructions(family: &Family, tools: &Tools) -> String {
    let functions: Vec<String> = tools
        .callable()
        .iter()
        .map(|tool| {
            let mut function = json!({ "name": tool.name, "parameters": tool.schema() });
            if let (Some(description), Value::Object(function)) = (&tool.description, &mut function) {
                function.insert("description".to_owned(), Value::from(description.as_str()));
            }
            function.to_string()
        })
        .collect();
    let arguments = Map::from_iter([("argument".to_owned(), Value::from("value"))]);
    let example = family.written([("function_name", &arguments)], |_| Map::new());
    let many =
        if tools.parallel() && family.calls.parallel { " You may make several calls, one after another." } else { "" };
    let must =
        if tools.required() { "Call a function now." } else { "Call a function only if it helps with the request." };
    format!(
        "You can call these functions, given with JSON Schemas of their arguments:\n{}\n\n\
         {must} To call a function, write exactly this, with its name and its arguments as JSON:\n{example}\n\
         Write nothing after the call: the result follows in the next message.{many}",
        functions.join("\n"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::known::GENERIC;
    use crate::family::tools::{Tool, ToolChoice};

    #[test]
    fn describes_every_tool_and_how_to_call_it() {
        let tool =
            |name: &str| Tool { name: name.into(), description: Some("Adds.".into()), parameters: None, strict: false };
        let tools = Tools::new(vec![tool("add"), tool("sub")], &ToolChoice::Auto, true).unwrap();
        let text = instructions(&GENERIC, &tools);
        assert!(text.contains("{\"name\":\"add\",\"parameters\":"), "{text}");
        assert!(text.contains("\"description\":\"Adds.\""), "{text}");
        assert!(text.contains(
            "<tool_call>\n{\"name\": \"function_name\", \"arguments\": {\"argument\":\"value\"}}\n</tool_call>"
        ));
        assert!(text.contains("several calls"));
    }
}
