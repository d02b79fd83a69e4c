//! The KV cache: under pressure, with shared prefixes, with saved segments, and after a restart.
use std::path::{Path, PathBuf};
use std::process::Command;

use camshaft_tests::{Server, Setup, binary, demo_model, eventually, models_folder};
use rustix::process::Signal;
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
/// Log-probabilities closer than this may swap by rounding. Batches without any pressure swap them here, at up to 0.53.
const TIE: f64 = 0.8;
/// The same with 24-bit weights and activations, where only keys and values are rounded.
const TIE_F32: f64 = 0.02;

/// Distinct long prompts with a common prefix.
fn prompt(i: usize) -> String {
    format!("You answer questions about numbers and cities in whole sentences. Question {i}: what is {i} plus 3?")
}

fn body(prompt: &str, max_tokens: u32) -> Value {
    json!({"model": "demo", "prompt": prompt, "temperature": 0, "max_tokens": max_tokens, "ignore_eos": true})
}

fn text(answer: &Value) -> String {
    answer["choices"][0]["text"].as_str().unwrap().to_owned()
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

fn served(config: &str) -> Server {
    served_from(&demo_model(), config)
}

fn served_from(model: &Path, config: &str) -> Server {
    Setup::new().config(&format!("[[model]]\nid = \"demo\"\npath = {model:?}\nthreads = 1\n{config}")).start()
}

/// The tokens of an answer as text, each with the gap between its two best logits.
fn drawn(answer: &Value) -> Vec<(String, f64)> {
    let logprobs = &answer["choices"][0]["logprobs"];
    let tokens = logprobs["tokens"].as_array().unwrap().iter().map(|token| token.as_str().unwrap().to_owned());
    let gap = |top: &Value| {
        // The end token, whose text is empty, must not be drawn here.
        let others = top.as_object().unwrap().iter().filter(|(text, _)| !text.is_empty());
        let mut values: Vec<f64> = others.map(|(_, value)| value.as_f64().unwrap()).collect();
        values.sort_by(f64::total_cmp);
        // Two tokens with the same text share a key, and the gap is unknown.
        if values.len() < 2 { 0.0 } else { values[values.len() - 1] - values[values.len() - 2] }
    };
    tokens.zip(logprobs["top_logprobs"].as_array().unwrap().iter().map(gap)).collect()
}

#[test]
fn requests_for_four_times_the_cache_finish_as_if_they_ran_alone() {
    finishes_as_if_it_had_been_alone(&demo_model(), TIE);
}

#[test]
fn given_models_requests_for_four_times_the_cache_finish_alike_with_little_rounding() {
    let folder = models_folder();
    finishes_as_if_it_had_been_alone(&folder.join("stories260K-f32.gguf"), TIE_F32);
}

#[test]
fn given_vulkan_requests_for_four_times_the_cache_finish_alike_on_a_device() {
    // What the CPU computes alone is expected. A token takes 50 ms on Mesa's device, and all must end before a client gives up.
    finishes(&demo_model(), TIE, (6, 1), "gpu-layers = 0\n");
}

fn finishes_as_if_it_had_been_alone(model: &Path, tie: f64) {
    finishes(model, tie, (64, 10), "");
}

/// So many requests in so many rounds; `calm` are settings of the server on which they run alone.
fn finishes(model: &Path, tie: f64, (requests, rounds): (usize, usize), calm: &str) {
    // A request of about 110 tokens has a quarter of the KV tokens that it needs. The prefix cache is small, so that it is full
    // early: it also keeps what rounding has changed.
    let context = 16 * requests.max(16);
    let size = format!("context-tokens = {context}\nsequences = {requests}\n");
    let server = served_from(model, &format!("{size}kv-reserve = \"none\"\n[cache]\nram = \"16MiB\"\n"));
    let calm = served_from(model, &format!("context-tokens = 1024\nsequences = 1\nkv-reserve = \"full\"\n{calm}"));
    let ask = |server: &Server, i: usize| {
        let mut body = body(&prompt(i), 80);
        body["logprobs"] = json!(4);
        drawn(&server.client.ask(COMPLETIONS, &body))
    };
    let expected: Vec<Vec<(String, f64)>> = (0..requests).map(|i| ask(&calm, i)).collect();
    let mut memory = Vec::new();
    for _ in 0..rounds {
        std::thread::scope(|scope| {
            for (i, expected) in expected.iter().enumerate() {
                let (server, ask) = (&server, &ask);
                scope.spawn(move || {
                    let got = ask(server, i);
                    assert_eq!(got.len(), expected.len());
                    // Rounding differs between batches (see greedy.rs), so where two texts first differ, the two best
                    // logits must be almost equal. After a lost or repeated token the gap could be anything.
                    if let Some(at) = (0..got.len()).find(|&at| got[at].0 != expected[at].0) {
                        assert!(expected[at].1 < tie, "{i} parts at token {at}, {} apart", expected[at].1);
                    }
                });
            }
        });
        memory.push(server.resident_bytes());
    }
    // Over 100 rounds it goes up by some 15 MiB and stays there, and a round leaves some 15 MiB more or less than the one
    // before it, by what the allocator gives back. A leak of 80 KiB in each request is past the bound.
    let (early, late) = (median(&memory[..rounds.div_ceil(2)]), median(&memory[rounds / 2..]));
    assert!(late <= early + (24 << 20), "bytes after each round: {memory:?}");
    let metrics = server.metrics();
    let preemptions = metrics.count("camshaft_preemptions_total", &[]);
    assert!(preemptions > 0.0, "there was pressure");
    assert_eq!(metrics.count("camshaft_parks_total", &[]), preemptions, "the former name");
    server.wait_until_idle();
    let kv = |state: &str| server.metrics().get("camshaft_kv_tokens", &[("state", state)]);
    assert_eq!((kv("free"), kv("held")), (Some(context as f64), Some(0.0)));
}

fn median(bytes: &[u64]) -> u64 {
    let mut sorted = bytes.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

#[test]
fn a_prefix_is_shared_between_kv_streams_too() {
    let server = served("kv-layout = \"per-sequence\"\nsequences = 8\ncontext-tokens = 4096\n");
    let shown = server.client.get("/v1/models/demo").json();
    assert_eq!(shown["context_tokens"], json!(512), "{shown}");
    assert_eq!((&shown["task"], &shown["prefix_reuse"]), (&json!("generate"), &json!("ranges")), "{shown}");
    let long = "You answer questions about numbers and cities in whole sentences. ".repeat(4);
    let ask = |i: u32| server.client.ask(COMPLETIONS, &body(&format!("{long}What is {i} plus 3?"), 40));
    let alone: Vec<String> = (0..6).map(|i| text(&ask(i))).collect();
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..6).map(|i| scope.spawn(move || ask(i))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    for (answer, alone) in answers.iter().zip(alone) {
        assert!(cached(answer) > 70, "{answer}");
        // Batches round differently, but the beginning of the text has no near ties.
        assert_eq!(text(answer)[..8], alone[..8]);
    }
    server.wait_until_idle();
}

#[test]
fn a_prefix_is_shared_within_a_tenant_and_saved_for_the_next_request() {
    let server = served("");
    let long = "The quick brown fox jumps over the lazy dog. ".repeat(8);
    let first = server.client.ask(COMPLETIONS, &body(&format!("{long}One"), 4));
    assert_eq!(cached(&first), 0);
    let second = server.client.ask(COMPLETIONS, &body(&format!("{long}Two"), 4));
    let prompt_tokens = second["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(cached(&second) > prompt_tokens - 10, "{second}");
    assert!(server.metrics().count("camshaft_prompt_tokens_cached_total", &[]) > 0.0);
    let off = Setup::new().config("[cache]\nram = \"0B\"\n[[model]]\nid = \"demo\"\nthreads = 1\n").start();
    for _ in 0..2 {
        assert_eq!(cached(&off.client.ask(COMPLETIONS, &body(&format!("{long}One"), 4))), 0);
    }
}

fn with_disk(dir: &Path) -> Server {
    with_disk_and(dir, &["demo"])
}

/// Serves the same weights under each name.
fn with_disk_and(dir: &Path, models: &[&str]) -> Server {
    let models: String = models.iter().map(|id| format!("[[model]]\nid = {id:?}\nthreads = 1\n")).collect();
    Setup::new().config(&format!("[cache]\ndisk-dir = {:?}\ndisk = \"64MiB\"\n{models}", dir.to_string_lossy())).start()
}

fn cache(command: &str, dir: &Path) -> (Option<i32>, String) {
    let output = Command::new(binary()).args(["cache", command, "--dir"]).arg(dir).output().unwrap();
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr),
    )
}

/// Waits until the computed segments are on disk.
fn written(dir: &Path, segments: &str) {
    eventually("the segments are on disk", || {
        let (_, said) = cache("stats", dir);
        if said.contains(segments) { Ok(()) } else { Err(said) }
    });
}

fn kill(mut server: Server) {
    server.signal(Signal::KILL);
    server.wait();
}

fn data_files(dir: &Path) -> Vec<PathBuf> {
    let layout = std::fs::read_dir(dir).unwrap().next().unwrap().unwrap().path();
    let files = std::fs::read_dir(layout).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|end| end == "data")).collect()
}

