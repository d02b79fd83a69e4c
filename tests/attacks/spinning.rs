//! An auth policy that uses up its deadline at every request, beside probes and another tenant's stream.
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use camshaft_tests::{Client, Server, Setup, api_keys};
use serde_json::json;

use crate::table::Times;
use crate::{COMPLETIONS, Row};

const CONNECTIONS: usize = 32;
/// How long each case is measured.
const LASTS: Duration = Duration::from_secs(10);
/// Between two requests of a connection, and between two probes: the test shares the server's cores.
const PAUSE: Duration = Duration::from_millis(10);

struct Found {
    health: Times,
    gaps: Times,
    asked: usize,
}

/// An auth policy that does this with everybody, before the keys. It never gets a rest from its breaker.
fn serve(behave: &str) -> Server {
    let settings =
        format!("[policy]\non-fault = \"skip\"\n[policy.breaker]\nfaults = 0\n[settings]\nbehave = \"{behave}\"\n");
    Setup::new()
        .guest("auth", "05-bad", &settings)
        .plugin("auth", "10-api-keys", "auth-api-keys", &api_keys(&[("sk-polite", ""), ("sk-many", "")]))
        .start()
}

/// Milliseconds of each probe until time is up.
fn probe(client: &Client, stop: &AtomicBool) -> Vec<f64> {
    let mut times = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        assert_eq!(client.get("/healthz").status, 200);
        times.push(begun.elapsed().as_secs_f64() * 1e3);
        std::thread::sleep(PAUSE);
    }
    times
}

/// Milliseconds between the events of streams, one after another, until time is up.
fn stream(client: &Client, stop: &AtomicBool) -> Vec<f64> {
    let body = json!({"model": "demo", "prompt": "Once", "max_tokens": 900, "ignore_eos": true, "stream": true});
    let mut gaps = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let collected = client.stream(COMPLETIONS, &body).finish();
        assert!(collected.is_good(), "a stream failed");
        let times: Vec<Instant> = collected.events.iter().map(|(at, _)| *at).collect();
        gaps.extend(times.windows(2).map(|pair| pair[1].duration_since(pair[0]).as_secs_f64() * 1e3));
    }
    gaps
}

fn measure(server: &Server, connections: usize) -> Found {
    let (stop, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (polite, many) = (server.client.with_key("sk-polite"), server.client.with_key("sk-many"));
    std::thread::scope(|scope| {
        for _ in 0..connections {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let status = many.get("/v1/models").status;
                    assert!([200, 500, 503].contains(&status), "{status}");
                    asked.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(PAUSE);
                }
            });
        }
        let health = scope.spawn(|| probe(&server.client, &stop));
        let gaps = scope.spawn(|| stream(&polite, &stop));
        std::thread::sleep(LASTS);
        stop.store(true, Ordering::Relaxed);
        let (health, gaps) = (health.join().expect("probes end"), gaps.join().expect("streams end"));
        Found { health: Times::of(health), gaps: Times::of(gaps), asked: asked.load(Ordering::Relaxed) }
    })
}

#[test]
// Measures times, which other tests disturb.
fn long_attack_an_auth_policy_that_spins_delays_neither_probes_nor_streams() {
    let row = Row::begin(
        "32 connections whose auth policy spins: p50/p99/most ms of /healthz, and between events of a stream",
    );
    let cases = [("no connections", "well", 0), ("well", "well", CONNECTIONS), ("spin", "spin", CONNECTIONS)];
    let found = cases.map(|(name, behave, connections)| {
        let mut server = serve(behave);
        let found = measure(&server, connections);
        server.assert_runs();
        (name, found)
    });
    let told = found.iter().map(|(name, found)| {
        format!("{name} ({} requests): {}, {}", found.asked, found.health.told(), found.gaps.told())
    });
    row.end(&told.collect::<Vec<_>>().join("; "));
    let [_, (_, well), (_, spin)] = &found;
    // Floors, so that a machine on which all is quick does not count its own jitter.
    let (health, gap) = (spin.health.at(0.99), spin.gaps.at(0.99));
    assert!(health <= 3.0 * well.health.at(0.99).max(10.0), "/healthz: {health:.1} ms");
    assert!(gap <= 3.0 * well.gaps.at(0.99).max(10.0), "between events: {gap:.1} ms");
}
