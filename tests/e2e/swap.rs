//! Policies change while streams run: no stream fails, new requests get the new policies, running ones keep the old.
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use camshaft_tests::{Collected, Request, Server, Setup, Stream, api_keys, eventually, guest, plugin};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const STREAMS: usize = 8;
/// Length of one stream: takes much longer than a swap.
const TOKENS: u32 = 250;
/// The key that is revoked, and how many streams use it.
const REVOKED: &str = "sk-revoked";
const KEPT: &str = "sk-kept";
const WITH_REVOKED: usize = 2;
/// Length of their streams, one of which has only just begun when the key is revoked: it is to outlast that on a slow
/// machine, too.
const TOKENS_OF_REVOKED: u32 = 900;
/// Occurs in every story of the demo model.
const WORD: &str = "the";

/// One request of a client.
struct Run {
    key: &'static str,
    begun: Instant,
    ended: Instant,
    status: u16,
    collected: Collected,
}

/// Clients that stream one story after another until they are stopped.
struct Load<'a> {
    server: &'a Server,
    stop: AtomicBool,
    /// Streams that began, of which with the key that is revoked, and streams that ended.
    begun: AtomicUsize,
    begun_with_revoked: AtomicUsize,
    ended: AtomicUsize,
}

impl Load<'_> {
    fn client(&self, index: usize) -> Vec<Run> {
        let (key, tokens) = if index < WITH_REVOKED { (REVOKED, TOKENS_OF_REVOKED) } else { (KEPT, TOKENS) };
        let client = self.server.client.with_key(key);
        let mut runs = Vec::new();
        while !self.stop.load(Ordering::Relaxed) {
            let seed = index * 1000 + runs.len();
            let body = json!({"model": "demo", "prompt": "Once upon a time", "seed": seed, "max_tokens": tokens,
                "ignore_eos": true, "stream": true});
            let begun = Instant::now();
            let open = client.open(&Request::post(COMPLETIONS, &body));
            let status = open.status;
            let collected = if status == 200 {
                let mut stream = Stream::new(open);
                stream.next();
                self.begun.fetch_add(1, Ordering::Relaxed);
                self.begun_with_revoked.fetch_add(usize::from(key == REVOKED), Ordering::Relaxed);
                stream.finish()
            } else {
                open.response();
                Collected::default()
            };
            runs.push(Run { key, begun, ended: Instant::now(), status, collected });
            self.ended.fetch_add(1, Ordering::Relaxed);
            if status == 401 {
                // The key was revoked.
                break;
            }
        }
        runs
    }

    /// Waits until a stream with the key that is to be revoked has begun: it has all of its tokens before it.
    fn wait_for_a_stream_with_the_revoked_key(&self) {
        let before = self.begun_with_revoked.load(Ordering::Relaxed);
        eventually("a stream with the revoked key begins", || {
            let begun = self.begun_with_revoked.load(Ordering::Relaxed);
            if begun > before { Ok(()) } else { Err(begun) }
        });
    }

    /// Waits until this many more streams have ended.
    fn wait_for_more(&self, count: usize) {
        let before = self.ended.load(Ordering::Relaxed);
        eventually("streams come and go", || {
            let more = self.ended.load(Ordering::Relaxed) - before;
            if more >= count { Ok(()) } else { Err(more) }
        });
    }
}

/// When a change was made, and when it had taken effect.
#[derive(Clone, Copy)]
struct Change {
    made: Instant,
    seen: Instant,
}

struct Changes {
    sampler: Change,
    revocation: Change,
}

#[test]
fn policies_swap_under_eight_streams_without_one_failing() {
    let keys = api_keys(&[(REVOKED, ""), (KEPT, "")]);
    let mut server = Setup::new()
        .plugin("auth", "10-api-keys", "auth-api-keys", &keys)
        .plugin("validator", "10-limits", "validator-limits", "")
        .plugin("scheduler", "10-fcfs", "scheduler-fcfs", "")
        .plugin("sampler", "10-standard", "sampler-standard", "")
        .start();
    let load = Load {
        server: &server,
        stop: AtomicBool::new(false),
        begun: 0.into(),
        begun_with_revoked: 0.into(),
        ended: 0.into(),
    };
    let (changes, runs) = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..STREAMS)
            .map(|index| {
                scope.spawn({
                    let load = &load;
                    move || load.client(index)
                })
            })
            .collect();
        // A failure here must not leave the clients running.
        let changed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| change_everything(&load)));
        load.stop.store(true, Ordering::Relaxed);
        let runs: Vec<Run> = clients.into_iter().flat_map(|client| client.join().expect("a client ends")).collect();
        (changed.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), runs)
    });
    server.assert_runs();
    nothing_failed(&runs, changes.revocation);
    old_ends_old_and_new_begins_new(&runs, changes.sampler);
    revoked_streams_end_well(&runs, changes.revocation);
    server.wait_until_idle();
    assert!(server.metrics().count("camshaft_policy_calls_total", &[("plugin", "shortest-first")]) > 0.0);
}

