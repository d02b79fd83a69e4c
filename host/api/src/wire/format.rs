//! Reads what an answer's text must look like: OpenAI's `response_format`, and the fields that vLLM, llama.cpp and others have for it.
use camshaft_core::grammar::GrammarSpec;
use serde_json::{Value, json};

use crate::wire::echo::Shown;
use crate::wire::error::RequestError;
use crate::wire::fields::{Fields, wrong_type};

const RESPONSE_FORMAT: &str = "response_format";
const STRUCTURED: &str = "structured_outputs";
/// What says how a text that is asked for by other fields is decoded, and may not be said here.
const DECODING: [&str; 1] = ["guided_whitespace_pattern"];
const STRUCTURED_OPTIONS: [&str; 4] =
    ["whitespace_pattern", "disable_any_whitespace", "disable_additional_properties", "structural_tag"];
const SCHEMA_NAME_BYTES: usize = 64;

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
/// 400 that names the field: it is malformed or not supported, or another one asks for a format, too.
pub(crate) fn read(fields: &Fields<'_>) -> Result<Option<WantedFormat>, RequestError> {
    for name in DECODING {
        if fields.get(name).is_some_and(|value| *value != Value::Bool(false)) {
            return Err(RequestError::field(name, format!("{name} is not supported")));
        }
    }
    let readers: [(&str, Reader); 8] = [
        (RESPONSE_FORMAT, response_format),
        ("json_schema", |fields, name| schema(fields, name, false)),
        ("grammar", grammar),
        (STRUCTURED, structured),
        ("guided_json", |fields, name| schema(fields, name, true)),
        ("guided_regex", regex),
        ("guided_choice", choice),
        ("guided_grammar", grammar),
    ];
    let mut found: Option<(&str, WantedFormat)> = None;
    for (name, read) in readers {
        if fields.get(name).is_none() {
            continue;
        }
        let Some(wanted) = read(fields, name)? else { continue };
        if let Some((other, _)) = found {
            return Err(RequestError::field(name, format!("{name} and {other} may not come together")));
        }
        found = Some((name, wanted));
    }
    Ok(found.map(|(_, wanted)| wanted))
}

