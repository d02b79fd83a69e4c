//! Answers against what `/openapi.json` says of them.
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use jsonschema::Validator;
use serde_json::{Value, json};
use tracing::instrument::WithSubscriber;
use tracing::subscriber::NoSubscriber;

use crate::fixture::{Reply, Server, named, request};

/// The description that a server gives.
pub(crate) async fn description(server: &Server) -> &'static Value {
    static DESCRIPTION: OnceLock<Value> = OnceLock::new();
    if let Some(description) = DESCRIPTION.get() {
        return description;
    }
    // It leaves no line in a log that a test reads.
    let reply =
        server.send_unchecked(request("GET", "/openapi.json", "")).with_subscriber(NoSubscriber::default()).await;
    assert_eq!((reply.status.as_u16(), reply.header("content-type")), (200, Some("application/json")));
    DESCRIPTION.get_or_init(|| reply.json())
}

/// What a reference leads to; else the value itself.
pub(crate) fn resolved<'a>(api: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str() {
        Some(target) => resolved(api, api.pointer(target.strip_prefix('#').unwrap()).unwrap()),
        None => schema,
    }
}

/// What an operation answers with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Answered {
    Whole,
    Event,
    /// With this status.
    Error(u16),
}

/// Has a schema forbid members that it leaves out.
fn close(schema: &mut Value) {
    let Some(schema) = schema.as_object_mut() else { return };
    for variants in ["oneOf", "anyOf"] {
        schema.get_mut(variants).and_then(Value::as_array_mut).into_iter().flatten().for_each(close);
    }
    if schema.contains_key("properties") {
        schema.insert("unevaluatedProperties".to_owned(), json!(false));
    }
}

type Validators = HashMap<(String, Answered), Arc<Validator>>;

/// Whatever is answered is what the description says, and has no member that it leaves out.
pub(crate) fn check(api: &Value, (path, method): (&str, &str), answered: Answered, answer: &Value) {
    static VALIDATORS: LazyLock<Mutex<Validators>> = LazyLock::new(Mutex::default);
    let make = || {
        let responses = &api["paths"][path][method]["responses"];
        let schema = match answered {
            Answered::Whole => &responses["200"]["content"]["application/json"]["schema"],
            Answered::Event => &responses["200"]["content"]["text/event-stream"]["x-event"],
            Answered::Error(status) => {
                let response = responses.get(status.to_string()).unwrap_or(&responses["default"]);
                &resolved(api, response)["content"]["application/json"]["schema"]
            }
        };
        let is_typed = schema.as_object().is_some_and(|schema| !schema.is_empty());
        assert!(is_typed || answered == Answered::Whole, "{path} {method} {answered:?}");
        let mut components = api["components"].clone();
        let schemas = components["schemas"].as_object_mut().unwrap().iter_mut();
        // Facts of a model are members of a larger object.
        schemas.filter(|(name, _)| !name.ends_with("Facts")).for_each(|(_, schema)| close(schema));
        let root = json!({"allOf": [schema], "unevaluatedProperties": !is_typed, "components": components});
        Arc::new(jsonschema::draft202012::new(&root).unwrap())
    };
    let mut validators = VALIDATORS.lock().unwrap();
    let key = (format!("{method} {path}"), answered);
    let validator = validators.entry(key).or_insert_with(make).clone();
    drop(validators);
    let errors: Vec<String> = validator.iter_errors(answer).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{method} {path} {answered:?} {errors:?}: {answer}");
}

/// Checks what a path was answered with, if the description has the path.
pub(crate) fn check_reply(api: &Value, (path, method): (&str, &str), reply: &Reply) {
    let event = |event: &Value| {
        // An error of Anthropic's is described as an event.
        let fails = event["error"].is_object() && event.get("type").is_none();
        check(api, (path, method), if fails { Answered::Error(500) } else { Answered::Event }, event);
    };
    let with_id = ["/v1/models/", "/v2/models/"].into_iter().find(|models| path.starts_with(models));
    let path = with_id.map_or_else(|| path.to_owned(), |models| format!("{models}{{id}}"));
    let path = path.as_str();
    match reply.header("content-type") {
        _ if api["paths"][path][method].is_null() => {}
        Some(media) if media.starts_with("text/event-stream") => match path {
            "/v1/responses" | "/v1/messages" => named(&reply.text).iter().for_each(|(_, payload)| event(payload)),
            _ => reply.events().0.iter().for_each(event),
        },
        Some("application/x-ndjson") => {
            reply.text.lines().for_each(|line| event(&serde_json::from_str(line).unwrap()));
        }
        Some("application/json") => {
            let status = reply.status.as_u16();
            let answered = if reply.status.is_success() { Answered::Whole } else { Answered::Error(status) };
            check(api, (path, method), answered, &reply.json());
        }
        _ => {}
    }
}
