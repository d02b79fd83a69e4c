//! Fields that say how far a generation goes, and what comes of them.
use std::time::Duration;

use camshaft_api::ApiLimits;
use camshaft_core::ids::Token;
use camshaft_core::message::{Ends, FinishReason, Start};
use camshaft_core::sampling::SamplingDefaults;
use camshaft_core::segments::Namespace;
use serde_json::{Value, json};

use crate::description::{Answered, check, description};
use crate::fixture::{LIMITS, MAX_TOKENS, Server};
use crate::pool::Step;

#[tokio::test]
async fn defaults_are_openais() {
    let server = Server::new();
    server.complete(json!({})).await;
    let start = server.start();
    let params = &start.params;
    assert_eq!((params.temperature, params.top_k, params.top_p, params.min_p), (1.0, 0, 1.0, 0.0));
    assert_eq!(start.max_tokens, 16);
    assert_eq!((start.ends, start.score_prompt), (Ends::default(), false));
    let chat = Server::new();
    chat.chat(json!({})).await;
    assert_eq!(chat.start().max_tokens, MAX_TOKENS, "a chat goes on to the server's bound");
    let short = Server::new();
    short.api.set_limits(ApiLimits { max_tokens: 9, ..LIMITS });
    short.complete(json!({})).await;
    assert_eq!(short.start().max_tokens, 9, "no more than the server's bound");
}

#[tokio::test]
async fn a_model_has_sampling_defaults_that_an_operator_changes_while_it_is_served() {
    let server = Server::new();
    let sampling = async || server.get("/v1/models/demo").await.json()["sampling"].clone();
    assert_eq!(sampling().await["temperature"], 1.0);
    let configured = SamplingDefaults { temperature: Some(0.8), top_k: Some(40), ..SamplingDefaults::default() };
    assert!(server.api.set_sampling("demo", configured));
    assert!(!server.api.set_sampling("none", configured));
    server.chat(json!({})).await;
    server.chat(json!({"temperature": 0.5, "top_k": 0})).await;
    let params = |start: &Start| (start.params.temperature, start.params.top_k);
    let got: Vec<_> = server.pool.starts.lock().unwrap().iter().map(params).collect();
    assert_eq!(got, [(0.8, 40), (0.5, 0)]);
    let expected = json!({"temperature": 0.8, "top_k": 40, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0,
        "repeat_penalty": 1.0, "repeat_last_n": 64, "frequency_penalty": 0.0, "presence_penalty": 0.0});
    assert_eq!(sampling().await, expected);
    assert_eq!(
        server.get("/v1/models/org/secret").await.json()["sampling"]["temperature"],
        1.0,
        "not of another model"
    );
}

#[tokio::test]
async fn submits_what_ends_a_generation_and_what_keeps_it_from_ending() {
    let server = Server::new();
    let more = json!({"stop_token_ids": [7, 257], "min_tokens": 3, "max_duration": 30});
    assert_eq!(server.chat(more).await.status, 200);
    let ends = server.start().ends;
    assert_eq!((ends.tokens, ends.min_tokens), (vec![Token(7), Token(257)], 3));
    let left = ends.max_duration.unwrap();
    assert!(left <= Duration::from_secs(30), "it counts from arrival: {left:?}");
    let (shape, message) = Server::new().chat(json!({"stop_token_ids": [258]})).await.error(400);
    assert_eq!(shape, "invalid_request_error - stop_token_ids[0]");
    assert!(message.starts_with("stop_token_ids[0] ") && message.contains("257, got 258"), "{message}");
    let (_, message) = Server::new().complete(json!({"min_tokens": 17})).await.error(400);
    assert_eq!(message, "min_tokens must be at most max_tokens (16), got 17");
}

#[tokio::test]
async fn the_servers_longest_duration_holds_for_all() {
    let server = Server::new();
    server.api.set_limits(ApiLimits { max_duration: Some(Duration::from_secs(9)), ..LIMITS });
    server.chat(json!({})).await;
    assert!(server.start().ends.max_duration.is_some_and(|left| left <= Duration::from_secs(9)));
    let (_, message) = server.chat(json!({"max_duration": 10})).await.error(400);
    assert_eq!(message, "max_duration must be between 0.001 and 9, got 10");
}

#[tokio::test]
async fn a_generation_whose_time_is_up_says_so() {
    let script = |_: &_| vec![Step::Started(0), Step::Text("so far"), Step::Finished(FinishReason::Expired, 6)];
    let note = json!({"finish_detail": "max_duration"});
    let server = Server::scripted(script);
    for body in [server.chat(json!({})).await.json(), server.complete(json!({})).await.json()] {
        let choice = &body["choices"][0];
        assert_eq!((&choice["finish_reason"], &choice["camshaft"]), (&json!("length"), &note), "{body}");
        assert_eq!(body["usage"]["completion_tokens"], 6);
    }
    for reply in [server.chat(json!({"stream": true})).await, server.complete(json!({"stream": true})).await] {
        let (events, done) = reply.events();
        let last = &events.last().unwrap()["choices"][0];
        assert!(done);
        assert_eq!((&last["finish_reason"], &last["camshaft"]), (&json!("length"), &note), "{last}");
        assert!(events[..events.len() - 1].iter().all(|event| event["choices"][0].get("camshaft").is_none()));
    }
    let ordinary = Server::new().chat(json!({})).await.json();
    assert!(ordinary["choices"][0].get("camshaft").is_none(), "{ordinary}");
}

