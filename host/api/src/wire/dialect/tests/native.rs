//! The server's own generations.
use axum::http::HeaderMap;
use serde_json::{Value, json};

use super::{body_of, refusal};
use crate::wire::dialect::Dialect::Native;
use crate::wire::dialect::Framing;

fn body(request: &Value) -> Value {
    body_of(Native(Framing::Unspecified), request).unwrap()
}

#[test]
fn a_prompt_is_a_text_or_tokens() {
    let got = body(&json!({"model": "demo", "prompt": "ab", "session_id": "s", "top_k": 3, "n": 1}));
    assert_eq!(got, json!({"model": "demo", "prompt": "ab", "session_id": "s", "top_k": 3, "stream": false}));
    assert_eq!(body(&json!({"tokens": [1, 2]})), json!({"prompt": [1, 2], "stream": false}));
    let check = |request: Value, expected: &str| assert_eq!(refusal(Native(Framing::Unspecified), &request), expected);
    check(json!({}), "prompt");
    check(json!({"prompt": "a", "tokens": [1]}), "tokens");
    check(json!({"prompt": ["a"]}), "prompt");
    check(json!({"tokens": "a"}), "tokens");
    for (bad, at) in [(json!([[1], [2]]), 0), (json!(["a", "b"]), 0), (json!([1, [2]]), 1), (json!([5, null]), 1)] {
        check(json!({ "tokens": bad }), &format!("tokens[{at}]"));
    }
    check(json!({"tokens": [-1]}), "tokens[0]");
    check(json!({"tokens": [1.5]}), "tokens[0]");
    check(json!({"tokens": []}), "tokens");
    check(json!({"prompt": "a", "n": 2}), "n");
    check(json!({"messages": [1]}), "messages");
}

#[test]
fn the_accept_header_says_how_an_answer_is_sent() {
    let framing = |accept: &str| {
        let mut headers = HeaderMap::new();
        headers.insert("accept", accept.parse().unwrap());
        Framing::of(&headers)
    };
    assert_eq!(Framing::of(&HeaderMap::new()), Framing::Unspecified);
    assert_eq!(framing("*/*"), Framing::Unspecified);
    assert_eq!(framing("text/event-stream;q=0"), Framing::Unspecified);
    assert_eq!(framing("application/json, text/event-stream"), Framing::Unspecified);
    assert_eq!(framing("application/json;q=0.5, text/event-stream; q=0.9, */*;q=0.1"), Framing::Events);
    assert_eq!(framing("application/json;q=1, application/x-ndjson;q=0.1"), Framing::Unspecified);
    assert_eq!(framing("text/event-stream;q=x, application/x-ndjson"), Framing::Lines);
    assert_eq!(framing("application/json"), Framing::Unspecified);
    assert_eq!(framing("text/html, Application/X-NDJSON;q=0.5"), Framing::Lines);
    assert_eq!(framing("text/event-stream"), Framing::Events);
    let streams = |framing: Framing, more: Value| {
        let mut request = json!({"prompt": "a"});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body_of(Native(framing), &request).unwrap()["stream"] == json!(true)
    };
    assert!(!streams(Framing::Unspecified, json!({})) && streams(Framing::Unspecified, json!({"stream": true})));
    assert!(streams(Framing::Lines, json!({})) && streams(Framing::Events, json!({})));
    assert!(!streams(Framing::Lines, json!({"stream": false})), "the body has precedence");
}
