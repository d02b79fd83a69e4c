//! Plain completions, tokens and the list of models.
use camshaft_tests::{Server, Setup};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";

fn serve() -> Server {
    Setup::new().start()
}

fn complete(server: &Server, prompt: &Value, more: Value) -> Value {
    let mut body = json!({"model": "demo", "temperature": 0, "max_tokens": 12, "prompt": prompt});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.client.ask(COMPLETIONS, &body)
}

fn tokens(server: &Server, text: &str, add_special: bool) -> Vec<u64> {
    let body = json!({"model": "demo", "text": text, "add_special": add_special});
    let answer = server.client.ask("/v1/tokenize", &body);
    answer["tokens"].as_array().unwrap().iter().map(|token| token.as_u64().unwrap()).collect()
}

#[test]
fn a_prompt_may_be_text_tokens_or_a_list_of_either() {
    let server = serve();
    // Counting has no near ties, which a different batch composition could decide differently.
    let prompts = ["1, 2, 3, 4,", "21, 22, 23,"];
    let alone: Vec<String> = prompts
        .iter()
        .map(|prompt| {
            let answer = complete(&server, &json!(prompt), json!({}));
            assert_eq!(answer["object"], "text_completion");
            let text = answer["choices"][0]["text"].as_str().unwrap();
            assert!(!text.is_empty() && !text.starts_with(prompt), "only what follows: {text:?}");
            text.to_owned()
        })
        .collect();
    let ids: Vec<Vec<u64>> = prompts.iter().map(|prompt| tokens(&server, prompt, true)).collect();
    let by_tokens = complete(&server, &json!(ids[0]), json!({}));
    assert_eq!(by_tokens["choices"][0]["text"], alone[0].as_str());
    assert_eq!(by_tokens["usage"]["prompt_tokens"], ids[0].len());
    for list in [json!(prompts), json!(ids)] {
        let answer = complete(&server, &list, json!({"n": 2}));
        let choices = answer["choices"].as_array().unwrap();
        let got: Vec<_> = choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect();
        assert_eq!(got, [&alone[0], &alone[0], &alone[1], &alone[1]], "each prompt's choices, prompt by prompt");
        assert!((0..4).all(|index| choices[index]["index"] == index));
        assert_eq!(answer["usage"]["prompt_tokens"], ids[0].len() + ids[1].len(), "each prompt counts once");
    }
}

#[test]
fn a_streamed_completion_has_the_same_text_and_echo_repeats_the_prompt() {
    let server = serve();
    let prompt = "Once upon a time";
    let whole = complete(&server, &json!(prompt), json!({}));
    let text = whole["choices"][0]["text"].as_str().unwrap();
    let body = json!({"model": "demo", "temperature": 0, "max_tokens": 12, "prompt": prompt, "stream": true});
    let streamed = server.client.stream(COMPLETIONS, &body).finish();
    assert!(streamed.is_good());
    assert_eq!(streamed.text(0), text);
    assert_eq!(streamed.finish_reason(0), Some("length"));
    let echoed = complete(&server, &json!(prompt), json!({"echo": true}));
    assert_eq!(echoed["choices"][0]["text"], format!("{prompt}{text}"));
}

#[test]
fn log_probabilities_come_as_parallel_lists() {
    let server = serve();
    let answer = complete(&server, &json!("1, 2, 3,"), json!({"logprobs": 5, "max_tokens": 6}));
    let logprobs = &answer["choices"][0]["logprobs"];
    let pieces: Vec<&str> = logprobs["tokens"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    assert_eq!(pieces.concat(), answer["choices"][0]["text"].as_str().unwrap());
    assert_eq!(answer["choices"][0]["finish_reason"], "length", "no end token, which is counted but has no text");
    let generated = answer["usage"]["completion_tokens"].as_u64().unwrap() as usize;
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(logprobs[list].as_array().unwrap().len(), generated, "{list}");
    }
    let mut offset = 0;
    for (index, piece) in pieces.iter().enumerate() {
        assert_eq!(logprobs["text_offset"][index], offset, "in characters");
        offset += piece.chars().count();
        let drawn = logprobs["token_logprobs"][index].as_f64().unwrap();
        let top = logprobs["top_logprobs"][index].as_object().unwrap();
        let best = top.values().map(|value| value.as_f64().unwrap()).fold(f64::MIN, f64::max);
        assert!(drawn <= 1e-4 && (best - drawn).abs() < 1e-4, "greedy draws the best: {drawn}, {best}");
    }
}

