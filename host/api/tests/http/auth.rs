//! What auth policies see, and what they say of the response.
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use camshaft_api::{ApiLimits, PeerCertificates};
use camshaft_core::policy::{
    Attributes, AuthOutcome, AuthRequest, Authentication, Marks, Principal, Priority, Reply, ValidateOutcome,
    Validation,
};
use futures_util::stream;
use serde_json::json;
use tower::ServiceExt;

use crate::fixture::{BODY_BYTES, LIMITS, Server, chat_body, request};
use crate::policies::{Rules, refusal};
use crate::pool::hello;

const CHAT: &str = "/v1/chat/completions";

fn reply(headers: &[(&str, &str)], retry_after: Option<Duration>) -> Reply {
    let mut reply = Reply::default();
    reply.retry_after = retry_after;
    headers.iter().for_each(|(name, value)| reply.set(name, (*value).to_owned()).unwrap());
    reply
}

fn replying(outcome: fn() -> AuthOutcome, reply: Reply) -> Server {
    Server::with(Rules::default().replying(move |_| Authentication { outcome: outcome(), reply: reply.clone() }), hello)
}

#[tokio::test]
async fn a_response_carries_the_headers_that_its_auth_policy_has_set() {
    let allow = || AuthOutcome::Allow(Principal::anonymous());
    let server = replying(allow, reply(&[("x-tier", "gold"), ("cache-control", "no-store")], Some(Duration::MAX)));
    for answer in [
        server.chat(json!({})).await,
        server.chat(json!({"stream": true})).await,
        server.chat(json!({"n": "many"})).await,
        server.get("/v1/models").await,
    ] {
        assert_eq!((answer.header("x-tier"), answer.header("cache-control")), (Some("gold"), Some("no-store")));
        assert_eq!(answer.header("retry-after"), None, "only a refusal tells to wait");
    }
    assert_eq!(server.get("/healthz").await.header("x-tier"), None, "nobody asked auth");
}

#[tokio::test]
async fn a_refusal_carries_headers_and_when_to_try_again() {
    let refuse = || AuthOutcome::Refuse(refusal(401, "no_key"));
    let wait = Some(Duration::from_millis(1001));
    let server = replying(refuse, reply(&[("www-authenticate", "Basic realm=\"a\""), ("x-why", "b")], wait));
    let answer = server.chat(json!({})).await;
    assert_eq!(answer.error(401).0, "authentication_error no_key model");
    assert_eq!((answer.header("www-authenticate"), answer.header("x-why")), (Some("Basic realm=\"a\""), Some("b")));
    assert_eq!(answer.header("retry-after"), Some("2"));
    let refuse = || AuthOutcome::Refuse(refusal(429, "later"));
    let answer = replying(refuse, Reply::default()).chat(json!({})).await;
    assert_eq!(answer.header("retry-after"), Some("1"), "unless it says otherwise");
}

#[tokio::test]
async fn certificates_that_the_listener_has_verified_reach_auth() {
    let seen: Arc<Mutex<Vec<AuthRequest>>> = Arc::default();
    let record = seen.clone();
    let rules = Rules::default().auth(move |request| {
        record.lock().unwrap().push(request.clone());
        AuthOutcome::Allow(Principal::anonymous())
    });
    let server = Server::with(rules, hello);
    let mut request = request("GET", "/v1/models", "");
    request.extensions_mut().insert(PeerCertificates(Arc::new(vec![vec![1], vec![2]])));
    server.send(request).await;
    server.get("/v1/models").await;
    let seen = seen.lock().unwrap();
    assert_eq!((&*seen[0].peer_certificates, seen[1].peer_certificates.len()), (&vec![vec![1], vec![2]], 0));
    assert!(seen.iter().all(|request| request.body_sha256.is_none()), "nobody asks for it");
}

/// A server whose auth asks for the digest of bodies, and refuses all; and what auth saw.
fn digesting(allows: bool) -> (Server, Arc<Mutex<Vec<String>>>) {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let record = seen.clone();
    let mut rules = Rules::default().auth(move |request| {
        let digest = request.body_sha256.expect("it was asked for");
        record.lock().unwrap().push(digest.iter().map(|byte| format!("{byte:02x}")).collect());
        match allows {
            true => AuthOutcome::Allow(Principal::anonymous()),
            false => AuthOutcome::Refuse(refusal(401, "no_key")),
        }
    });
    rules.wants_body_digest = true;
    (Server::with(rules, hello), seen)
}

