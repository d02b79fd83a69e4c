//! Streams: order and shape of chunks, errors before and after the head, clients that leave.
use std::time::Duration;

use axum::http::StatusCode;
use camshaft_core::message::{FinishReason, WorkerError};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::fixture::{Server, chat_body, request};
use crate::pool::Step;

#[tokio::test]
async fn sends_role_content_end_and_done() {
    let reply = Server::new().chat(json!({"stream": true})).await;
    assert_eq!(reply.status, StatusCode::OK);
    assert_eq!(reply.header("content-type"), Some("text/event-stream; charset=utf-8"));
    assert_eq!(reply.header("cache-control"), Some("no-cache"));
    assert_eq!(reply.header("x-accel-buffering"), Some("no"));
    let (events, done) = reply.events();
    assert!(done);
    let choices: Vec<_> = events.iter().map(|event| event["choices"][0].clone()).collect();
    let choice =
        |delta: Value, reason: Value| json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": reason});
    let expected = [
        choice(json!({"role": "assistant", "content": "", "refusal": null}), Value::Null),
        choice(json!({"content": "Hel"}), Value::Null),
        choice(json!({"content": "lo"}), Value::Null),
        choice(json!({}), json!("stop")),
    ];
    assert_eq!(choices, expected);
    for event in &events {
        let keys: Vec<_> = event.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["id", "object", "created", "model", "system_fingerprint", "choices"]);
        assert_eq!((&event["id"], &event["object"]), (&events[0]["id"], &json!("chat.completion.chunk")));
    }
}

#[tokio::test]
async fn tells_who_waits_of_its_place_in_line_by_comments() {
    let script = |end: Step| vec![Step::Queued(3), Step::Queued(1), end, Step::Finished(FinishReason::Stop, 0)];
    let server = Server::scripted(move |_| script(Step::Started(0)));
    let reply = server.chat(json!({"stream": true})).await;
    assert!(reply.text.starts_with(": x-queue-position: 3\n\n: x-queue-position: 1\n\ndata: "), "{}", reply.text);
    assert!(reply.events().1);
    assert_eq!(server.chat(json!({})).await.status, 200);
    // An error while it waits comes in the stream that has begun.
    let server = Server::scripted(move |_| script(Step::Failed(WorkerError::DeadlineExceeded)));
    let reply = server.chat(json!({"stream": true})).await;
    assert_eq!(reply.status, 200);
    assert!(reply.text.contains("deadline_exceeded") && !reply.text.contains("[DONE]"), "{}", reply.text);
    assert_eq!(server.chat(json!({})).await.status, 504);
}

#[tokio::test]
async fn sends_usage_last_and_null_before_when_asked() {
    let more = json!({"stream": true, "stream_options": {"include_usage": true}});
    let (mut events, done) = Server::new().chat(more).await.events();
    let last = events.pop().unwrap();
    assert!(done && last["choices"] == json!([]) && last["usage"]["total_tokens"] == 26);
    assert!(events.iter().all(|event| event.as_object().unwrap()["usage"].is_null()));
}

#[tokio::test]
async fn interleaves_choices_by_index() {
    let server = Server::scripted(|start| {
        let text = ["a", "b", "c"][start.choice as usize];
        vec![Step::Started(0), Step::Text(text), Step::Text(text), Step::Finished(FinishReason::Length, 2)]
    });
    let (events, done) = server.chat(json!({"n": 3, "stream": true})).await.events();
    assert!(done);
    for (index, text) in ["a", "b", "c"].iter().enumerate() {
        let own = events.iter().map(|event| &event["choices"][0]).filter(|choice| choice["index"] == index);
        let own: Vec<_> = own.collect();
        assert_eq!(own[0]["delta"]["role"], "assistant");
        let texts: String = own[1..].iter().filter_map(|choice| choice["delta"]["content"].as_str()).collect();
        assert_eq!(texts, text.repeat(2));
        assert_eq!(own.last().unwrap()["finish_reason"], "length");
    }
}

#[tokio::test]
async fn streams_completions_and_log_probabilities() {
    let server = Server::scripted(|_| vec![Step::Scored("ab"), Step::Finished(FinishReason::Stop, 2)]);
    let (events, done) = server.complete(json!({"stream": true, "logprobs": 0})).await.events();
    assert!(done);
    assert_eq!(events[0]["object"], "text_completion");
    assert_eq!(events[0]["choices"][0]["text"], "ab");
    assert_eq!(events[0]["choices"][0]["logprobs"]["tokens"], json!(["a", "b"]));
    let last = json!({"text": "", "index": 0, "logprobs": null, "finish_reason": "stop"});
    assert_eq!(events.last().unwrap()["choices"], json!([last]));
}

#[tokio::test]
async fn answers_an_error_before_the_first_event_with_its_status() {
    let server = Server::scripted(|_| vec![Step::Failed(WorkerError::QueueFull)]);
    let reply = server.chat(json!({"stream": true})).await;
    assert_eq!(reply.error(429).0, "rate_limit_error queue_full -");
    assert_eq!(reply.header("content-type"), Some("application/json"));
}

