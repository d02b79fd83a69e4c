//! Policies of every hook that change without a pause under streams: none fails, and each is wholly of one generation.
//!
//! Change `n` is of hook `n` modulo 5, and leaves its number in what the hook does: the tenant in the log (auth), the number of
//! tokens (validator), every third token (sampler), what stands for spaces (filter). So what a stream shows tells of which
//! generation each of its policies was, and some generation must have had just these. A scheduler leaves no mark; its component
//! changes.
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use camshaft_tests::{Client, Collected, Request, Server, Setup, Stream, api_keys, eventually, guest, plugin};
use serde_json::{Value, json};

use crate::{CHAT, Row};

const HOOKS: [&str; 5] = ["auth", "validator", "scheduler", "sampler", "filter"];
const STREAMS: usize = 16;
const KEY: &str = "sk-swaps";
/// Each is a token, and the model says none of them by itself.
const MARKS: &str = "#$%&*+/=@[]^_{|}~";
/// Tokens of the shortest stream, and how many lengths there are.
const TOKENS: usize = 24;
const LENGTHS: usize = 32;

/// The files that a change puts there, settings first.
fn files(change: usize, marks: &[u64]) -> (&'static str, String, Option<Vec<u8>>) {
    let mut component = None;
    let settings = match HOOKS[change % HOOKS.len()] {
        "auth" => api_keys(&[(KEY, "")]).replace("tenant-0", &format!("tenant-{change}")),
        "validator" => format!("[settings]\nmax-tokens = {}\n", tokens(change)),
        "scheduler" => {
            let packages = ["scheduler-fcfs", "scheduler-round-robin"];
            component = Some(plugin(packages[change / HOOKS.len() % packages.len()]));
            String::new()
        }
        "sampler" => format!("[settings]\nask = \"every-third\"\ntokens = [{}]\n", marks[mark(change)]),
        _ => format!("[settings]\npatterns = [\" \"]\nreplacement = \"<{change}>\"\n"),
    };
    // Settings may come in the time in which a busy machine calls no guest within its deadline.
    (HOOKS[change % HOOKS.len()], format!("[policy]\ndeadline = \"5s\"\n{settings}"), component)
}

fn tokens(change: usize) -> usize {
    TOKENS + change / HOOKS.len() % LENGTHS
}

fn mark(change: usize) -> usize {
    change / HOOKS.len() % MARKS.len()
}

/// A component that is the same but for its digest.
fn again(component: &[u8], change: usize) -> Vec<u8> {
    // A custom section of the name `n`.
    let section = [&[0, 10, 1, b'n'], change.to_le_bytes().as_slice()].concat();
    [component, &section].concat()
}

/// What a stream showed, and between which changes it ran.
struct Run {
    id: String,
    from: usize,
    to: usize,
    collected: Collected,
}

struct Load<'a> {
    server: &'a Server,
    stop: AtomicBool,
    /// The newest change that is known to serve, and the newest that was begun.
    served: AtomicUsize,
    begun: AtomicUsize,
}

impl Load<'_> {
    fn client(&self, client: &Client) -> Vec<Run> {
        // A chat that names no number of tokens has as many as the validator says.
        let messages = json!([{"role": "user", "content": "Tell me a story."}]);
        let body = json!({"model": "demo", "messages": messages, "ignore_eos": true, "stream": true,
            "stream_options": {"include_usage": true}});
        let request = Request::post(CHAT, &body);
        let mut runs = Vec::new();
        while !self.stop.load(Ordering::SeqCst) {
            let from = self.served.load(Ordering::SeqCst);
            let open = client.open(&request);
            let id = open.header("x-request-id").expect("an id").to_owned();
            if open.status != 200 {
                panic!("{}", open.response().text());
            }
            let collected = Stream::new(open).finish();
            runs.push(Run { id, from, to: self.begun.load(Ordering::SeqCst), collected });
        }
        runs
    }

    /// Makes a change and waits until it serves.
    fn change(&self, change: usize, marks: &[u64], recompile: bool) {
        let server = self.server;
        let (hook, settings, component) = files(change, marks);
        let generation = || server.policy(hook, "p").map(|entry| entry["generation"].clone());
        let before = generation();
        self.begun.store(change, Ordering::SeqCst);
        server.policies.put(hook, "10-p.toml", settings);
        let component = component.or_else(|| recompile.then(|| again(&component_of(hook), change)));
        if let Some(component) = &component {
            server.policies.put(hook, "10-p.wasm", component);
        }
        let reloaded = server.admin.send(&Request::new("POST", "/admin/reload"));
        assert_eq!(reloaded.status, 200, "{}", reloaded.text());
        server.wait_for_policy((hook, "p"), |entry| Some(&entry["generation"]) != before.as_ref());
        if let Some(component) = &component {
            // Its settings may have come first.
            server.wait_until_active(hook, "p", component);
        }
        self.served.store(change, Ordering::SeqCst);
    }
}

fn component_of(hook: &str) -> Vec<u8> {
    match hook {
        "auth" => plugin("auth-api-keys"),
        "validator" => plugin("validator-limits"),
        "scheduler" => plugin("scheduler-fcfs"),
        "sampler" => guest("sampler-plans"),
        _ => plugin("filter-deny-patterns"),
    }
}

