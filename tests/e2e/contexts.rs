//! What policies tell one another and clients: attributes, headers of responses, verdicts that are used again.
use camshaft_tests::{Request, Response, Server, Setup, sha256_hex};
use serde_json::{Value, json};

use crate::errors::error_of;

const WELL: &str = "[policy]\ndeadline = \"5s\"\n[settings]\nbehave = \"well\"\n";
const TELL: &str = "[policy]\ndeadline = \"5s\"\n[settings]\nbehave = \"tell\"\n";

fn ask(server: &Server, headers: &[(&str, &str)]) -> Response {
    let headers = headers.iter().fold(Request::get("/v1/models"), |request, (name, value)| request.header(name, value));
    server.client.send(&headers)
}

fn completion() -> Value {
    json!({"model": "demo", "temperature": 0, "prompt": "1, 2, 3,", "max_tokens": 6})
}

fn calls(server: &Server, outcome: &str) -> f64 {
    let labels = [("hook", "auth"), ("plugin", "a"), ("outcome", outcome)];
    server.metrics().count("camshaft_policy_calls_total", &labels)
}

#[test]
fn attributes_go_from_auth_through_validators_to_samplers_and_filters() {
    let server = Setup::new()
        .guest("auth", "10-a", WELL)
        .guest("validator", "10-v", WELL)
        .guest("sampler", "10-s", TELL)
        .guest("filter", "10-f", TELL)
        .start();
    let request = Request::post("/v1/completions", &completion()).header("x-attribute", "tier=gold");
    let told = server.client.send(&request);
    assert_eq!((told.status, error_of(&told)["code"].clone()), (451, json!("told")), "{}", told.text());
    let message = error_of(&told)["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("demo anonymous 0 true Some(\"gold\") Some(\"6\") "), "{message}");
    server.wait_for_log("told: demo anonymous Some(");
    let wrong = ask(&server, &[("x-attribute", "Tier=gold")]);
    assert!(error_of(&wrong)["message"].as_str().unwrap().contains("\"Tier\""), "{}", wrong.text());
}

#[test]
fn headers_that_a_policy_sets_reach_the_client_and_no_others() {
    let server = Setup::new().guest("auth", "10-a", WELL).start();
    let answer = ask(&server, &[("x-reply", "x-tier=gold")]);
    assert_eq!((answer.status, answer.header("x-tier")), (200, Some("gold")));
    let refused = ask(&server, &[("x-reply", "deprecation=soon"), ("x-refuse-ms", "1500")]);
    assert_eq!((refused.status, refused.header("deprecation")), (429, Some("soon")));
    assert_eq!(refused.header("retry-after"), Some("2"));
    for wrong in ["set-cookie=a", "x-request-id=forged", "content-length=0", "x-a=é"] {
        let answer = ask(&server, &[("x-reply", wrong)]);
        assert_eq!((answer.status, error_of(&answer)["code"].clone()), (400, json!("bounds")), "{wrong}");
        assert_eq!((answer.header("set-cookie"), answer.header("x-a")), (None, None));
        assert_ne!(answer.header("x-request-id"), Some("forged"));
    }
}

#[test]
fn the_digest_that_auth_sees_is_that_of_the_body_as_it_was_sent() {
    let settings = WELL.replace("[policy]\n", "[policy]\nbody-digest = true\n");
    let server = Setup::new().guest("auth", "10-a", &settings).start();
    let body = format!("  {} ", completion());
    let request = Request::new("POST", "/v1/completions").header("content-type", "application/json");
    let request = request.body(body.clone()).header("x-digest", "1");
    let answer = server.client.send(&request);
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.header("x-body-sha256"), Some(sha256_hex(body.as_bytes()).as_str()));
    assert!(!answer.json()["choices"][0]["text"].as_str().unwrap().is_empty());
}

#[test]
fn a_verdict_is_used_again_but_for_no_other_caller_and_not_after_a_swap() {
    let server = Setup::new().guest("auth", "10-a", WELL).start();
    let caller = |key| [("authorization", key), ("x-reuse-ms", "600000")];
    // The start asks what becomes of callers without credentials.
    let at_start = calls(&server, "allow");
    for _ in 0..3 {
        assert_eq!(ask(&server, &caller("Bearer ann")).status, 200);
    }
    assert_eq!((calls(&server, "allow") - at_start, calls(&server, "reused")), (1.0, 2.0));
    for number in 0..1000 {
        let key = format!("Bearer guess-{number}");
        let guess = [("authorization", key.as_str()), ("x-reuse-ms", "600000"), ("x-refuse-ms", "1")];
        assert_eq!(ask(&server, &guess).status, 429, "no guess gets the verdict of another");
    }
    assert_eq!(ask(&server, &caller("Bearer ann")).status, 200);
    let counts = (calls(&server, "allow") - at_start, calls(&server, "refuse"), calls(&server, "reused"));
    assert_eq!(counts, (1.0, 1000.0, 3.0));
    // The new version refuses everybody.
    let before = server.policy("auth", "a").unwrap()["generation"].clone();
    server.policies.put("auth", "10-a.toml", TELL);
    server.wait_for_policy(("auth", "a"), |entry| entry["state"] == "active" && entry["generation"] != before);
    assert_eq!(ask(&server, &caller("Bearer ann")).status, 403);
}
