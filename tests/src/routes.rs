//! The routes that need a key, as the binary names them.
use serde_json::json;

use crate::client::Request;
use crate::process::Setup;

/// Method and path of each route that `camshaft check` calls guarded. A path with a model's name has that of the demo.
///
/// # Panics
/// The command names none.
pub fn guarded_routes() -> Vec<(String, String)> {
    let checked = Setup::new().args(["--policy-dir", "none"]).run(&["check"]).stdout;
    let line = checked.lines().find(|line| line.contains("guarded by auth")).expect("check names the guarded routes");
    let (_, routes) = line.split_once(": ").expect("routes stand after a colon");
    for route in ["GET /metrics", "POST /v1/chat/completions", "POST /v1/embeddings", "POST /v1/session/close"] {
        assert!(routes.contains(route), "{route} in {line}");
    }
    let parts = |route: &str| {
        let (method, paths) = route.split_once(' ').expect("a method and a path");
        let paths = paths.split_once(" as ").map_or(paths, |(paths, _)| paths);
        let of = |path: &str| (method.to_owned(), path.replace("{*id}", "demo"));
        paths.split(" or ").map(of).collect::<Vec<_>>()
    };
    routes.split(", ").flat_map(parts).collect()
}

/// A request to each of them, with a body that each can read.
pub fn guarded_requests() -> Vec<Request> {
    let body = json!({"model": "demo", "prompt": "a", "input": "a", "text": "a", "tokens": [], "messages": []});
    let ask = |(method, path): (String, String)| match method.as_str() {
        "GET" => Request::get(&path),
        "POST" => Request::post(&path, &body),
        _ => panic!("{method} {path}"),
    };
    guarded_routes().into_iter().map(ask).collect()
}
