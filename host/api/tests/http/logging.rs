//! What the access log says of which requests, and how loudly.
use std::sync::{Arc, Mutex};

use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::fixture::{Server, request};

/// Keeps level and path of each line of the access log.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<(Level, String)>>>);

#[derive(Default)]
struct Path(Option<String>);

impl Visit for Path {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "path" {
            self.0 = Some(format!("{value:?}"));
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
        let mut path = Path::default();
        event.record(&mut path);
        self.0.lock().unwrap().extend(path.0.map(|path| (*event.metadata().level(), path)));
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
    let polled = ["/healthz", "/readyz", "/metrics", "/readyz", "/metrics"].map(|path| line(Level::DEBUG, path));
    let others = ["/v1/models", "/v1/chat/completions"].map(|path| line(Level::INFO, path));
    assert_eq!(*lines.0.lock().unwrap(), [&polled[..], &others[..]].concat());
}