#[test]
fn regression_two_models_of_the_same_weights_both_keep_prefixes_on_disk() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("kv");
    let models = ["demo", "again"];
    let of = |model: &str| {
        let mut ask = body(&prompt(7).repeat(3), 20);
        ask["model"] = model.into();
        ask
    };
    let server = with_disk_and(&dir, &models);
    for model in models {
        assert_eq!(cached(&server.client.ask(COMPLETIONS, &of(model))), 0, "{model}");
    }
    eventually("both have written", || {
        let (_, said) = cache("stats", &dir);
        if said.matches("1 segments").count() == 2 { Ok(()) } else { Err(said) }
    });
    kill(server);
    let server = with_disk_and(&dir, &models);
    for model in models {
        let again = server.client.ask(COMPLETIONS, &of(model));
        assert!(cached(&again) > 0, "{model}: {again}");
    }
}

#[test]
fn prefixes_survive_a_kill_and_a_damaged_one_is_recomputed() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("kv");
    assert_eq!(cache("stats", &dir).0, Some(66));
    let ask = body(&prompt(7).repeat(3), 20);
    let server = with_disk(&dir);
    let first = server.client.ask(COMPLETIONS, &ask);
    assert_eq!(cached(&first), 0);
    written(&dir, "1 segments");
    let (code, said) = cache("clear", &dir);
    assert!(code == Some(64) && said.contains("stop the server"), "{said}");
    kill(server);
    assert_eq!(cache("verify", &dir).0, Some(0));

    let server = with_disk(&dir);
    let second = server.client.ask(COMPLETIONS, &ask);
    assert!(cached(&second) > 0, "{second}");
    kill(server);

    // Change one byte in each part of the file, from its magic to its last state.
    let path = data_files(&dir).remove(0);
    let good = std::fs::read(&path).unwrap();
    for at in [0, 9, 14, 22, 40, good.len() / 3, good.len() / 2, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 0x20;
        std::fs::write(&path, &bad).unwrap();
        let (code, said) = cache("verify", &dir);
        assert_eq!(code, Some(65), "byte {at}: {said}");
        let server = with_disk(&dir);
        let answer = server.client.ask(COMPLETIONS, &ask);
        assert_eq!(text(&answer), text(&first), "byte {at}");
        assert!(cached(&answer) < cached(&second), "byte {at}: {answer}");
        kill(server);
        // Recomputed segments are in new data files.
        data_files(&dir)
            .into_iter()
            .filter(|other| *other != path)
            .for_each(|other| std::fs::remove_file(other).unwrap());
    }
    assert_eq!(cache("clear", &dir).0, Some(0));
    assert!(cache("stats", &dir).1.contains("nothing is kept"));
}

