//! What the access log says of which requests, and how loudly.
use std::sync::{Arc, Mutex};

use camshaft_core::message::WorkerError;
use http_body_util::BodyExt;
use serde_json::json;
use tower::ServiceExt;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::fixture::{Server, chat_body, request};
use crate::pool::Step;

/// Keeps each line of the access log.
#[derive(Debug, Clone, Default)]
struct Lines(Arc<Mutex<Vec<(Level, Line)>>>);

impl Lines {
    fn each<T>(&self, of: impl Fn(&(Level, Line)) -> T) -> Vec<T> {
        self.0.lock().unwrap().iter().map(of).collect()
    }
}

#[derive(Debug, Clone, Default)]
struct Line {
    path: Option<String>,
    status: u64,
    error: Option<String>,
    caller: Option<String>,
    user: Option<String>,
    session: Option<String>,
    generated_tokens: u64,
}

impl Visit for Line {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "generated_tokens" => self.generated_tokens = value,
            "status" => self.status = value,
            _ => {}
        }
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "error" => self.error = Some(value.to_owned()),
            "caller" => self.caller = Some(value.to_owned()),
            "user" => self.user = Some(value.to_owned()),
            "session" => self.session = Some(value.to_owned()),
            _ => {}
        }
    }
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "path" {
            self.path = Some(format!("{value:?}"));
        }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        if line.path.is_some() {
            self.0.lock().unwrap().push((*event.metadata().level(), line));
        }
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn regression_routes_that_machines_poll_do_not_fill_the_log() {
    let lines = Lines::default();
    let _installed = tracing::subscriber::set_default(lines.clone());
    let server = Server::new();
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(server.get(path).await.status, 200);
    }
    server.api.readiness.hold();
    assert_eq!(server.get("/readyz").await.status, 503);
    server.api.readiness.release();
    assert_eq!(server.send(request("POST", "/metrics", "")).await.status, 405);
    assert_eq!(server.get("/v1/models").await.status, 200);
    assert_eq!(server.chat(json!({})).await.status, 200);
    let line = |level, path: &str| (level, path.to_owned());
    let lines = lines.each(|(level, line)| (*level, line.path.clone().unwrap()));
    let polled = ["/healthz", "/readyz", "/metrics", "/readyz", "/metrics"].map(|path| line(Level::DEBUG, path));
    let others = ["/v1/models", "/v1/chat/completions"].map(|path| line(Level::INFO, path));
    assert_eq!(lines, [&polled[..], &others[..]].concat());
}

#[tokio::test]
async fn regression_the_line_of_a_client_that_left_says_what_was_generated() {
    let lines = Lines::default();
    let _installed = tracing::subscriber::set_default(lines.clone());
    let generated = || lines.each(|(_, line)| line.generated_tokens);
    let server = Server::new();
    assert_eq!(server.chat(json!({})).await.status, 200);
    assert_eq!(generated(), [5], "once");
    let server = Server::scripted(|_| vec![Step::Started(0), Step::Text("Hello"), Step::Hold]);
    let body = chat_body(json!({"stream": true})).to_string();
    let response = server.public.clone().oneshot(request("POST", "/v1/chat/completions", &body)).await.unwrap();
    let mut stream = response.into_body();
    let mut text = Vec::new();
    while !String::from_utf8_lossy(&text).contains("Hello") {
        text.extend(stream.frame().await.unwrap().unwrap().into_data().unwrap());
    }
    drop(stream);
    assert_eq!(generated(), [5, 5]);
}

#[tokio::test]
async fn regression_a_line_says_who_asked_and_what_went_wrong() {
    let lines = Lines::default();
    let _installed = tracing::subscriber::set_default(lines.clone());
    let server =
        Server::scripted(|_| vec![Step::Started(0), Step::Text("Hello"), Step::Failed(WorkerError::WorkerLost)]);
    assert_eq!(server.chat(json!({"stream": true})).await.status, 200);
    assert_eq!(server.chat(json!({"model": "none"})).await.status, 404);
    assert_eq!(server.get("/v1/models").await.status, 200);
    let said = lines.each(|(_, line)| (line.status, line.error.clone()));
    let code = |code: &str| Some(code.to_owned());
    assert_eq!(said, [(200, code("worker_lost")), (404, code("model_not_found")), (200, None)]);
    assert!(lines.each(|(_, line)| line.caller.clone()).iter().all(Option::is_some), "{lines:?}");
}

#[tokio::test]
async fn a_line_says_which_session_and_has_only_a_hash_of_the_end_user() {
    let lines = Lines::default();
    let _installed = tracing::subscriber::set_default(lines.clone());
    let server = Server::new();
    server.chat(json!({"user": "ann@example.org", "session_id": "s1"})).await;
    server.chat(json!({"safety_identifier": "ann@example.org"})).await;
    server.complete(json!({"user": "bo"})).await;
    server.chat(json!({"user": {"any": "thing"}})).await;
    server.post("/v1/session/close", json!({"model": "demo", "session_id": "s2"})).await;
    let sessions = lines.each(|(_, line)| line.session.clone());
    assert_eq!(sessions, [Some("s1".to_owned()), None, None, None, Some("s2".to_owned())]);
    let users = lines.each(|(_, line)| line.user.clone());
    let [Some(ann), Some(again), Some(bo), None, None] = &users[..] else { panic!("{users:?}") };
    assert!(ann == again && ann != bo, "{users:?}");
    assert!([ann, bo].iter().all(|hash| hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())));
}