#[tokio::test]
async fn a_body_is_read_before_auth_for_its_digest_and_is_served_as_it_was() {
    let (server, seen) = digesting(true);
    assert_eq!(server.chat(json!({})).await.status, 200);
    assert_eq!(server.get("/v1/models").await.status, 200);
    let plain = || request("POST", CHAT, "abc");
    assert_eq!(server.send(plain()).await.status, 400);
    let mut untyped = plain();
    untyped.headers_mut().remove("content-type");
    assert_eq!(server.send(untyped).await.status, 415);
    let seen = seen.lock().unwrap();
    assert_eq!(seen[1], "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "of nothing");
    assert_eq!(seen[2], "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "FIPS 180-4, \"abc\"");
}

#[tokio::test]
async fn a_body_that_is_read_before_auth_has_the_bounds_of_any_other() {
    let (server, seen) = digesting(false);
    let of = |bytes: usize| request("POST", CHAT, &" ".repeat(bytes));
    server.send(of(BODY_BYTES)).await.error(401);
    server.send(of(BODY_BYTES + 1)).await.error(413);
    let mut announced = of(1);
    announced.headers_mut().insert("content-length", (BODY_BYTES + 1).into());
    server.send(announced).await.error(413);
    assert_eq!(seen.lock().unwrap().len(), 1, "auth was not asked about those");
}

#[tokio::test(start_paused = true)]
async fn strangers_whose_bodies_are_read_before_auth_have_the_memory_of_one_tenant() {
    let (server, _) = digesting(false);
    server.api.set_limits(ApiLimits { bodies_bytes: 80 << 10, ..LIMITS });
    let half = || {
        let begun = stream::iter([Ok::<_, std::io::Error>(Bytes::from(vec![b' '; 9 << 10]))]);
        let body = Body::from_stream(futures_util::StreamExt::chain(begun, stream::pending()));
        request("POST", CHAT, "").map(|_| body)
    };
    let waiting: Vec<_> = (0..6).map(|_| tokio::spawn(server.public.clone().oneshot(half()))).collect();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let refused = waiting.iter().filter(|request| request.is_finished()).count();
    assert_eq!(refused, 2, "four take half of it");
    tokio::time::sleep(Duration::from_secs(130)).await;
    assert!(waiting.iter().all(|request| request.is_finished()), "and none waits for ever");
    server.send(request("POST", CHAT, "{}")).await.error(401);
}

#[tokio::test]
async fn attributes_and_priorities_travel_with_the_request() {
    let rules = Rules::default()
        .auth(|_| {
            let mut attributes = Attributes::default();
            attributes.set("tier", "gold".to_owned()).unwrap();
            AuthOutcome::Allow(Principal { attributes: Arc::new(attributes), ..Principal::anonymous() })
        })
        .marking(|request| {
            assert_eq!((request.marks.attributes.get("tier"), request.principal.as_str()), (Some("gold"), "anonymous"));
            assert_eq!(request.estimated_cost, 21 + 2 * 50, "the prompt once, and two choices");
            let mut marks = Marks { priority: Priority::High, ..request.marks.clone() };
            Arc::make_mut(&mut marks.attributes).set("topic", "tea".to_owned()).unwrap();
            Validation { outcome: ValidateOutcome::Amend(r#"{"seed": 7}"#.to_owned()), marks: Some(marks) }
        })
        .marking(|request| {
            assert_eq!((request.marks.attributes.get("topic"), request.marks.priority), (Some("tea"), Priority::High));
            ValidateOutcome::Accept.into()
        });
    let server = Server::with(rules, hello);
    assert_eq!(server.chat(json!({"n": 2, "max_tokens": 50})).await.status, 200);
    let starts = server.pool.starts.lock().unwrap();
    assert_eq!(starts.len(), 2);
    for start in &*starts {
        assert_eq!((start.priority, start.params.seed / 7), (Priority::High, 1));
        let attributes = &start.context.attributes;
        assert_eq!((attributes.get("tier"), attributes.get("topic")), (Some("gold"), Some("tea")));
        assert_eq!(start.context.body, None, "no policy reads it");
    }
    assert!(Arc::ptr_eq(&starts[0].context.attributes, &starts[1].context.attributes));
}

#[tokio::test]
async fn a_request_that_policies_read_is_kept_once_for_all_choices_with_amendments() {
    let mut rules = Rules::default().validator(|_| ValidateOutcome::Amend(r#"{"user": "ann"}"#.to_owned()));
    rules.keeps_bodies = true;
    let server = Server::with(rules, hello);
    assert_eq!(server.chat(json!({"n": 2})).await.status, 200);
    let starts = server.pool.starts.lock().unwrap();
    let bodies: Vec<_> = starts.iter().map(|start| start.context.body.clone().unwrap()).collect();
    assert!(Arc::ptr_eq(&bodies[0], &bodies[1]));
    let body: serde_json::Value = serde_json::from_str(&bodies[0]).unwrap();
    let mut wanted = chat_body(json!({"n": 2}));
    wanted["user"] = json!("ann");
    assert_eq!(body, wanted);
}
