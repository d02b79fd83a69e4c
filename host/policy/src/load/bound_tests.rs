//! More policies in a hook's folder than are read.
use camshaft_core::policy::{Hook, PolicySet, PolicyState};

use super::bench::{Bench, component, put};
use super::*;
use crate::error::PolicyError;
use crate::files::POLICIES_MAX;
use crate::grants::Grants;
use crate::view::View;

/// Fills the folder of a hook with files that are no policies, from the lowest number on.
fn crowd(dir: &std::path::Path, hook: Hook, count: usize) {
    for number in 0..count {
        put(dir, &format!("{hook}/00-x{number}.wasm"), b"nothing");
    }
}

fn listed(bench: &Bench, hook: Hook) -> usize {
    bench.loader.directory.policies.keys().filter(|place| place.hook == hook).count()
}

#[test]
fn regression_files_past_the_bound_are_not_read_and_end_nothing_that_serves() {
    let mut bench = Bench::new();
    bench.put("validator/90-limits.wasm", component("plugins/validator-limits"));
    bench.put("scheduler/90-fcfs.wasm", component("plugins/scheduler-fcfs"));
    bench.loader.start().unwrap();
    for hook in [Hook::Validator, Hook::Scheduler] {
        crowd(bench.dir.path(), hook, POLICIES_MAX - 1);
    }
    bench.loader.scan_settled();
    assert_eq!(listed(&bench, Hook::Scheduler), POLICIES_MAX);
    for hook in [Hook::Validator, Hook::Scheduler] {
        crowd(bench.dir.path(), hook, POLICIES_MAX + 1);
    }
    let generation = bench.loader.registry.current().generation;
    for _ in 0..2 {
        bench.loader.scan_settled();
        assert_eq!([Hook::Validator, Hook::Scheduler].map(|hook| listed(&bench, hook)), [POLICIES_MAX; 2]);
        assert!(["limits", "fcfs"].iter().all(|name| bench.state(name) == Some(PolicyState::Active)));
    }
    assert_eq!(bench.loader.registry.current().generation, generation);
    assert_eq!(View::stable(bench.loader.registry.current()).validators(), 1);
}

#[test]
fn no_guard_is_left_out_at_the_start_nor_where_another_directory_is_to_serve() {
    let mut bench = Bench::new();
    crowd(bench.dir.path(), Hook::Sampler, POLICIES_MAX + 1);
    bench.loader.start().unwrap();
    assert_eq!(listed(&bench, Hook::Sampler), POLICIES_MAX);
    for hook in [Hook::Auth, Hook::Validator] {
        let other = Bench::new();
        crowd(other.dir.path(), hook, POLICIES_MAX + 1);
        let demands = Demands { auth: false, same_guards: false };
        let relocation = Relocation::new(other.dir.path().to_path_buf(), demands, Grants::default(), Claim::default());
        let refused = relocation.unwrap().attempt(&mut bench.loader).unwrap().unwrap_err();
        assert!(matches!(refused, PolicyError::TooManyPolicies { .. }), "{refused}");
        let mut other = other;
        let refused = other.loader.start().unwrap_err().to_string();
        assert!(refused.contains(&format!("{hook} holds more than 256 policies")), "{refused}");
    }
}

#[test]
fn regression_a_folder_that_cannot_be_listed_for_a_moment_of_the_start_is_not_an_empty_one() {
    let mut bench = Bench::new();
    let sampler = component("plugins/sampler-standard");
    bench.put("sampler/10-standard.wasm", &sampler);
    bench.hold(&sampler);
    let (begun, release, auth) = (bench.begun.clone(), bench.release.clone(), bench.dir.path().join("auth"));
    let refused = std::thread::scope(|scope| {
        scope.spawn(move || {
            begun.recv().unwrap();
            std::os::unix::fs::symlink(&auth, &auth).unwrap();
            release.send(()).unwrap();
        });
        bench.loader.start().unwrap_err().to_string()
    });
    assert!(refused.contains("auth"), "{refused}");
}

#[test]
fn regression_a_guard_that_vanishes_during_the_start_is_missed() {
    for hook in [Hook::Auth, Hook::Validator] {
        let mut bench = Bench::new();
        let sampler = component("plugins/sampler-standard");
        bench.put("sampler/10-standard.wasm", &sampler);
        bench.put(&format!("{hook}/10-guard.wasm"), component("plugins/validator-limits"));
        bench.hold(&sampler);
        let (begun, release, folder) =
            (bench.begun.clone(), bench.release.clone(), bench.dir.path().join(hook.as_str()));
        let refused = std::thread::scope(|scope| {
            scope.spawn(move || {
                begun.recv().unwrap();
                std::fs::remove_dir_all(&folder).unwrap();
                release.send(()).unwrap();
            });
            bench.loader.start().unwrap_err().to_string()
        });
        assert!(refused.contains("10-guard.wasm has vanished"), "{refused}");
    }
}
