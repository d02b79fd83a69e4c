//! Requests of all shapes, from the bodies that clients send to those that the serving endpoints read.
mod messages;
mod native;
mod responses;

use serde_json::Value;

use super::*;

/// The body that the serving endpoint reads.
fn body_of(dialect: Dialect, request: &Value) -> Result<Value, String> {
    let read = dialect.read(&request.to_string()).map_err(|error| error.to_string())?;
    // What a validator sees can be read as a client's own: no field comes twice, and all is within its bounds.
    let text = match read {
        Served::Chat(converted) => converted.body.patched("{}").unwrap().to_json(),
        Served::Completion(converted) => converted.body.patched("{}").unwrap().to_json(),
    };
    Ok(serde_json::from_str(&text).unwrap())
}

/// The field at fault of a request that is refused.
fn refusal(dialect: Dialect, request: &Value) -> String {
    let error = dialect.read(&request.to_string()).expect_err("it is refused");
    let error = error.answer().note().object.clone();
    assert!(error.message.chars().count() < 600, "a client's value is cut: {}", error.message);
    error.param.unwrap_or_default()
}

/// What is left out of a chat.
fn left_out(dialect: Dialect, request: &Value) -> Vec<&'static str> {
    match dialect.read(&request.to_string()).unwrap() {
        Served::Chat(converted) => converted.left_out,
        Served::Completion(converted) => converted.left_out,
    }
}
