//! What `async-openai` sees of a Camshaft server. Requests and answers are of its types. Arguments and report: `kit.py`.
mod kit;

use std::process::ExitCode;

use async_openai::types::chat::{
    ChatCompletionMessageToolCalls, ChatCompletionResponseStream, CreateChatCompletionRequest,
    CreateChatCompletionResponse, FinishReason,
};
use async_openai::types::embeddings::CreateEmbeddingRequest;
use async_openai::types::responses::{CreateResponse, OutputItem, ResponseStreamEvent};
use futures::StreamExt;
use serde_json::{Value, json};

use kit::{Checked, Model, Report, Served, check, refused};

type Failed = Box<dyn std::error::Error>;

const WEATHER: &str = "What is the weather in Oslo?";

/// A request of the client's own type, with more fields.
fn request(content: &str, more: Value) -> Result<CreateChatCompletionRequest, Failed> {
    let mut body = json!({"model": "demo", "messages": [{"role": "user", "content": content}]});
    if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
        body.extend(more);
    }
    Ok(serde_json::from_value(body)?)
}

async fn chat(client: &Model, content: &str, more: Value) -> Result<CreateChatCompletionResponse, Failed> {
    Ok(client.chat().create(request(content, more)?).await?)
}

async fn stream(client: &Model, content: &str, more: Value) -> Result<ChatCompletionResponseStream, Failed> {
    Ok(client.chat().create_stream(request(content, more)?).await?)
}

/// Values of closed sets: a model that was not trained on tools still finishes them.
fn place() -> Value {
    json!({
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}, "hourly": {"type": "boolean"}},
        "required": ["city", "hourly"],
        "additionalProperties": false,
    })
}

fn is_place(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok_and(|value| {
        let known = value["city"] == "Oslo" || value["city"] == "Rome";
        known && value["hourly"].is_boolean() && value.as_object().is_some_and(|members| members.len() == 2)
    })
}

fn tools() -> Value {
    let zone = json!({"type": "object", "properties": {"zone": {"type": "string", "enum": ["UTC", "CET"]}},
        "required": ["zone"], "additionalProperties": false});
    json!([
        {"type": "function", "function": {"name": "get_weather", "parameters": place(), "strict": true}},
        {"type": "function", "function": {"name": "get_time", "parameters": zone, "strict": true}},
    ])
}

/// Names of the tools that the first choice calls.
fn called(answer: &CreateChatCompletionResponse) -> Vec<&str> {
    let calls = answer.choices[0].message.tool_calls.as_deref().unwrap_or_default();
    calls
        .iter()
        .map(|call| match call {
            ChatCompletionMessageToolCalls::Function(call) => call.function.name.as_str(),
            ChatCompletionMessageToolCalls::Custom(call) => call.custom_tool.name.as_str(),
        })
        .collect()
}

async fn chats(served: &Served) -> Checked {
    let answer = chat(&served.client(&served.key), "What is 3 plus 4?", json!({"temperature": 0})).await?;
    let choice = &answer.choices[0];
    let content = choice.message.content.as_deref().unwrap_or_default();
    check(content.contains('7') && choice.finish_reason == Some(FinishReason::Stop), "a wrong answer", &answer)?;
    let usage = answer.usage.clone().ok_or("no usage")?;
    check(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, "a wrong usage", &usage)
}

async fn streams(served: &Served) -> Checked {
    let more = json!({"temperature": 0, "stream_options": {"include_usage": true}});
    let mut chunks = stream(&served.client(&served.key), "What is 3 plus 4?", more).await?;
    let (mut text, mut tokens) = (String::new(), 0);
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk?;
        text.extend(chunk.choices.iter().filter_map(|choice| choice.delta.content.as_deref()));
        tokens = chunk.usage.map_or(tokens, |usage| usage.completion_tokens);
    }
    check(text.contains('7') && tokens > 0, "a wrong stream", &(text, tokens))
}

async fn a_stream_that_is_left_ends_its_request(served: &Served) -> Checked {
    let mut chunks = stream(&served.client(&served.key), "Tell me a story.", json!({"max_tokens": 900})).await?;
    chunks.next().await.ok_or("no chunk")??;
    drop(chunks);
    served.until_idle().await
}

