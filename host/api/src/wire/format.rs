//! What an answer's text must look like: OpenAI's `response_format`, and the fields that vLLM, llama.cpp and others have for it.
use camshaft_core::grammar::GrammarSpec;
use serde_json::{Map, Value, json};

use crate::wire::echo::Shown;
use crate::wire::error::RequestError;
use crate::wire::types::generation::{
    GenerationFields, GrammarType, ResponseFormat, ResponseFormatType, StructuredOutputs, TypedGrammar,
};
use crate::wire::types::values::TextOrObject;

const STRUCTURED: &str = "structured_outputs";

/// What a text must be.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Format {
    /// JSON that follows a schema.
    Json(Value),
    /// What a grammar says.
    Grammar(GrammarSpec),
}

/// A format, and the field that asks for it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WantedFormat {
    pub(crate) format: Format,
    pub(crate) path: String,
}

/// Reads the format; `None`: any text.
///
/// # Errors
/// 400 that names the field: it is not supported, or another one asks for a format, too.
pub(crate) fn read(fields: &GenerationFields) -> Result<Option<WantedFormat>, RequestError> {
    let GenerationFields { grammar: of_grammar, json_schema, guided_json, guided_regex, .. } = fields;
    let found = [
        ("response_format", fields.response_format.as_ref().map(response_format).transpose()?.flatten()),
        ("json_schema", json_schema.as_ref().map(|schema| json_of(schema, "json_schema"))),
        ("grammar", of_grammar.as_ref().map(|of| grammar(of, "grammar")).transpose()?),
        (STRUCTURED, fields.structured_outputs.as_ref().map(structured).transpose()?),
        ("guided_json", guided_json.as_ref().map(|of| schema(of, "guided_json")).transpose()?),
        ("guided_regex", guided_regex.as_ref().map(|pattern| regex(pattern, "guided_regex"))),
        ("guided_choice", fields.guided_choice.as_ref().map(|texts| choice(texts, "guided_choice"))),
        ("guided_grammar", fields.guided_grammar.as_ref().map(|of| grammar(of, "guided_grammar")).transpose()?),
    ];
    let mut found = found.into_iter().filter_map(|(name, wanted)| Some((name, wanted?)));
    let first = found.next();
    match (&first, found.next()) {
        (Some((one, _)), Some((other, _))) => {
            Err(RequestError::field(other, format!("{other} and {one} may not come together")))
        }
        _ => Ok(first.map(|(_, wanted)| wanted)),
    }
}

fn wanted(format: Format, path: impl Into<String>) -> WantedFormat {
    WantedFormat { format, path: path.into() }
}

fn json_of(schema: &Map<String, Value>, path: impl Into<String>) -> WantedFormat {
    wanted(Format::Json(Value::Object(schema.clone())), path)
}

fn any_object(path: impl Into<String>) -> WantedFormat {
    wanted(Format::Json(json!({"type": "object"})), path)
}

fn response_format(format: &ResponseFormat) -> Result<Option<WantedFormat>, RequestError> {
    match (format.r#type, &format.schema, &format.json_schema) {
        (ResponseFormatType::Text, ..) => Ok(None),
        // llama.cpp and others take a schema here, too.
        (ResponseFormatType::JsonObject, Some(schema), _) => Ok(Some(json_of(schema, "response_format.schema"))),
        (ResponseFormatType::JsonObject, None, _) => Ok(Some(any_object("response_format"))),
        (ResponseFormatType::JsonSchema, _, Some(named)) => {
            Ok(Some(json_of(&named.schema, "response_format.json_schema.schema")))
        }
        (ResponseFormatType::JsonSchema, _, None) => {
            let path = "response_format.json_schema";
            Err(RequestError::field(path, format!("{path} is required")))
        }
    }
}

/// A schema, or its JSON.
fn schema(schema: &TextOrObject<Map<String, Value>>, path: &str) -> Result<WantedFormat, RequestError> {
    match schema {
        TextOrObject::Object(schema) => Ok(json_of(schema, path)),
        TextOrObject::Text(text) => match serde_json::from_str(text) {
            Ok(schema @ Value::Object(_)) => Ok(wanted(Format::Json(schema), path)),
            _ => {
                let message = format!("{path} must be a JSON Schema or its JSON, got {:?}", Shown(text));
                Err(RequestError::field(path, message))
            }
        },
    }
}