#[tokio::test]
async fn answers_the_likeliest_of_the_choices_that_it_generates() {
    let script = |start: &Start| {
        let (text, logprob) =
            [("a", -2.0), ("bb", -0.5), ("c", -1.0), ("", -9.0), ("dd", -0.25), ("e", -3.0)][start.choice as usize];
        vec![Step::Started(0), Step::Likely(text, logprob), Step::Finished(FinishReason::Stop, text.len() as u32)]
    };
    let server = Server::scripted(script);
    let body = server.complete(json!({"prompt": ["x", "y"], "n": 2, "best_of": 3})).await.json();
    let choices = body["choices"].as_array().unwrap();
    let got: Vec<_> = choices.iter().map(|choice| (choice["index"].as_u64(), choice["text"].as_str())).collect();
    let expected = [(0, "bb"), (1, "c"), (2, "dd"), (3, "e")].map(|(index, text)| (Some(index), Some(text)));
    assert_eq!(got, expected, "by the mean of their tokens; one without any comes last");
    assert!(choices.iter().all(|choice| choice["logprobs"].is_null()), "nobody asked for them");
    assert_eq!(body["usage"]["completion_tokens"], 7, "of all that were generated");
    assert_eq!(body["usage"]["prompt_tokens"], 4, "each prompt once");
    let starts = server.pool.starts.lock().unwrap();
    assert!(starts.iter().all(|start| start.logprobs == Some(0)));
    let seeds: Vec<u64> = starts.iter().map(|start| start.params.seed.wrapping_sub(starts[0].params.seed)).collect();
    assert_eq!(seeds, [0, 1, 2, 0, 1, 2]);
}

#[tokio::test]
async fn choices_that_are_generated_are_bounded_as_those_that_are_answered() {
    let (shape, message) = Server::new().complete(json!({"prompt": ["x", "y"], "best_of": 65})).await.error(400);
    assert_eq!(shape, "invalid_request_error - best_of");
    assert_eq!(message, "prompts times best_of must be at most 128 choices, got 130");
}

#[tokio::test]
async fn only_requests_with_one_key_share_a_tenants_prefixes() {
    let server = Server::new();
    for key in [Value::Null, json!("a"), json!("b")] {
        server.chat(json!({ "prompt_cache_key": key })).await;
    }
    let whole = Namespace::Tenant("anonymous".into());
    let namespaces: Vec<Namespace> = server.pool.starts.lock().unwrap().iter().map(|start| start.root()).collect();
    assert_eq!(namespaces, [whole.clone(), whole.keyed("a"), whole.keyed("b")]);
    let close = json!({"model": "demo", "session_id": "s", "prompt_cache_key": "a"});
    assert_eq!(server.post("/v1/session/close", close).await.status, 200);
    assert_eq!(server.pool.closed_sessions.recv().unwrap().0, whole.keyed("a"));
}

#[tokio::test]
async fn an_answer_names_the_session_that_the_request_names() {
    let server = Server::new();
    let ask = json!({"session_id": "s1"});
    assert_eq!(server.chat(ask.clone()).await.json()["session_id"], "s1");
    assert_eq!(server.complete(ask).await.json()["session_id"], "s1");
    let events = server.chat(json!({"session_id": "s1", "stream": true})).await.events().0;
    assert!(events.iter().all(|event| event["session_id"] == "s1"));
    assert!(server.chat(json!({})).await.json().get("session_id").is_none());
}

#[tokio::test]
async fn a_callers_sessions_are_listed_each_once_the_next_to_expire_first() {
    let server = Server::new();
    let list = server.get("/v1/sessions?model=demo").await.json();
    check(description(&server).await, ("/v1/sessions", "get"), Answered::Whole, &list);
    let one = |session: &Value| {
        (session["id"].clone(), session["prompt_cache_key"].clone(), session["expires_in_seconds"].clone())
    };
    let got: Vec<_> = list["data"].as_array().unwrap().iter().map(one).collect();
    let expected = [("first", None, 1), ("both", None, 60), ("both", Some("k"), 70), ("last", Some("k"), 90)];
    assert_eq!(got, expected.map(|(id, key, seconds)| (json!(id), json!(key), json!(seconds))));
    assert_eq!(
        list["data"][0],
        json!({"id": "first", "object": "session", "model": "demo", "tokens": 30,
        "expires_in_seconds": 1, "prompt_cache_key": null, "adapted": false})
    );
    assert_eq!(server.get("/v1/sessions").await.error(400).0, "invalid_request_error - model", "there are two models");
    assert_eq!(server.get("/v1/sessions?model=none").await.error(404).0, "invalid_request_error model_not_found model");
}