#[test]
fn any_text_survives_tokenizing_and_back() {
    let server = serve();
    let mut texts: Vec<String> = [
        "",
        " ",
        "  a  b ",
        "\n\t\r\n",
        "\0\u{1}\u{7f}",
        "Ünïcödé",
        "日本語のテキスト",
        "🏳️‍🌈 e\u{301}",
        "\u{FFFD}\u{10FFFF}\u{200B}",
        "<|bos|><|end|><|user|>",
        "a<|end|>b",
        "{\"json\": [1, 2]}",
        "1234567890",
    ]
    .map(str::to_owned)
    .to_vec();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..40 {
        texts.push((0..20).filter_map(|_| char::from_u32(random(&mut state) as u32 & 0x1f_ffff)).collect());
        texts.push((0..20).filter_map(|_| char::from_u32(random(&mut state) as u32 & 0xff)).collect());
    }
    for text in texts {
        let answer = server.client.ask("/v1/tokenize", &json!({"model": "demo", "text": text}));
        let back = server.client.ask("/v1/detokenize", &json!({"model": "demo", "tokens": answer["tokens"]}));
        assert_eq!(back["text"], text.as_str());
        let offsets = answer["offsets"].as_array().unwrap();
        assert_eq!(offsets.len(), answer["tokens"].as_array().unwrap().len());
        let mut end = 0;
        for span in offsets {
            assert_eq!(span[0], end, "{text:?}: {offsets:?}");
            end = span[1].as_u64().unwrap();
        }
        assert_eq!(end, text.len() as u64, "the tokens cover {text:?}, in bytes");
    }
}

/// xorshift64.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn models_are_listed_and_found_by_their_ids() {
    let server = serve();
    let list = server.client.get("/v1/models").json();
    assert_eq!(list["object"], "list");
    let [model] = &list["data"].as_array().unwrap()[..] else { panic!("one model: {list}") };
    assert_eq!((&model["id"], &model["object"]), (&json!("demo"), &json!("model")));
    assert!(model["created"].is_u64() && model["owned_by"].is_string());
    let shown = server.client.get("/v1/models/demo").json();
    for (key, value) in model.as_object().unwrap() {
        assert_eq!(shown[key], *value, "{shown}");
    }
    assert_eq!((&shown["task"], &shown["context_tokens"]), (&json!("generate"), &json!(1024)), "{shown}");
    let unknown = server.client.get("/v1/models/nope");
    assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (404, &json!("model_not_found")));
}

#[test]
fn health_readiness_and_metrics_answer_under_all_their_names() {
    let server = serve();
    for path in ["/healthz", "/readyz", "/health", "/ready", "/metrics"] {
        assert_eq!(server.client.get(path).status, 200, "{path}");
    }
    complete(&server, &json!("1, 2,"), json!({}));
    server.wait_until_idle();
    let metrics = server.metrics();
    let model = &[("model", "demo")][..];
    assert_eq!(metrics.get("camshaft_requests_total", &[("endpoint", COMPLETIONS), ("status", "200")]), Some(1.0));
    assert_eq!(metrics.get("camshaft_generated_tokens_total", model), Some(12.0));
    assert!(metrics.count("camshaft_prompt_tokens_total", model) > 2.0);
    for histogram in ["request_duration", "queue_duration", "time_to_first_token", "inter_token_latency"] {
        assert!(metrics.count(&format!("camshaft_{histogram}_seconds_count"), &[]) >= 1.0, "{histogram}");
    }
    assert!(metrics.count("camshaft_batch_tokens_count", &[]) >= 12.0);
    assert_eq!(metrics.get("camshaft_prompt_tokens_cached_total", model), Some(0.0));
    let kv = |state| metrics.get("camshaft_kv_tokens", &[("state", state)]).expect("a state of the KV cache");
    assert_eq!((kv("free"), kv("cached"), kv("held")), (32768.0, 0.0, 0.0));
    assert_eq!(metrics.get("camshaft_kv_usage_ratio", &[]), Some(0.0));
    assert_eq!(metrics.get("camshaft_worker_up", &[("worker", "0")]), Some(1.0));
}

#[test]
fn the_admin_pages_are_not_on_the_public_listener() {
    let server = serve();
    for path in ["/admin/policies", "/admin/models"] {
        assert_eq!(server.admin.get(path).status, 200, "{path}");
        assert_eq!(server.client.get(path).status, 404, "{path}");
    }
}
