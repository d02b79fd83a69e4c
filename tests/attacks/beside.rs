//! What clients and models' files can send that takes all time and memory, beside sixteen streams of a healthy model.
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use camshaft_tests::{Client, Collected, Request, Server, Setup, api_keys, demo_model, patched};
use serde_json::{Value, json};

use crate::table::Times;
use crate::workers::cpu;
use crate::{CHAT, COMPLETIONS, Row, grammars, templates, texts};

const STREAMS: usize = 16;
/// Answers that each of them asks for, one after the other.
const ROUNDS: usize = 12;
/// Clients that send the hostile input again and again, and how long they rest in between.
const HOSTILE: usize = 2;
const REST: Duration = Duration::from_millis(100);
/// A hostile request is answered within it.
const ANSWERED: Duration = Duration::from_secs(3);

/// After it, nothing is left of what was begun.
const SETTLED: Duration = Duration::from_secs(5);

/// A model of each kind that leads astray, and the one that streams.
fn serve() -> Server {
    let setup = Setup::new();
    let demo = std::fs::read(demo_model()).unwrap();
    let template = patched::with_text(&demo, "tokenizer.chat_template", Some(&templates::template()));
    let vocabularies = texts::astray(&demo).into_iter().map(|(id, gguf, _)| (id, gguf));
    let mut config = String::from("[cache]\nram = \"16MiB\"\n[[model]]\nid = \"demo\"\n");
    for (id, gguf) in vocabularies.chain([("template", template)]) {
        let path = setup.scratch.path().join(format!("{id}.gguf"));
        std::fs::write(&path, gguf).unwrap();
        writeln!(config, "[[model]]\nid = \"{id}\"\npath = {path:?}\nthreads = 1\nsequences = 1").unwrap();
    }
    setup.config(&config).start()
}

/// What was said, the milliseconds between events, and the seconds that it took altogether.
struct Told {
    text: String,
    gaps: Times,
    seconds: f64,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {:.1} s", self.gaps.told(), self.seconds)
    }
}

/// What the streams say, each the same: it is what the model is certain of.
fn streams(client: &Client) -> Told {
    let begun = Instant::now();
    let body = json!({"model": "demo", "max_tokens": 96, "temperature": 0, "stream": true,
                      "messages": [{"role": "user", "content": "Tell me a story."}]});
    let told: Vec<Collected> = std::thread::scope(|scope| {
        let tell = || (0..ROUNDS).map(|_| client.stream(CHAT, &body).finish()).collect::<Vec<_>>();
        let streams: Vec<_> = (0..STREAMS).map(|_| scope.spawn(tell)).collect();
        streams.into_iter().flat_map(|stream| stream.join().unwrap()).collect()
    });
    let gaps = told.iter().flat_map(|stream| {
        let times: Vec<Instant> = stream.events.iter().map(|(at, _)| *at).collect();
        times.windows(2).map(|pair| pair[1].duration_since(pair[0]).as_secs_f64() * 1e3).collect::<Vec<_>>()
    });
    let gaps = Times::of(gaps.collect());
    let text = |stream: &Collected| {
        assert!(stream.is_good(), "a stream failed: {:?}", stream.error());
        stream.choices().filter_map(|choice| choice["delta"]["content"].as_str()).collect::<String>()
    };
    let first = text(&told[0]);
    told.iter().for_each(|stream| assert_eq!(text(stream), first));
    Told { text: first, gaps, seconds: begun.elapsed().as_secs_f64() }
}

/// What the streams say while clients send `hostile`, which is told how many were sent before, with the longest time to its answer.
fn beside(client: &Client, hostile: impl Fn(usize) -> Request + Sync) -> (Told, Times) {
    let (stop, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let attack = || {
            let mut times = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let begun = Instant::now();
                let answer = client.send(&hostile(sent.fetch_add(1, Ordering::Relaxed)));
                assert!([200, 400, 429, 503].contains(&answer.status), "{}: {}", answer.status, answer.text());
                times.push(begun.elapsed().as_secs_f64() * 1e3);
                std::thread::sleep(REST);
            }
            times
        };
        let attacks: Vec<_> = (0..HOSTILE).map(|_| scope.spawn(attack)).collect();
        let found = streams(client);
        stop.store(true, Ordering::Relaxed);
        (found, Times::of(attacks.into_iter().flat_map(|attack| attack.join().unwrap()).collect()))
    })
}

