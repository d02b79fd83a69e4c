//! Filters on the demo model: what goes out, streamed and not, and what is counted.
use camshaft_tests::{Server, Setup, Stream, eventually};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn serve(filters: &[(&str, &str, &str)]) -> Server {
    let mut setup = Setup::new();
    for (name, package, settings) in filters {
        setup = setup.plugin("filter", name, package, settings);
    }
    setup.start()
}

/// What a client got of each choice, in either way.
#[derive(Debug, Default, PartialEq)]
struct Got {
    texts: Vec<String>,
    reasons: Vec<String>,
    completion_tokens: u64,
}

fn ask(server: &Server, body: &Value, streamed: bool) -> Got {
    let mut body = body.clone();
    let n = body["n"].as_u64().unwrap_or(1);
    if streamed {
        (body["stream"], body["stream_options"]) = (json!(true), json!({"include_usage": true}));
        let all = server.client.stream(COMPLETIONS, &body).finish();
        assert!(all.is_good(), "{:?}", all.error());
        let usage = all.values().last().unwrap()["usage"]["completion_tokens"].as_u64().unwrap();
        let reasons = (0..n).map(|choice| all.finish_reason(choice).unwrap_or_default().to_owned());
        return Got {
            texts: (0..n).map(|choice| all.text(choice)).collect(),
            reasons: reasons.collect(),
            completion_tokens: usage,
        };
    }
    let answer = server.client.ask(COMPLETIONS, &body);
    let choices = answer["choices"].as_array().unwrap();
    let field = |choice: &Value, name: &str| choice[name].as_str().unwrap().to_owned();
    Got {
        texts: choices.iter().map(|choice| field(choice, "text")).collect(),
        reasons: choices.iter().map(|choice| field(choice, "finish_reason")).collect(),
        completion_tokens: answer["usage"]["completion_tokens"].as_u64().unwrap(),
    }
}

/// Words of nearly every story of the demo model.
const BANNED: [&str; 3] = ["the", "was", " and "];
const TOKENS: u64 = 24;
const CHOICES: u64 = 4;

fn story(seed: u64) -> Value {
    json!({"model": "demo", "prompt": "Once upon a time", "seed": seed, "max_tokens": TOKENS, "n": CHOICES, "temperature": 1,
        "ignore_eos": true})
}

fn has_banned(text: &str) -> bool {
    let folded = text.to_ascii_lowercase();
    BANNED.iter().any(|phrase| folded.contains(phrase))
}

#[test]
fn phrases_that_are_rewound_never_come_out_in_a_thousand_sampled_streams_and_the_text_goes_on() {
    let settings = format!("[policy]\ndeadline = \"5s\"\n[settings]\nphrases = {BANNED:?}\n");
    let server = serve(&[("10-rewind", "filter-rewind-phrases", &settings), ("20-mask", "filter-mask-secrets", "")]);
    // Each seed is asked for twice, so a thousand streams of each kind have the same thousand texts.
    let requests = 1000 / CHOICES;
    let (clients, per_client) = (10, requests / 10);
    let count = std::thread::scope(|scope| {
        let running: Vec<_> = (0..clients)
            .map(|client| {
                let server = &server;
                scope.spawn(move || {
                    let mut texts = 0;
                    for seed in client * per_client..(client + 1) * per_client {
                        for streamed in [true, false] {
                            let got = ask(server, &story(seed * 100), streamed);
                            for text in &got.texts {
                                assert!(!has_banned(text), "{text:?}");
                                assert!(text.len() > 20, "it goes on: {text:?}");
                            }
                            assert!(got.reasons.iter().all(|reason| reason == "length"), "{got:?}");
                            assert_eq!(got.completion_tokens, TOKENS * CHOICES, "what was taken back is not counted");
                            texts += got.texts.len();
                        }
                    }
                    texts
                })
            })
            .collect();
        running.into_iter().map(|client| client.join().unwrap()).sum::<usize>()
    });
    assert_eq!(count, 2000);
    // A worker counts what it did after its answer is out.
    server.wait_until_idle();
    let rewinds = server.metrics().count("camshaft_filter_rewinds_total", &[]);
    let taken_back = server.metrics().count("camshaft_filter_tokens_taken_back_total", &[]);
    let verdicts = server.metrics().count("camshaft_policy_calls_total", &[("hook", "filter"), ("outcome", "rewind")]);
    assert!(rewinds > 2000.0 && taken_back >= rewinds && verdicts == rewinds, "{rewinds} {taken_back} {verdicts}");
    // The model says them all the time by itself.
    let plain = Setup::new().start();
    let texts: Vec<String> = (0..5).flat_map(|seed| ask(&plain, &story(seed * 100), false).texts).collect();
    assert!(texts.iter().filter(|text| has_banned(text)).count() >= 8, "{texts:?}");
}