async fn calls_a_tool_where_it_must(served: &Served) -> Checked {
    let more = json!({"tools": tools(), "tool_choice": "required"});
    let answer = chat(&served.client(&served.key), WEATHER, more).await?;
    let called = called(&answer);
    check(!called.is_empty() && called.iter().all(|name| name.starts_with("get_")), "wrong calls", &answer)?;
    check(answer.choices[0].finish_reason == Some(FinishReason::ToolCalls), "a wrong reason", &answer)
}

async fn calls_the_tool_that_is_named(served: &Served) -> Checked {
    let more = json!({"tools": tools(), "tool_choice": {"type": "function", "function": {"name": "get_time"}}});
    let answer = chat(&served.client(&served.key), WEATHER, more).await?;
    let called = called(&answer);
    check(!called.is_empty() && called.iter().all(|name| *name == "get_time"), "wrong calls", &answer)
}

async fn calls_a_tool_or_answers_where_it_may(served: &Served) -> Checked {
    let more = json!({"tools": tools(), "max_tokens": 200});
    let answer = chat(&served.client(&served.key), WEATHER, more).await?;
    let text = answer.choices[0].message.content.as_deref().unwrap_or_default();
    check(!called(&answer).is_empty() || !text.is_empty(), "neither", &answer)
}

async fn streams_the_arguments_of_a_call(served: &Served) -> Checked {
    let more = json!({"tools": [tools()[0]], "tool_choice": "required", "parallel_tool_calls": false});
    let mut chunks = stream(&served.client(&served.key), WEATHER, more).await?;
    let (mut name, mut arguments) = (String::new(), String::new());
    while let Some(chunk) = chunks.next().await {
        for choice in chunk?.choices {
            for function in choice.delta.tool_calls.into_iter().flatten().filter_map(|piece| piece.function) {
                name.push_str(&function.name.unwrap_or_default());
                arguments.push_str(&function.arguments.unwrap_or_default());
            }
        }
    }
    check(name == "get_weather" && is_place(&arguments), "a wrong call", &(name, arguments))
}

async fn takes_the_result_of_a_tool_back(served: &Served) -> Checked {
    let client = served.client(&served.key);
    let first = chat(&client, WEATHER, json!({"tools": tools(), "tool_choice": "required"})).await?;
    let message = &first.choices[0].message;
    let mut messages = vec![json!({"role": "user", "content": WEATHER})];
    messages.push(json!({"role": "assistant", "content": message.content, "tool_calls": message.tool_calls}));
    for call in message.tool_calls.as_deref().unwrap_or_default() {
        let id = json!(call)["id"].clone();
        messages.push(json!({"role": "tool", "tool_call_id": id, "content": "sunny"}));
    }
    let more = json!({"messages": messages, "tools": tools(), "tool_choice": "none", "max_tokens": 200});
    let second = chat(&client, WEATHER, more).await?;
    check(second.choices[0].message.content.is_some() && called(&second).is_empty(), "no answer", &second)
}

async fn follows_a_schema(served: &Served) -> Checked {
    let format = json!({"type": "json_schema", "json_schema": {"name": "place", "schema": place(), "strict": true}});
    let answer = chat(&served.client(&served.key), WEATHER, json!({"response_format": format})).await?;
    check(is_place(answer.choices[0].message.content.as_deref().unwrap_or_default()), "not the schema", &answer)
}

async fn responds(served: &Served) -> Checked {
    let given = json!({"model": "demo", "input": "What is 3 plus 4?", "temperature": 0});
    let given: CreateResponse = serde_json::from_value(given)?;
    let client = served.client(&served.key);
    let answer = client.responses().create(given.clone()).await?;
    check(answer.output_text().is_some_and(|text| text.contains('7')), "a wrong answer", &answer)?;
    let mut events = client.responses().create_stream(given).await?;
    let mut last = None;
    while let Some(event) = events.next().await {
        last = Some(event?);
    }
    check(matches!(last, Some(ResponseStreamEvent::ResponseCompleted(_))), "a wrong last event", &last)
}