#[test]
fn an_unusable_directory_disables_the_disk_tier_and_nothing_else() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let server = with_disk(file.path());
    assert_eq!(server.client.post(COMPLETIONS, &body("a", 2)).status, 200);
    server.wait_for_log("no prefixes are kept on disk");
}

#[test]
fn a_session_keeps_its_prefix_while_others_come_and_go() {
    // The cache holds a few prompts.
    let server = Setup::new().config("[cache]\nram = \"1MiB\"\n[[model]]\nid = \"demo\"\nthreads = 1\n").start();
    let with = |prompt: &str, session: Option<&str>| {
        let mut body = body(prompt, 2);
        body["session_id"] = json!(session);
        cached(&server.client.ask(COMPLETIONS, &body))
    };
    let others = || {
        for i in 0..12 {
            with(&format!("{i} is the number of this one. {}", prompt(i)), None);
        }
    };
    let talk = "We talk about the weather in Oslo, and it has rained for three days. ".repeat(2);
    with(&talk, Some("weather"));
    others();
    assert!(with(&format!("{talk}And now?"), Some("weather")) > 30);
    assert_eq!(server.metrics().get("camshaft_sessions", &[]), Some(1.0));
    let closed = server.client.ask("/v1/session/close", &json!({"model": "demo", "session_id": "weather"}));
    assert_eq!(closed, json!({"id": "weather", "object": "session.closed", "closed": true}));
    others();
    // All prompts share the first token.
    assert!(with(&format!("{talk}And now?"), None) <= 1);
}
