//! Several pulls of one file at once: threads, and processes of which one is killed.
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use camshaft_registry::Outcome;

use crate::made::{Told, bytes, pinned, pull, registry};
use crate::server::{Framing, Server, file};

const SIZE: usize = 2_000_000;
/// What the child process is to do: the cache's folder, a URL.
const TASK: &str = "REGISTRY_TEST_PULLS";

/// Far longer than anything here takes.
fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(120), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn two_pulls_of_one_file_at_once_download_it_once() {
    let (dir, model) = (tempfile::tempdir().unwrap(), bytes(1, SIZE));
    let goes_on = Arc::new(AtomicBool::new(false));
    let server = {
        let (model, goes_on) = (model.clone(), goes_on.clone());
        Server::start(move |seen, _| {
            eventually("the test goes on", || goes_on.load(Ordering::Relaxed));
            file(seen, &model, "a")
        })
    };
    let wanted = pinned(&server.url("x.gguf"), &model);
    let (told, both) = (Arc::new(Told::default()), Barrier::new(2));
    std::thread::scope(|scope| {
        let one = || {
            both.wait();
            registry(dir.path()).pull(&wanted, &*told).unwrap().outcome
        };
        let threads = [scope.spawn(one), scope.spawn(one)];
        eventually("the second waits and says so", || told.has("Waiting"));
        goes_on.store(true, Ordering::Relaxed);
        let mut outcomes = threads.map(|thread| thread.join().unwrap());
        outcomes.sort_by_key(|outcome| *outcome == Outcome::Current);
        assert_eq!(outcomes, [Outcome::Fetched, Outcome::Current]);
    });
    assert_eq!(server.seen().len(), 1);
}

#[test]
fn who_lists_the_cache_keeps_nobody_from_serving_from_it() {
    let (dir, model) = (tempfile::tempdir().unwrap(), bytes(1, 1000));
    let server = {
        let model = model.clone();
        Server::start(move |seen, _| file(seen, &model, "a"))
    };
    let (registry, wanted) = (registry(dir.path()), pinned(&server.url("x.gguf"), &model));
    drop(pull(&registry, &wanted).0.unwrap());
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                registry.list().unwrap();
            }
        });
        let found = (0..500).filter(|_| registry.cached(&wanted).unwrap().is_some()).count();
        ends.store(true, Ordering::Relaxed);
        assert_eq!(found, 500);
    });
}

/// Not a test by itself: what the process does that another test starts.
#[test]
fn the_other_process_pulls_what_it_is_told_to() {
    let Ok(task) = std::env::var(TASK) else { return };
    let (dir, url) = task.split_once(' ').unwrap();
    let (pulled, told) = pull(&registry(dir.as_ref()), &pinned(url, &bytes(1, SIZE)));
    let waited = told.has("Waiting");
    eprintln!("pulled {:?}, waited {waited}", pulled.unwrap().outcome);
}

fn process(dir: &std::path::Path, url: &str) -> Child {
    let test = "concurrent::the_other_process_pulls_what_it_is_told_to";
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(TASK, format!("{} {url}", dir.display()))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn said(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_second_process_waits_for_the_first_and_resumes_what_it_left_when_it_is_killed() {
    let (dir, model) = (tempfile::tempdir().unwrap(), bytes(1, SIZE));
    let server = {
        let model = model.clone();
        Server::start(move |seen, number| match number {
            0 => file(seen, &model, "a").framed(Framing::SilentAfter(SIZE / 2)),
            _ => file(seen, &model, "a"),
        })
    };
    let url = server.url("x.gguf");
    let mut first = process(dir.path(), &url);
    let registry = registry(dir.path());
    eventually("the first has half of it", || {
        registry.list().unwrap().partials.first().is_some_and(|partial| partial.bytes >= SIZE as u64 / 2)
    });
    assert!(registry.list().unwrap().partials[0].running);
    assert!(registry.remove(&url).unwrap_err().to_string().contains("being pulled"));
    let second = process(dir.path(), &url);
    let told = Told::default();
    std::thread::scope(|scope| {
        let third = scope.spawn(|| registry.pull(&pinned(&url, &model), &told).unwrap().outcome);
        eventually("the third waits", || told.has("Waiting"));
        // What SIGKILL does to a process, no process can prevent.
        first.kill().unwrap();
        first.wait().unwrap();
        let outcomes = [said(second), format!("{:?}", third.join().unwrap())];
        let fetched = outcomes.iter().filter(|outcome| outcome.contains("Fetched")).count();
        assert_eq!(fetched, 1, "one of them resumes, the other finds it done: {outcomes:?}");
    });
    // One that starts when all is done asks whether it is current, and downloads nothing.
    let seen: Vec<_> = server.seen().into_iter().filter(|seen| seen.header("if-none-match").is_none()).collect();
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert_eq!(seen[1].header("range"), Some(format!("bytes={}-", SIZE / 2).as_str()));
    assert_eq!(std::fs::read(registry.cached(&pinned(&url, &model)).unwrap().unwrap().path()).unwrap(), model);
}
