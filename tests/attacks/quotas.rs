//! Ways around quotas.
use camshaft_tests::{Setup, api_keys};
use serde_json::json;

use crate::{CHAT, COMPLETIONS, Row};

#[test]
fn regression_choices_and_prompts_in_lists_do_not_pass_bounds() {
    let row = Row::begin("128 choices under bounds of 1 and 8");
    let server = Setup::new()
        .plugin("auth", "10-api-keys", "auth-api-keys", &api_keys(&[("one", "concurrent-requests = 1"), ("free", "")]))
        .plugin("validator", "10-limits", "validator-limits", "[settings]\nmax-n = 8\n")
        .start();
    let prompts = vec!["a"; 9];
    let nine = json!({"model": "demo", "prompt": prompts, "max_tokens": 1});
    let refused = server.client.with_key("free").post(COMPLETIONS, &nine);
    assert_eq!(refused.status, 400, "{}", refused.text());
    let eight = json!({"model": "demo", "prompt": vec!["a"; 4], "n": 2, "max_tokens": 1});
    server.client.with_key("free").ask(COMPLETIONS, &eight);
    let two = json!({"model": "demo", "prompt": "a", "n": 2, "max_tokens": 1});
    let refused = server.client.with_key("one").post(COMPLETIONS, &two);
    assert_eq!(refused.status, 429, "{}", refused.text());
    let one = json!({"model": "demo", "prompt": "a", "max_tokens": 1});
    server.client.with_key("one").ask(COMPLETIONS, &one);
    row.end("refused");
}

#[test]
fn regression_refused_requests_and_other_keys_renew_no_quota() {
    let row = Row::begin("refused requests and a second key against 2 requests a minute");
    let limited = "requests-per-minute = 2\ntokens-per-minute = 50000";
    let settings = api_keys(&[("two", limited), ("free", "")]).replace("tenant-1", "tenant-0");
    let server = Setup::new().plugin("auth", "10-api-keys", "auth-api-keys", &settings).start();
    let hello = json!({"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": "Hello!"}]});
    let long = json!({"model": "demo", "prompt": "a ".repeat(500_000)});
    let mut statuses = Vec::new();
    for _ in 0..4 {
        assert_eq!(server.client.with_key("free").post(CHAT, &hello).status, 200);
        statuses.push(server.client.with_key("two").post(COMPLETIONS, &long).status);
    }
    // The first two are read, at a token for each 64 bytes, and found too long for the context.
    assert_eq!(statuses, [400, 400, 429, 429]);
    row.end("two of four were read");
}