fn counting(more: Value) -> Value {
    let mut body = json!({"model": "demo", "prompt": "1, 2, 3,", "temperature": 0, "max_tokens": 40});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn stop_strings_and_log_probabilities_are_right_beside_a_filter_that_replaces() {
    let plain = Setup::new().start();
    let redact = "[settings]\npatterns = [\"5\"]\nreplacement = \"<é>\"\n";
    let server = serve(&[("10-deny", "filter-deny-patterns", redact)]);
    let body = counting(json!({"stop": ["8", "5, 7"], "logprobs": 2}));
    let before = plain.client.ask(COMPLETIONS, &body)["choices"][0].clone();
    let after = server.client.ask(COMPLETIONS, &body)["choices"][0].clone();
    let (text, expected) = (after["text"].as_str().unwrap(), before["text"].as_str().unwrap().replace('5', "<é>"));
    assert!(text.contains("<é>") && !text.contains('8'), "{text}");
    assert_eq!((text, &after["finish_reason"]), (expected.as_str(), &before["finish_reason"]));
    let listed = |choice: &Value, name: &str| choice["logprobs"][name].as_array().unwrap().clone();
    let kept: Vec<Value> =
        listed(&before, "tokens").into_iter().filter(|token| !token.as_str().unwrap().contains('5')).collect();
    assert_eq!(listed(&after, "tokens"), kept, "those that spell the digit are left out");
    let chars: Vec<char> = text.chars().collect();
    for (token, offset) in listed(&after, "tokens").iter().zip(listed(&after, "text_offset")) {
        let (token, offset) = (token.as_str().unwrap(), offset.as_u64().unwrap() as usize);
        let there: String = chars.iter().skip(offset).take(token.chars().count()).collect();
        // The last token may be cut by the stop string.
        assert!(token.starts_with(&there) && !there.is_empty(), "{token:?} at {offset} of {text:?}");
    }
    assert_eq!(ask(&server, &body, true).texts, [text]);
    let mut chat = json!({"model": "demo", "temperature": 0, "max_tokens": 60, "logprobs": true,
        "messages": [{"role": "user", "content": "Count from 1 to 18."}]});
    let answer = server.client.ask(CHAT, &chat)["choices"][0].clone();
    let whole = answer["message"]["content"].as_str().unwrap().to_owned();
    assert_eq!(
        whole,
        plain.client.ask(CHAT, &chat)["choices"][0]["message"]["content"].as_str().unwrap().replace('5', "<é>")
    );
    chat["stream"] = json!(true);
    assert_eq!(server.client.stream(CHAT, &chat).finish().text(0), whole);
}

#[test]
fn a_filter_that_finishes_says_so_and_others_take_part() {
    let finish = "[settings]\npatterns = [\"7\"]\naction = \"finish\"\n";
    let mask = "[settings]\npatterns = [\"[45], \"]\nreplacement = \"_\"\n";
    let server = serve(&[("10-deny", "filter-deny-patterns", finish), ("20-mask", "filter-deny-patterns", mask)]);
    let (whole, streamed) =
        (ask(&server, &counting(json!({"n": 2})), false), ask(&server, &counting(json!({"n": 2})), true));
    assert_eq!(whole.reasons, ["content_filter", "content_filter"]);
    assert!(whole.texts.iter().all(|text| text == " __6, " || text == " __6,"), "{:?}", whole.texts);
    assert_eq!(whole, streamed);
    // What the client sent itself is not filtered.
    let echoed = ask(&server, &counting(json!({"echo": true, "prompt": "5, 7, 1, 2, 3,"})), false);
    assert!(echoed.texts[0].starts_with("5, 7, 1, 2, 3,"), "{:?}", echoed.texts);
}

#[test]
fn running_streams_keep_their_filters_when_those_change() {
    let settings = |with: &str| format!("[settings]\npatterns = [\"[a-z]+\"]\nreplacement = \"{with}\"\n");
    let server = serve(&[("10-deny", "filter-deny-patterns", &settings("<old>"))]);
    let body = |stream: bool| json!({"model": "demo", "prompt": "Once upon a time", "max_tokens": 600, "ignore_eos": true, "stream": stream});
    let mut running: Vec<Stream> = (0..6).map(|_| server.client.stream(COMPLETIONS, &body(true))).collect();
    for stream in &mut running {
        stream.read_text(40);
    }
    let generation = server.policy("filter", "deny").unwrap()["generation"].clone();
    server.policies.put("filter", "10-deny.toml", settings("<new>"));
    server.wait_for_policy(("filter", "deny"), |entry| entry["generation"] != generation && entry["error"].is_null());
    let fresh = server
        .client
        .stream(COMPLETIONS, &json!({"model": "demo", "prompt": "Once upon a time", "max_tokens": 20, "stream": true}));
    let fresh = fresh.finish().text(0);
    assert!(fresh.contains("<new>") && !fresh.contains("<old>"), "{fresh}");
    for stream in running {
        let all = stream.finish();
        assert!(all.is_good());
        let text = all.text(0);
        assert!(text.contains("<old>") && !text.contains("<new>"), "{text}");
    }
    // A filter that is switched off is gone for new requests.
    let off = server.admin.post("/admin/policies/filter/deny/off", &json!({}));
    assert_eq!(off.status, 200, "{}", off.text());
    eventually("the text is the model's own", || {
        let text =
            server.client.ask(COMPLETIONS, &counting(json!({})))["choices"][0]["text"].as_str().unwrap().to_owned();
        if text.contains('<') { Err(text) } else { Ok(()) }
    });
}