type Reader = fn(&Fields<'_>, &str) -> Result<Option<WantedFormat>, RequestError>;

fn any_object() -> Format {
    Format::Json(json!({"type": "object"}))
}

fn wanted(format: Format, path: impl Into<String>) -> Option<WantedFormat> {
    Some(WantedFormat { format, path: path.into() })
}

fn response_format(fields: &Fields<'_>, name: &str) -> Result<Option<WantedFormat>, RequestError> {
    let format = Fields::of(fields.require(name)?, name)?;
    format.require("type")?;
    match format.text("type")?.unwrap_or_default() {
        "text" => Ok(None),
        // llama.cpp and others take a schema here, too.
        "json_object" => match format.get("schema") {
            Some(_) => schema(&format, "schema", false),
            None => Ok(wanted(any_object(), name)),
        },
        "json_schema" => {
            let inner = Fields::of(format.require("json_schema")?, &format.path("json_schema"))?;
            check_name(&inner)?;
            inner.flag("strict")?;
            inner.require("schema")?;
            schema(&inner, "schema", false)
        }
        other => {
            let path = format.path("type");
            let message = format!("{path} must be text, json_object or json_schema, got {:?}", Shown(other));
            Err(RequestError::field(path, message))
        }
    }
}

/// The name that OpenAI asks for. Nothing depends on it.
fn check_name(fields: &Fields<'_>) -> Result<(), RequestError> {
    let Some(name) = fields.text("name")? else { return Ok(()) };
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if (1..=SCHEMA_NAME_BYTES).contains(&name.len()) && name.bytes().all(known) {
        return Ok(());
    }
    let path = fields.path("name");
    let message =
        format!("{path} must have 1 to {SCHEMA_NAME_BYTES} letters, digits, `_` or `-`, got {:?}", Shown(name));
    Err(RequestError::field(path, message))
}

/// `text`: the schema may also be given as its JSON.
fn schema(fields: &Fields<'_>, name: &str, text: bool) -> Result<Option<WantedFormat>, RequestError> {
    let path = fields.path(name);
    match fields.require(name)? {
        schema @ Value::Object(_) => Ok(wanted(Format::Json(schema.clone()), path)),
        Value::String(text_of) if text => match serde_json::from_str(text_of) {
            Ok(schema @ Value::Object(_)) => Ok(wanted(Format::Json(schema), path)),
            _ => {
                let message = format!("{path} must be a JSON Schema or its JSON, got {:?}", Shown(text_of));
                Err(RequestError::field(path, message))
            }
        },
        other => Err(wrong_type(&path, "a JSON Schema", other)),
    }
}

/// GBNF or Lark, which are told apart by how they define a rule; or an object that says which.
fn grammar(fields: &Fields<'_>, name: &str) -> Result<Option<WantedFormat>, RequestError> {
    let path = fields.path(name);
    let inner = match fields.require(name)? {
        Value::String(text) if text.contains("::=") => {
            return Ok(wanted(Format::Grammar(GrammarSpec::Gbnf { text: text.clone() }), path));
        }
        Value::String(text) => return Ok(wanted(Format::Grammar(GrammarSpec::Lark { text: text.clone() }), path)),
        value @ Value::Object(_) => Fields::of(value, &path)?,
        other => return Err(wrong_type(&path, "a grammar, or an object with type and value", other)),
    };
    inner.require("type")?;
    inner.require("value")?;
    let text = |inner: &Fields<'_>| Ok::<_, RequestError>(inner.text("value")?.unwrap_or_default().to_owned());
    let spec = match inner.text("type")?.unwrap_or_default() {
        "gbnf" => GrammarSpec::Gbnf { text: text(&inner)? },
        "lark" => GrammarSpec::Lark { text: text(&inner)? },
        "regex" => GrammarSpec::Regex { pattern: text(&inner)? },
        "json" | "json_schema" => return schema(&inner, "value", true),
        other => {
            let path = inner.path("type");
            let message = format!("{path} must be gbnf, lark, regex or json, got {:?}", Shown(other));
            return Err(RequestError::field(path, message));
        }
    };
    Ok(wanted(Format::Grammar(spec), inner.path("value")))
}

fn regex(fields: &Fields<'_>, name: &str) -> Result<Option<WantedFormat>, RequestError> {
    let pattern = fields.text(name)?.unwrap_or_default().to_owned();
    Ok(wanted(Format::Grammar(GrammarSpec::Regex { pattern }), fields.path(name)))
}

fn choice(fields: &Fields<'_>, name: &str) -> Result<Option<WantedFormat>, RequestError> {
    let path = fields.path(name);
    let text = |(i, value): (usize, &Value)| {
        let path = format!("{path}[{i}]");
        value.as_str().map(str::to_owned).ok_or_else(|| wrong_type(&path, "a string", value))
    };
    let texts = fields.list(name)?.into_iter().flatten().enumerate().map(text).collect::<Result<_, _>>()?;
    Ok(wanted(Format::Grammar(GrammarSpec::Choice { texts }), path))
}

/// vLLM's, of which one is set.
fn structured(fields: &Fields<'_>, name: &str) -> Result<Option<WantedFormat>, RequestError> {
    let inner = Fields::of(fields.require(name)?, name)?;
    for option in STRUCTURED_OPTIONS {
        if inner.get(option).is_some_and(|value| *value != Value::Bool(false)) {
            let path = inner.path(option);
            let message = format!("{path} is not supported");
            return Err(RequestError::field(path, message));
        }
    }
    let readers: [(&str, Reader); 5] = [
        ("json", |fields, name| schema(fields, name, true)),
        ("json_object", |fields, name| {
            Ok(fields.flag(name)?.unwrap_or(false).then(|| wanted(any_object(), fields.path(name))).flatten())
        }),
        ("regex", regex),
        ("choice", choice),
        ("grammar", grammar),
    ];
    let mut found = None;
    for (kind, read) in readers {
        if inner.get(kind).is_none() {
            continue;
        }
        let Some(wanted) = read(&inner, kind)? else { continue };
        if found.replace(wanted).is_some() {
            let message = format!("{name} may hold one of json, json_object, regex, choice and grammar");
            return Err(RequestError::field(name, message));
        }
    }
    match found {
        Some(wanted) => Ok(Some(wanted)),
        None => {
            let message = format!("{name} must hold one of json, json_object, regex, choice and grammar");
            Err(RequestError::field(name, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: &Value) -> Result<Option<WantedFormat>, RequestError> {
        read(&Fields::of_body(body.as_object().unwrap()))
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
            assert_eq!(of(&body).unwrap(), wanted(any_object(), path), "{body}");
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
            assert_eq!(of(&body).unwrap(), wanted(Format::Grammar(spec), path), "{body}");
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
            let error = of(&body).unwrap_err().answer().body().error;
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