#[test]
// Measures times, which other tests disturb.
fn long_attack_hostile_inputs_are_answered_in_time_and_sixteen_streams_go_on() {
    let server = serve();
    let client = &server.client;
    let demo = std::fs::read(demo_model()).unwrap();
    let grammars = grammars::hostile().into_iter().enumerate().map(|(at, body)| -> (String, Vec<Value>) {
        (
            format!("grammar {at}"),
            (0..1000)
                .map(|sent| {
                    let mut body = grammars::request(&body, sent);
                    body["model"] = json!("demo");
                    body
                })
                .collect(),
        )
    });
    let templates = templates::RUNS_AWAY
        .iter()
        .map(|(word, _)| (format!("template \"{word}\""), vec![templates::chat("template", word)]));
    let vocabularies = texts::astray(&demo).into_iter().map(|(id, _, text)| {
        let chat = json!({"model": id, "prompt": text, "max_tokens": 1});
        (format!("vocabulary that {id}"), vec![chat])
    });
    streams(client);
    let mut slow = Vec::new();
    for (name, bodies) in grammars.chain(templates).chain(vocabularies) {
        let row = Row::begin("hostile input beside 16 streams");
        let alone = streams(client);
        let (told, answers) = beside(client, |sent| {
            let body = &bodies[sent % bodies.len()];
            Request::post(if body.get("prompt").is_some() { COMPLETIONS } else { CHAT }, body)
        });
        assert_eq!(told.text, alone.text, "{name}");
        row.end(&format!(
            "{name}: p50/p99/most ms between events {told}, alone {alone}; to an answer {}",
            answers.told()
        ));
        if answers.at(1.0) > ANSWERED.as_secs_f64() * 1e3 {
            slow.push(name);
        }
    }
    assert!(slow.is_empty(), "answered late: {slow:?}");
}

/// Ticks of CPU time that the server and its processes have taken, and the bytes that are theirs alone.
fn taken(server: &Server) -> (u64, u64) {
    let all = server.processes(&[""]).into_iter().chain([server.pid().as_raw_pid()]);
    let private = |pid: i32| {
        let told = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let kib = told
            .lines()
            .filter_map(|line| line.strip_prefix("Private_")?.split_whitespace().nth(1)?.parse::<u64>().ok());
        kib.sum::<u64>() << 10
    };
    all.fold((0, 0), |(ticks, bytes), pid| (ticks + cpu(pid), bytes + private(pid)))
}

#[test]
// Measures times, which other tests disturb.
fn long_attack_two_hundred_hostile_grammars_leave_sixteen_streams_as_they_are_and_nothing_behind() {
    let row = Row::begin("200 hostile grammars from 8 tenants, 40 at once, beside 16 streams");
    let tenants = grammars::tenants();
    let keys: Vec<(&str, &str)> = tenants.iter().map(|name| (name.as_str(), "")).chain([("polite", "")]).collect();
    let server = Setup::new().plugin("auth", "10-api-keys", "auth-api-keys", &api_keys(&keys)).start();
    let polite = server.client.with_key("polite");
    streams(&polite);
    // As many clients at once as there will be, whose grammars are harmless: what that takes is not of the hostile ones.
    grammars::storm(&server.client, &grammars::harmless());
    let alone = streams(&polite);
    std::thread::sleep(SETTLED);
    let (_, before) = taken(&server);
    let is_over = AtomicBool::new(false);
    let (answers, found) = std::thread::scope(|scope| {
        let storm = scope.spawn(|| {
            let answers = grammars::storm(&server.client, &grammars::hostile());
            is_over.store(true, Ordering::Relaxed);
            answers
        });
        let mut gaps = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            let told = streams(&polite);
            assert_eq!(told.text, alone.text, "they are told as they were");
            gaps.push(told.to_string());
        }
        (storm.join().unwrap(), gaps)
    });
    std::thread::sleep(SETTLED);
    let (begun, after) = taken(&server);
    std::thread::sleep(Duration::from_secs(1));
    let busy = taken(&server).0.saturating_sub(begun);
    row.end(&format!(
        "p50/p99/most ms to an answer {}, between events {}, alone {}; 5 s later {busy} ticks of CPU a second, {} MiB more",
        answers.told(), found.join(" and "), alone, after.saturating_sub(before) >> 20
    ));
    assert!(answers.at(1.0) <= ANSWERED.as_secs_f64() * 1e3, "{:.0} ms", answers.at(1.0));
    assert!(busy <= 5, "{busy} ticks");
    assert!(after <= before + (64 << 20), "{after} bytes, {before} before");
}