async fn responds_with_a_call(served: &Served) -> Checked {
    let tool = json!({"type": "function", "name": "get_weather", "parameters": place(), "strict": true});
    let given = json!({"model": "demo", "input": WEATHER, "tools": [tool], "tool_choice": "required"});
    let answer = served.client(&served.key).responses().create(serde_json::from_value(given)?).await?;
    let called = answer.output.iter().any(|item| match item {
        OutputItem::FunctionCall(call) => call.name == "get_weather" && is_place(&call.arguments),
        _ => false,
    });
    check(called, "no call", &answer)
}

async fn embeds(served: &Served) -> Checked {
    let client = served.client(&served.key);
    let model = served.embedding_model().await?;
    let given = json!({"model": model.as_deref().unwrap_or("demo"), "input": ["rain", "a shower"]});
    let given: CreateEmbeddingRequest = serde_json::from_value(given)?;
    let answer = client.embeddings().create(given).await;
    if model.is_none() {
        let error = refused(answer)?;
        return check(error.status_code.as_u16() == 400, "a wrong status", &error);
    }
    let answer = answer?;
    check(answer.data.len() == 2 && answer.data[0].embedding.len() > 1, "wrong vectors", &answer)
}

async fn lists_models(served: &Served) -> Checked {
    let client = served.client(&served.key);
    let models = client.models().list().await?;
    check(models.data.iter().any(|model| model.id == "demo"), "demo is missing", &models)?;
    let model = client.models().retrieve("demo").await?;
    check(model.id == "demo", "another model", &model)
}

async fn tells_errors_by_status_code_and_parameter(served: &Served) -> Checked {
    let client = served.client(&served.key);
    let ask =
        |client: Model, more: Value| async move { Ok::<_, Failed>(client.chat().create(request("Hi", more)?).await) };
    let error = refused(ask(client.clone(), json!({"temperature": 3})).await?)?;
    let param = error.api_error.param.as_deref();
    check(error.status_code.as_u16() == 400 && param == Some("temperature"), "a wrong error", &error)?;
    for (client, model, status, code) in [
        (served.client("sk-wrong"), "demo", 401, "invalid_api_key"),
        (served.client(&served.other_key), "demo", 403, "model_not_allowed"),
        (client, "nope", 404, "model_not_found"),
    ] {
        let error = refused(ask(client, json!({"model": model})).await?)?;
        let found = (error.status_code.as_u16(), error.api_error.code.as_deref());
        check(found == (status, Some(code)), "a wrong error", &error)?;
    }
    Ok(())
}

/// The client repeats what was refused with 429, after as long as `retry-after` says: else one of two requests a minute would fail.
async fn waits_as_long_as_the_server_says_for_a_quota(served: &Served) -> Checked {
    let client = served.client(&served.limited_key);
    for _ in 0..2 {
        client.chat().create(request("Hi", json!({"max_tokens": 2}))?).await?;
    }
    Ok(())
}

/// Checks each function, and notes it under its name.
macro_rules! all {
    ($served:expr, $report:expr, $($behaviour:ident),+ $(,)?) => {
        $($report.note(&stringify!($behaviour).replace('_', " "), $behaviour(&$served).await);)+
    };
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Some(served) = Served::from_arguments() else {
        eprintln!("arguments: URL KEY OTHER_KEY LIMITED_KEY ADMIN_URL");
        return ExitCode::from(64);
    };
    let mut report = Report::default();
    all!(
        served,
        report,
        chats,
        streams,
        a_stream_that_is_left_ends_its_request,
        calls_a_tool_where_it_must,
        calls_the_tool_that_is_named,
        calls_a_tool_or_answers_where_it_may,
        streams_the_arguments_of_a_call,
        takes_the_result_of_a_tool_back,
        follows_a_schema,
        responds,
        responds_with_a_call,
        embeds,
        lists_models,
        tells_errors_by_status_code_and_parameter,
        waits_as_long_as_the_server_says_for_a_quota,
    );
    if report.end() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
