//! Requests of all shapes, from the bodies that clients send to those that the serving endpoints read.
mod messages;
mod native;
mod responses;

use serde_json::Value;

use super::*;
use crate::wire::json;

/// The body that the serving endpoint reads.
fn body_of(dialect: Dialect, request: &Value) -> Result<Value, String> {
    let read = dialect.read(json::parse(&request.to_string()).unwrap()).map_err(|error| error.to_string())?;
    Ok(serde_json::to_value(&read.body).unwrap())
}

/// What the client is told about a request that is refused.
fn refusal(dialect: Dialect, request: &Value) -> String {
    body_of(dialect, request).expect_err("it is refused")
}
