//! What the demo model does with tools and schemas, from the question to the answer.
use camshaft_tests::{Server, Setup};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn weather() -> Value {
    let parameters =
        json!({"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]});
    json!({"type": "function", "function": {"name": "get_weather", "description": "Get the current weather in a given location", "parameters": parameters}})
}

fn calculator() -> Value {
    let operation = json!({"type": "string", "enum": ["add", "subtract", "multiply", "divide"]});
    let number = json!({"type": "number"});
    let properties = json!({"operation": operation, "a": number, "b": number});
    let parameters = json!({"type": "object", "properties": properties, "required": ["operation", "a", "b"]});
    json!({"type": "function", "function": {"name": "calculator", "description": "Calculate with two numbers.", "parameters": parameters}})
}

/// The choice of a greedy chat.
fn choice(server: &Server, messages: &Value, more: (&str, Value)) -> Value {
    let mut body = json!({"model": "demo", "temperature": 0, "messages": messages});
    body[more.0] = more.1;
    server.client.ask(CHAT, &body)["choices"][0].clone()
}

/// Asks a question, gives the result of the call that comes, and returns the call's name and arguments, and the answer.
fn asked(server: &Server, question: &str, result: &str) -> (String, Value, String) {
    let tools = json!([weather(), calculator()]);
    let mut messages = json!([{"role": "user", "content": question}]);
    let call = choice(server, &messages, ("tools", tools.clone()));
    assert_eq!(call["finish_reason"], "tool_calls", "{call}");
    let message = &call["message"];
    let function = &message["tool_calls"][0]["function"];
    let arguments = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
    let id = message["tool_calls"][0]["id"].clone();
    let said = messages.as_array_mut().unwrap();
    said.extend([message.clone(), json!({"role": "tool", "tool_call_id": id, "content": result})]);
    let answer = choice(server, &messages, ("tools", tools));
    assert_eq!(answer["finish_reason"], "stop", "{answer}");
    (
        function["name"].as_str().unwrap().to_owned(),
        arguments,
        answer["message"]["content"].as_str().unwrap().to_owned(),
    )
}

#[test]
fn the_demo_model_calls_the_tool_that_a_question_is_for_and_answers_from_its_result() {
    let server = Setup::new().start();
    let (name, arguments, answer) =
        asked(&server, "What is the weather in Paris?", r#"{"temperature": 21, "condition": "sunny"}"#);
    assert_eq!((name.as_str(), arguments), ("get_weather", json!({"location": "Paris"})));
    assert!(answer.contains("sunny") && answer.contains("21"), "{answer}");
    let (name, arguments, answer) = asked(&server, "What is 3 plus 4?", "7");
    assert_eq!((name.as_str(), arguments), ("calculator", json!({"operation": "add", "a": 3, "b": 4})));
    assert!(answer.contains('7'), "{answer}");
    let failed = asked(&server, "What is the weather in Rome?", r#"{"error": "city not found"}"#).2;
    assert!(failed.contains("city not found"), "{failed}");
    let hello = choice(&server, &json!([{"role": "user", "content": "Hello!"}]), ("tools", json!([weather()])));
    assert_eq!(
        (&hello["finish_reason"], &hello["message"]["tool_calls"]),
        (&json!("stop"), &Value::Null),
        "no tool is for it"
    );
}

#[test]
fn the_demo_model_fills_a_schema_from_a_text() {
    let server = Setup::new().start();
    let properties = json!({"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}});
    let schema = json!({"type": "object", "properties": properties, "required": ["name", "age", "city"], "additionalProperties": false});
    let question = format!("Fill this schema: {schema}\nAda is 36 years old and lives in Paris.");
    let format = json!({"type": "json_schema", "json_schema": {"name": "person", "strict": true, "schema": schema}});
    let filled = choice(&server, &json!([{"role": "user", "content": question}]), ("response_format", format));
    let value: Value = serde_json::from_str(filled["message"]["content"].as_str().unwrap()).unwrap();
    assert_eq!(value, json!({"name": "Ada", "age": 36, "city": "Paris"}));
}