#[tokio::test]
async fn tells_of_a_later_error_in_the_stream_and_ends_without_done() {
    let failed = Step::Failed(WorkerError::Engine("decode returned -3".into()));
    let server = Server::scripted(move |_| vec![Step::Started(0), Step::Text("Hel"), failed.clone()]);
    let reply = server.chat(json!({"stream": true})).await;
    assert_eq!(reply.status, 200);
    let (events, done) = reply.events();
    let error = json!({"error": {"message": "the engine failed", "type": "server_error", "param": null,
        "code": "server_error"}, "request_id": reply.header("x-request-id")});
    assert!(!done);
    assert_eq!(events.last(), Some(&error));
    assert!(!reply.text.contains("decode returned"));
}

#[tokio::test]
async fn tells_of_a_pool_that_goes_away_in_the_middle() {
    let server = Server::scripted(|_| vec![Step::Started(0), Step::Text("Hel")]);
    let (events, done) = server.chat(json!({"stream": true})).await.events();
    assert!(!done);
    assert_eq!(events.last().unwrap()["error"]["code"], "worker_lost");
}

#[tokio::test]
async fn a_client_that_leaves_a_stream_cancels_its_generations() {
    let server = Server::scripted(|_| vec![Step::Started(0), Step::Text("Hel"), Step::Hold]);
    let body = chat_body(json!({"stream": true, "n": 2})).to_string();
    let response = server.public.clone().oneshot(request("POST", "/v1/chat/completions", &body)).await.unwrap();
    let mut stream = response.into_body();
    let frame = stream.frame().await.unwrap().unwrap();
    assert!(frame.into_data().unwrap().starts_with(b"data: {"));
    drop(stream);
    let gone = |_| server.pool.cancelled.recv_timeout(Duration::from_secs(10)).unwrap();
    let ids: Vec<_> = (0..2).map(gone).collect();
    assert_ne!(ids[0], ids[1]);
    let series = r#"camshaft_requests_total{endpoint="/v1/chat/completions",status="499"}"#;
    assert_eq!(server.metric(series).await, 1.0);
}

#[tokio::test]
async fn a_client_that_leaves_before_the_first_event_cancels_too() {
    let server = Server::scripted(|_| vec![Step::Hold]);
    for (before, stream) in [true, false].into_iter().enumerate() {
        let body = chat_body(json!({"stream": stream})).to_string();
        let answer = server.public.clone().oneshot(request("POST", "/v1/chat/completions", &body));
        let begins = async {
            while server.pool.starts.lock().unwrap().len() == before {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        // Polled until it waits for the pool, then dropped as the server does with a closed connection.
        tokio::select! {
            answer = answer => panic!("{answer:?}"),
            () = begins => {}
        }
        server.pool.cancelled.recv_timeout(Duration::from_secs(10)).unwrap();
    }
    let series = r#"camshaft_requests_total{endpoint="/v1/chat/completions",status="499"}"#;
    assert_eq!(server.metric(series).await, 2.0);
}

#[tokio::test]
async fn a_quiet_stream_is_kept_alive() {
    let server = Server::scripted(|_| vec![Step::Started(0), Step::Hold]);
    let body = chat_body(json!({"stream": true})).to_string();
    let response = server.public.clone().oneshot(request("POST", "/v1/chat/completions", &body)).await.unwrap();
    let mut stream = response.into_body();
    stream.frame().await.unwrap().unwrap();
    tokio::time::pause();
    let frame = stream.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(&frame[..], b": keep-alive\n\n");
}

#[tokio::test]
async fn regression_a_stream_has_its_head_before_its_first_event() {
    let server = Server::scripted(|_| vec![Step::Hold]);
    let body = chat_body(json!({"stream": true})).to_string();
    tokio::time::pause();
    let begun = tokio::time::Instant::now();
    let response = server.public.clone().oneshot(request("POST", "/v1/chat/completions", &body)).await.unwrap();
    assert_eq!((response.status().as_u16(), begun.elapsed().as_secs()), (200, 2));
    let mut stream = response.into_body();
    for silence in [2, 17, 32] {
        let frame = stream.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!((&frame[..], begun.elapsed().as_secs()), (&b": keep-alive\n\n"[..], silence));
    }
    // What fails now is an event.
    server.api.cut_streams();
    let rest = stream.collect().await.unwrap().to_bytes();
    let rest = std::str::from_utf8(&rest).unwrap();
    assert!(rest.contains(r#""error":{"#) && !rest.contains("[DONE]"), "{rest}");
    let failed = r#"camshaft_stream_errors_total{endpoint="/v1/chat/completions",status="503"}"#;
    assert_eq!(server.metric(failed).await, 1.0);
}

#[tokio::test]
async fn streams_that_are_cut_at_shutdown_end_with_an_error() {
    let server = Server::scripted(|_| vec![Step::Started(0), Step::Text("Hel"), Step::Hold]);
    let body = chat_body(json!({"stream": true})).to_string();
    let response = server.public.clone().oneshot(request("POST", "/v1/chat/completions", &body)).await.unwrap();
    server.api.cut_streams();
    let rest = response.into_body().collect().await.unwrap().to_bytes();
    let rest = std::str::from_utf8(&rest).unwrap();
    assert!(rest.contains(r#""error":{"#) && !rest.contains("[DONE]"), "{rest}");
}