/// The tenants of requests, by their ids.
fn tenants(log: &str) -> HashMap<String, String> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ended = lines.filter(|line| line["message"] == "request");
    let text = |line: &Value, field: &str| line[field].as_str().unwrap_or_default().to_owned();
    ended.map(|line| (text(&line, "request_id"), text(&line, "tenant"))).collect()
}

/// The newest change of a hook in the generation that change `last` made.
fn newest(last: usize, hook: usize) -> usize {
    last - (last + HOOKS.len() - hook) % HOOKS.len()
}

/// Asserts that the stream ended well, and returns a generation that has all that it shows.
fn generation_of(run: &Run, tenants: &HashMap<String, String>) -> usize {
    let Run { id, from, to, collected } = run;
    assert!(collected.is_good(), "{id} failed: {:?}", collected.events.last());
    assert_eq!(collected.finish_reason(0), Some("length"), "{id}");
    let tenant = tenants.get(id).unwrap_or_else(|| panic!("{id} is not in the log"));
    let count =
        collected.values().find_map(|event| event["usage"]["completion_tokens"].as_u64()).expect("usage") as usize;
    let text = collected.text(0);
    // The model writes brackets, too, but no numbers in them.
    let bracketed = text.split('<').skip(1).map(|rest| rest.split('>').next().unwrap_or_default());
    let spaces: Vec<&str> = bracketed.filter(|text| text.starts_with(|first: char| first.is_ascii_digit())).collect();
    assert!(!spaces.is_empty() && !text.contains(' '), "{text}");
    let shows = |last: &usize| {
        let of = |hook| newest(*last, hook);
        let third = MARKS.chars().nth(mark(of(3))).expect("a mark");
        *tenant == format!("tenant-{}", of(0))
            && count == tokens(of(1))
            && text.matches(third).count() >= count / 3
            && spaces.iter().all(|space| *space == of(4).to_string())
    };
    (*from..=*to)
        .find(shows)
        .unwrap_or_else(|| panic!("{id} is of no generation from {from} to {to}: {tenant}, {count} tokens, {text}"))
}

/// Makes so many changes of each hook. Every so many of them replace the component, too.
fn swap(changes: usize, recompile_every: usize) {
    let row = Row::begin("changes of every hook, one after another, under 16 streams");
    let plain = Setup::new().start();
    let marks: Vec<u64> = MARKS
        .chars()
        .map(|mark| {
            let body = json!({"model": "demo", "text": mark.to_string(), "add_special": false});
            let answer = plain.client.ask("/v1/tokenize", &body);
            answer["tokens"][0].as_u64().expect("a token")
        })
        .collect();
    drop(plain);
    let mut setup = Setup::new();
    for change in 0..HOOKS.len() {
        let (hook, settings, component) = files(change, &marks);
        setup = setup.component(hook, "10-p", &component.unwrap_or_else(|| component_of(hook)), &settings);
    }
    let mut server = setup.start();
    for hook in HOOKS {
        server.wait_for_policy((hook, "p"), |entry| entry["state"] == "active");
    }
    let first = HOOKS.len() - 1;
    let load = Load { server: &server, stop: AtomicBool::new(false), served: first.into(), begun: first.into() };
    let client = server.client.with_key(KEY);
    let last = first + changes * HOOKS.len();
    let runs: Vec<Run> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..STREAMS).map(|_| scope.spawn(|| load.client(&client))).collect();
        // A failure here must not leave the clients running.
        let changed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for change in first + 1..=last {
                load.change(change, &marks, change % recompile_every == 0);
            }
        }));
        load.stop.store(true, Ordering::SeqCst);
        let runs = clients.into_iter().flat_map(|client| client.join().expect("a client ends")).collect();
        changed.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        runs
    });
    server.assert_runs();
    server.wait_until_idle();
    // Lines are written beside the answers.
    let tenants = eventually("every stream is logged", || {
        let tenants = tenants(&server.log());
        match runs.iter().find(|run| !tenants.contains_key(&run.id)) {
            None => Ok(tenants),
            Some(run) => {
                Err((run.id.clone(), runs.len(), server.metrics().count("camshaft_log_lines_dropped_total", &[])))
            }
        }
    });
    let generations: std::collections::BTreeSet<usize> = runs.iter().map(|run| generation_of(run, &tenants)).collect();
    let across = runs.iter().filter(|run| run.to > run.from).count();
    assert!(across >= STREAMS, "{across} streams ran during a change");
    let metrics = server.metrics();
    for outcome in ["trap", "deadline", "memory", "invalid_output", "unavailable", "exhausted"] {
        for hook in HOOKS {
            let calls = metrics.count("camshaft_policy_calls_total", &[("hook", hook), ("outcome", outcome)]);
            assert_eq!(calls, 0.0, "{hook}: {outcome}");
        }
    }
    row.end(&format!(
        "{changes} changes per hook; 0 of {} streams failed, 0 mixed; {across} ran during changes, of {} generations",
        runs.len(),
        generations.len()
    ));
}

#[test]
fn twenty_changes_per_hook_under_sixteen_streams_fail_none_and_mix_none() {
    swap(20, 50);
}

#[test]
// Takes minutes.
fn long_attack_two_hundred_changes_per_hook_under_sixteen_streams_fail_none_and_mix_none() {
    swap(200, 20);
}