fn change_everything(load: &Load<'_>) -> Changes {
    let server = load.server;
    eventually("eight streams run", || {
        let begun = load.begun.load(Ordering::Relaxed);
        if begun >= STREAMS { Ok(()) } else { Err(begun) }
    });
    let generation = |page: &Value| page["generation"].as_u64().expect("a generation");
    let first = generation(&server.policy_page());

    let component = plugin("sampler-avoid-words");
    let made = Instant::now();
    server.policies.install("sampler", "20-avoid-words", &component, &format!("[settings]\nwords = [\"{WORD}\"]\n"));
    let entry = server.wait_until_active("sampler", "avoid-words", &component);
    let sampler = Change { made, seen: Instant::now() };
    assert!(entry["generation"].as_u64().is_some_and(|brought| brought > first), "{entry}");

    let component = plugin("scheduler-shortest-first");
    server.policies.put("scheduler", "20-shortest-first.wasm", &component);
    server.wait_until_active("scheduler", "shortest-first", &component);

    let before = server.policy("auth", "api-keys").expect("the auth policy")["generation"].clone();
    load.wait_for_a_stream_with_the_revoked_key();
    let made = Instant::now();
    server.policies.edit("auth", "10-api-keys.toml", &api_keys(&[(KEPT, "")]));
    server.wait_for_policy(("auth", "api-keys"), |entry| entry["generation"] != before && entry["state"] == "active");
    let revocation = Change { made, seen: Instant::now() };
    assert!(generation(&server.policy_page()) > first + 2, "three changes, three generations");

    bad_files_change_nothing(server);
    load.wait_for_more(2 * STREAMS);
    Changes { sampler, revocation }
}

/// Asserts that each file is rejected with a reason, in the log and the metric, and that the old policy still serves.
fn bad_files_change_nothing(server: &Server) {
    let serving = || {
        let page = server.policy_page();
        let entries = page["policies"].as_array().expect("entries").clone();
        let facts = |entry: &Value| {
            (entry["hook"].clone(), entry["name"].clone(), entry["serving"].clone(), entry["generation"].clone())
        };
        entries.iter().filter(|entry| !entry["serving"].is_null()).map(facts).collect::<Vec<_>>()
    };
    let before = serving();
    assert_eq!(before.len(), 6);
    let avoid = plugin("sampler-avoid-words");
    let spins = "[settings]\nbehave = \"spin-at-start\"\n";
    let cases: [(&str, &str, Vec<u8>, &str, &str); 6] = [
        ("sampler", "20-avoid-words", avoid[..avoid.len() / 2].to_vec(), "", "truncated"),
        ("sampler", "30-core", b"\0asm\x01\0\0\0".to_vec(), "", "core module"),
        ("auth", "05-core", b"\0asm\x01\0\0\0".to_vec(), "", "core module"),
        ("scheduler", "30-wrong", plugin("sampler-standard"), "", "sampler"),
        ("sampler", "30-spins", guest("misbehave-sampler"), spins, "spin"),
        ("validator", "30-spins", guest("misbehave-validator"), spins, "spin"),
    ];
    for (hook, file, component, settings, word) in cases {
        let rejected =
            || server.metrics().count("camshaft_policy_swaps_total", &[("hook", hook), ("result", "rejected")]);
        let count = rejected();
        server.policies.install(hook, file, &component, settings);
        let name = &file[3..];
        let entry =
            server.wait_for_policy((hook, name), |entry| entry["state"] == "rejected" && !entry["error"].is_null());
        assert!(entry["error"].as_str().is_some_and(|error| error.contains(word)), "{entry}");
        assert!(rejected() > count, "{hook}/{file} was not counted");
        // A thread of the server's and one of the test's bring the line here.
        eventually(&format!("the log says why {hook}/{file} was rejected"), || {
            let said = server.log().lines().any(|line| line.contains(file) && line.contains(word));
            said.then_some(()).ok_or(())
        });
        assert_eq!(serving(), before, "after {hook}/{file}");
    }
}

/// Asserts that every stream that started with a valid key ended well.
fn nothing_failed(runs: &[Run], revocation: Change) {
    assert!(runs.len() > 2 * STREAMS, "only {} streams", runs.len());
    for run in runs {
        if run.key == REVOKED && run.status == 401 {
            assert!(run.ended > revocation.made, "refused while the key was valid");
            continue;
        }
        assert_eq!(run.status, 200, "a request was refused");
        assert!(run.collected.is_good(), "a stream failed: {:?}", run.collected.events.last());
        assert_eq!(run.collected.finish_reason(0), Some("length"));
    }
}

fn old_ends_old_and_new_begins_new(runs: &[Run], change: Change) {
    let (mut new, mut old, mut across) = (0, 0, 0);
    for run in runs.iter().filter(|run| run.status == 200) {
        let text = run.collected.text(0).to_lowercase();
        assert!(text.len() > 300, "a short story: {text:?}");
        if run.begun > change.seen {
            assert!(!text.contains(WORD), "began after the swap and says {WORD:?}: {text}");
            new += 1;
        } else if run.begun < change.made {
            assert!(text.contains(WORD), "began before the swap and does without {WORD:?}: {text}");
            old += 1;
            let rest = run.collected.text_from(Some(change.seen)).to_lowercase();
            if rest.len() > 200 {
                let has_word = rest.contains(WORD);
                // Far behind the end of a story the model may say one thing for ever.
                assert!(has_word || run.key == REVOKED, "the rest of an old stream does without {WORD:?}: {rest}");
                across += usize::from(has_word);
            }
        }
    }
    assert!(new >= STREAMS && old >= STREAMS, "{old} old streams, {new} new ones");
    assert!(across >= 1, "no stream was running at the swap");
}

fn revoked_streams_end_well(runs: &[Run], revocation: Change) {
    let (mut across, mut refused) = (0, 0);
    for run in runs.iter().filter(|run| run.key == REVOKED) {
        if run.begun > revocation.seen {
            assert_eq!(run.status, 401, "a revoked key was let in");
            refused += 1;
        } else if run.begun < revocation.made && run.ended > revocation.seen {
            // The check of all streams covers its end.
            across += 1;
        }
    }
    assert!(across >= 1, "no stream with the revoked key was running");
    assert!(refused >= 1, "nobody came back with the revoked key");
}
