//! Files that are rejected for a reason that may pass.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use camshaft_core::policy::PolicyState;
use camshaft_core::threads::Spawner;

use super::bench::{Bench, component, variant};
use super::compile::Compiler;
use crate::error::PolicyError;
use crate::examine;
use crate::task::Task;

/// Longer than anything takes that has to happen.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn regression_a_failure_that_may_pass_is_tried_again_without_a_change_of_the_files() {
    let mut bench = Bench::new();
    let (tries, runtime) = (Arc::new(AtomicUsize::new(0)), bench.loader.builder.runtime.clone());
    let counted = tries.clone();
    let compile = move |task: &Task<'_>| match counted.fetch_add(1, Ordering::SeqCst) {
        0 => Err(PolicyError::CompileKilled { signal: 9 }),
        _ => examine::compile(&runtime, task),
    };
    bench.loader.builder.compiler = Compiler::new(Box::new(compile), Spawner::detached());
    bench.put("auth/10-keys.wasm", component("guests/misbehave-auth"));
    bench.loader.start().unwrap();
    let status = bench.status("keys").unwrap();
    assert_eq!(status.state, PolicyState::Rejected);
    assert!(status.error.is_some_and(|why| why.contains("killed by signal 9")));
    assert!(bench.loader.has_auth(), "until then it refuses everything");
    let scan = bench.loader.scan_settled();
    assert!(scan.again.is_some_and(|wait| wait <= Duration::from_secs(1)), "{scan:?}");
    let begun = Instant::now();
    while bench.state("keys") != Some(PolicyState::Active) {
        assert!(begun.elapsed() < PATIENCE, "{:?}", bench.status("keys"));
        std::thread::sleep(bench.loader.scan_settled().again.unwrap_or(Duration::from_millis(1)));
    }
    assert_eq!(tries.load(Ordering::SeqCst), 2);
    assert_eq!(bench.loader.scan_settled().again, None);
}

#[test]
fn what_is_wrong_with_the_files_themselves_is_not_tried_again() {
    let mut bench = Bench::new();
    bench.put("auth/10-keys.wasm", b"\0asm\x01\0\0\0");
    bench.loader.start().unwrap();
    assert_eq!(bench.state("keys"), Some(PolicyState::Rejected));
    assert_eq!(bench.loader.scan_settled().again, None);
}

/// A bench whose compiler always fails in this way, and how often that was.
fn failing(error: fn() -> PolicyError) -> (Bench, Arc<AtomicUsize>) {
    let (mut bench, tries) = (Bench::new(), Arc::new(AtomicUsize::new(0)));
    let counted = tries.clone();
    let compile = move |_: &Task<'_>| {
        counted.fetch_add(1, Ordering::SeqCst);
        Err(error())
    };
    bench.loader.builder.compiler = Compiler::new(Box::new(compile), Spawner::detached());
    (bench, tries)
}

/// Scans until nothing is tried again.
fn give_up(bench: &mut Bench) {
    let begun = Instant::now();
    loop {
        let scan = bench.loader.scan_settled();
        assert!(begun.elapsed() < PATIENCE, "{scan:?}");
        match (scan.compiling, scan.again) {
            (false, None) => return,
            (true, _) => drop(bench.loader.compiled().recv_timeout(Duration::from_millis(50))),
            (false, Some(wait)) => std::thread::sleep(wait),
        }
    }
}

#[test]
fn regression_a_component_whose_compiling_is_killed_each_time_is_given_up() {
    let (mut bench, tries) = failing(|| PolicyError::CompileKilled { signal: 9 });
    let validator = component("plugins/validator-limits");
    bench.put("validator/10-limits.wasm", &validator);
    bench.loader.start().unwrap();
    give_up(&mut bench);
    assert_eq!(tries.load(Ordering::SeqCst), 3);
    let status = bench.status("limits").unwrap();
    assert!(
        status
            .error
            .is_some_and(|why| why.contains("3 times in a row: the process that compiled it was killed by signal 9"))
    );
    // Only other bytes are tried again, or the same when somebody asks.
    bench.put("validator/10-limits.wasm", &validator);
    give_up(&mut bench);
    assert_eq!(tries.load(Ordering::SeqCst), 3);
    bench.put("validator/10-limits.wasm", variant(&validator, 1));
    give_up(&mut bench);
    assert_eq!(tries.load(Ordering::SeqCst), 6);
    bench.loader.try_again();
    give_up(&mut bench);
    assert_eq!(tries.load(Ordering::SeqCst), 9);
}

#[test]
fn regression_a_component_for_which_memory_lacks_each_time_is_given_up() {
    let left = || PolicyError::CompileMemoryLeft { left_bytes: 7, said: String::new() };
    for lack in [left as fn() -> PolicyError, || PolicyError::LoadMemory { needs_bytes: 8, left_bytes: 7 }] {
        let (mut bench, tries) = failing(lack);
        bench.put("validator/10-limits.wasm", component("plugins/validator-limits"));
        bench.loader.start().unwrap();
        give_up(&mut bench);
        assert_eq!(tries.load(Ordering::SeqCst), 8);
        let why = bench.status("limits").unwrap().error.unwrap();
        assert!(why.contains("8 times in a row") && why.contains("control group leaves"), "{why}");
    }
}

#[test]
fn regression_a_guard_that_refuses_its_document_at_start_is_tried_again_until_the_document_is_good() {
    let mut bench = Bench::new();
    let documents = tempfile::tempdir().unwrap();
    let path = documents.path().join("jwks.json");
    std::fs::write(&path, "<html>try later</html>").unwrap();
    let settings = format!("[settings]\njwks = \"jwks\"\n[documents.jwks]\npath = \"{}\"\n", path.display());
    bench.put("auth/10-jwt.toml", settings);
    bench.put("auth/10-jwt.wasm", component("plugins/auth-jwt"));
    bench.loader.start().unwrap();
    let why = bench.status("jwt").unwrap().error.unwrap();
    assert!(why.contains("refuses its settings or a document") && why.contains("is no JWK set"), "{why}");
    assert!(bench.loader.has_auth(), "until then it refuses everything");
    std::fs::write(&path, r#"{"keys": []}"#).unwrap();
    let begun = Instant::now();
    while bench.state("jwt") != Some(PolicyState::Active) {
        assert!(begun.elapsed() < PATIENCE, "{:?}", bench.status("jwt"));
        std::thread::sleep(bench.loader.scan_settled().again.unwrap_or_default().max(Duration::from_millis(1)));
    }
}

#[test]
fn a_refusal_of_settings_alone_is_not_tried_again() {
    let mut bench = Bench::new();
    bench.put("auth/10-x.toml", "[settings]\nno-such = 1\n");
    bench.put("auth/10-x.wasm", component("guests/misbehave-auth"));
    bench.loader.start().unwrap();
    assert_eq!((bench.state("x"), bench.loader.scan_settled().again), (Some(PolicyState::Rejected), None));
}
