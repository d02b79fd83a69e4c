//! Guest instances that one tenant takes from the others.
use camshaft_tests::{Request, Setup, api_keys};
use serde_json::json;

use crate::{CHAT, COMPLETIONS, Row};

#[test]
fn regression_samplers_take_no_instance_from_auth() {
    let row = Row::begin("128 choices with all samplers, while another tenant authenticates");
    let mut setup =
        Setup::new().plugin("auth", "10-api-keys", "auth-api-keys", &api_keys(&[("greedy", ""), ("polite", "")]));
    let names: Vec<String> = (0..16).map(|i| format!("s{i}")).collect();
    for name in &names {
        setup = setup.plugin("sampler", &format!("10-{name}"), "sampler-standard", "");
    }
    let server = setup.start();
    let twice = json!({"model": "demo", "prompt": "a", "samplers": ["s0", "s0"]});
    assert_eq!(server.client.with_key("greedy").post(COMPLETIONS, &twice).status, 400);
    let all = json!({"model": "demo", "prompt": "a", "n": 128, "samplers": names, "max_tokens": 200, "stream": true});
    let greedy = server.client.with_key("greedy");
    let streams: Vec<_> = (0..2).map(|_| greedy.open(&Request::post(COMPLETIONS, &all))).collect();
    // Either there are instances for all choices, or the request is told that there are too few.
    assert!(streams.iter().all(|stream| [200, 503].contains(&stream.status)), "{streams:?}");
    let hello = json!({"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": "Hello!"}]});
    for _ in 0..20 {
        assert_eq!(server.client.with_key("polite").get("/v1/models").status, 200);
        let wrong = server.client.with_key("wrong").post(CHAT, &hello);
        assert_eq!(wrong.status, 401, "{}", wrong.text());
    }
    drop(streams);
    row.end("each of 40 was decided");
}