/// GBNF or Lark, which are told apart by how they define a rule; or an object that says which.
fn grammar(grammar: &TextOrObject<TypedGrammar>, path: &str) -> Result<WantedFormat, RequestError> {
    let TypedGrammar { r#type: of, value } = match grammar {
        TextOrObject::Text(text) => {
            let text = text.clone();
            let spec = if text.contains("::=") { GrammarSpec::Gbnf { text } } else { GrammarSpec::Lark { text } };
            return Ok(wanted(Format::Grammar(spec), path));
        }
        TextOrObject::Object(typed) => typed,
    };
    let path = format!("{path}.value");
    let text = match value {
        _ if *of == GrammarType::Json => return schema(value, &path),
        TextOrObject::Text(text) => text.clone(),
        TextOrObject::Object(_) => {
            return Err(RequestError::field(path.clone(), format!("{path} must be a string, got an object")));
        }
    };
    let spec = match of {
        GrammarType::Gbnf => GrammarSpec::Gbnf { text },
        GrammarType::Lark => GrammarSpec::Lark { text },
        GrammarType::Regex | GrammarType::Json => GrammarSpec::Regex { pattern: text },
    };
    Ok(wanted(Format::Grammar(spec), path))
}

fn regex(pattern: &str, path: &str) -> WantedFormat {
    wanted(Format::Grammar(GrammarSpec::Regex { pattern: pattern.to_owned() }), path)
}

fn choice(texts: &[String], path: &str) -> WantedFormat {
    wanted(Format::Grammar(GrammarSpec::Choice { texts: texts.to_vec() }), path)
}

