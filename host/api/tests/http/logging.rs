//! What the access log says of which requests, and how loudly.
use std::sync::{Arc, Mutex};

use http_body_util::BodyExt;
use serde_json::json;
use tower::ServiceExt;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::fixture::{Server, chat_body, request};
use crate::pool::Step;

/// Keeps level, path and generated tokens of each line of the access log.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<(Level, String, u64)>>>);

#[derive(Default)]
struct Line {
    path: Option<String>,
    generated_tokens: u64,
}

impl Visit for Line {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "generated_tokens" {
            self.generated_tokens = value;
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
        let Line { path, generated_tokens } = line;
        self.0.lock().unwrap().extend(path.map(|path| (*event.metadata().level(), path, generated_tokens)));
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
    let lines = lines.0.lock().unwrap().iter().map(|(level, path, _)| (*level, path.clone())).collect::<Vec<_>>();
    let polled = ["/healthz", "/readyz", "/metrics", "/readyz", "/metrics"].map(|path| line(Level::DEBUG, path));
    let others = ["/v1/models", "/v1/chat/completions"].map(|path| line(Level::INFO, path));
    assert_eq!(lines, [&polled[..], &others[..]].concat());
}

#[tokio::test]
async fn regression_the_line_of_a_client_that_left_says_what_was_generated() {
    let lines = Lines::default();
    let _installed = tracing::subscriber::set_default(lines.clone());
    let generated = || lines.0.lock().unwrap().iter().map(|(_, _, tokens)| *tokens).collect::<Vec<_>>();
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