/// vLLM's, of which one is set.
fn structured(outputs: &StructuredOutputs) -> Result<WantedFormat, RequestError> {
    let path = |name: &str| format!("{STRUCTURED}.{name}");
    let found = [
        outputs.json.as_ref().map(|json| schema(json, &path("json"))).transpose()?,
        (outputs.json_object == Some(true)).then(|| any_object(path("json_object"))),
        outputs.regex.as_ref().map(|pattern| regex(pattern, &path("regex"))),
        outputs.choice.as_ref().map(|texts| choice(texts, &path("choice"))),
        outputs.grammar.as_ref().map(|of| grammar(of, &path("grammar"))).transpose()?,
    ];
    let mut found = found.into_iter().flatten();
    match (found.next(), found.next()) {
        (Some(wanted), None) => Ok(wanted),
        _ => {
            let message = format!("{STRUCTURED} must hold one of json, json_object, regex, choice and grammar");
            Err(RequestError::field(STRUCTURED, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: &Value) -> Result<Option<WantedFormat>, RequestError> {
        let fields: GenerationFields = crate::wire::read::read(&body.to_string())?.request;
        read(&fields)
    }

    #[test]
    fn every_spelling_asks_for_the_same() {
        let schema = json!({"type": "object", "properties": {"b": {}, "a": {}}});
        let text = schema.to_string();
        for (body, path) in [
            (
                json!({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": true,
                "description": "d", "schema": schema}}}),
                "response_format.json_schema.schema",
            ),
            (json!({"response_format": {"type": "json_object", "schema": schema}}), "response_format.schema"),
            (json!({"json_schema": schema}), "json_schema"),
            (json!({"guided_json": schema}), "guided_json"),
            (json!({"guided_json": text}), "guided_json"),
            (json!({"structured_outputs": {"json": schema}}), "structured_outputs.json"),
            (json!({"structured_outputs": {"json": text}}), "structured_outputs.json"),
            (json!({"grammar": {"type": "json", "value": schema}}), "grammar.value"),
        ] {
            let expected = WantedFormat { format: Format::Json(schema.clone()), path: path.to_owned() };
            assert_eq!(of(&body).unwrap(), Some(expected), "{body}");
        }
        for (body, path) in [
            (json!({"response_format": {"type": "json_object"}}), "response_format"),
            (json!({"structured_outputs": {"json_object": true}}), "structured_outputs.json_object"),
        ] {
            assert_eq!(of(&body).unwrap(), Some(any_object(path)), "{body}");
        }
        let lark = || GrammarSpec::Lark { text: "start: \"a\"".to_owned() };
        let gbnf = || GrammarSpec::Gbnf { text: "root ::= \"a\"".to_owned() };
        let regex = || GrammarSpec::Regex { pattern: "a+".to_owned() };
        let choice = || GrammarSpec::Choice { texts: vec!["a".to_owned(), "b".to_owned()] };
        for (body, spec, path) in [
            (json!({"grammar": "start: \"a\""}), lark(), "grammar"),
            (json!({"grammar": "root ::= \"a\""}), gbnf(), "grammar"),
            (json!({"guided_grammar": "root ::= \"a\""}), gbnf(), "guided_grammar"),
            (json!({"structured_outputs": {"grammar": "start: \"a\""}}), lark(), "structured_outputs.grammar"),
            (json!({"grammar": {"type": "lark", "value": "start: \"a\""}}), lark(), "grammar.value"),
            (json!({"guided_regex": "a+"}), regex(), "guided_regex"),
            (json!({"structured_outputs": {"regex": "a+"}}), regex(), "structured_outputs.regex"),
            (json!({"guided_choice": ["a", "b"]}), choice(), "guided_choice"),
            (json!({"structured_outputs": {"choice": ["a", "b"]}}), choice(), "structured_outputs.choice"),
        ] {
            assert_eq!(of(&body).unwrap(), Some(wanted(Format::Grammar(spec), path)), "{body}");
        }
    }

    #[test]
    fn an_empty_format_is_one_and_not_nothing() {
        for (body, format) in [
            (json!({"json_schema": {}}), Format::Json(json!({}))),
            (json!({"guided_json": {}}), Format::Json(json!({}))),
            (json!({"guided_choice": []}), Format::Grammar(GrammarSpec::Choice { texts: Vec::new() })),
            (json!({"guided_regex": ""}), Format::Grammar(GrammarSpec::Regex { pattern: String::new() })),
        ] {
            assert_eq!(of(&body).unwrap().map(|wanted| wanted.format), Some(format), "{body}");
        }
    }

    #[test]
    fn text_and_nothing_ask_for_no_format() {
        for body in [
            json!({}),
            json!({"response_format": {"type": "text"}, "grammar": null, "guided_choice": null}),
            json!({"response_format": null, "guided_json": null, "guided_whitespace_pattern": null}),
        ] {
            assert_eq!(of(&body).unwrap(), None, "{body}");
        }
        let beside_text = json!({"response_format": {"type": "text"}, "guided_regex": "a"});
        assert_eq!(of(&beside_text).unwrap().unwrap().path, "guided_regex");
    }

    #[test]
    fn names_the_field_at_fault() {
        let check = |body: Value, param: &str| {
            let error = of(&body).unwrap_err().answer().note().object.clone();
            assert_eq!(error.param.as_deref(), Some(param), "{body}: {}", error.message);
        };
        check(json!({"response_format": "json"}), "response_format");
        check(json!({"response_format": {"kind": "text"}}), "response_format.type");
        check(json!({"response_format": {}}), "response_format.type");
        check(json!({"structured_outputs": {}}), "structured_outputs");
        check(json!({"guided_json": ""}), "guided_json");
        check(json!({"response_format": {"type": "xml"}}), "response_format.type");
        check(json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema");
        let of_schema = |schema: Value| json!({"response_format": {"type": "json_schema", "json_schema": schema}});
        check(of_schema(json!({"name": "n"})), "response_format.json_schema.schema");
        check(of_schema(json!({"name": "n", "schema": "{}"})), "response_format.json_schema.schema");
        check(of_schema(json!({"name": "n n", "schema": {}})), "response_format.json_schema.name");
        check(of_schema(json!({"name": "n".repeat(65), "schema": {}})), "response_format.json_schema.name");
        assert!(of(&of_schema(json!({"name": "n".repeat(64), "schema": {}}))).is_ok());
        check(of_schema(json!({"strict": 1, "schema": {}})), "response_format.json_schema.strict");
        check(json!({"json_schema": "{}"}), "json_schema");
        check(json!({"guided_json": "{"}), "guided_json");
        check(json!({"grammar": 1}), "grammar");
        check(json!({"grammar": {"type": "ebnf", "value": ""}}), "grammar.type");
        check(json!({"grammar": {"type": "regex"}}), "grammar.value");
        check(json!({"guided_choice": ["a", 1]}), "guided_choice[1]");
        check(json!({"structured_outputs": {"backend": "x"}}), "structured_outputs");
        check(json!({"structured_outputs": {"json": {}, "regex": "a"}}), "structured_outputs");
        check(
            json!({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}),
            "structured_outputs.whitespace_pattern",
        );
        check(json!({"guided_regex": "a", "guided_choice": ["a"]}), "guided_choice");
        check(json!({"guided_regex": "a", "guided_whitespace_pattern": " "}), "guided_whitespace_pattern");
    }
}
