//! Instances that are made ahead of their calls: how many, and of which versions. And on which threads calls are made.
use std::sync::Arc;
use std::time::{Duration, Instant};

use camshaft_core::answering::wait;
use camshaft_core::policy::Hook;

use super::bench::{Bench, component};
use crate::asking::ask;
use crate::loaded::Loaded;
use crate::pace::SLOW;

/// With one, making instances may not take long any more.
const NO_SNAPSHOT: &str = "[policy]\nsnapshot = \"never\"";

/// A policy with these settings.
pub(super) fn loaded(hook: Hook, file: &str, package: &str, settings: &str) -> (Bench, Arc<Loaded>) {
    let mut bench = Bench::new();
    bench.put(&format!("{hook}/{file}.toml"), settings);
    bench.put(&format!("{hook}/{file}.wasm"), component(package));
    bench.loader.start().unwrap();
    let policy = bench.loader.registry.current().ready(hook).next().cloned();
    (bench, policy.expect("it is loaded"))
}

pub(super) fn eventually(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::yield_now();
    }
}

/// As often as it takes to be believed.
pub(super) fn takes_long(policy: &Loaded) {
    for _ in 0..4 {
        assert!(policy.ahead.is_timed() && !policy.ahead.is_wanted(), "one that takes long may be the machine's fault");
        policy.ahead.note(SLOW + Duration::from_nanos(1));
    }
    assert!(policy.ahead.is_wanted() && !policy.ahead.is_timed());
}

#[test]
fn instances_that_take_long_to_make_are_made_ahead_up_to_a_bound_and_replaced() {
    let (_bench, policy) = loaded(Hook::Validator, "10-x", "guests/misbehave-validator", NO_SNAPSHOT);
    takes_long(&policy);
    for _ in 0..20 {
        policy.configured(None, |_| {}).unwrap();
        eventually("four are ready", || policy.ahead.ready() == 4);
        assert!(policy.ahead.claim().is_none(), "one more is one too many");
    }
}

#[test]
fn what_reads_its_state_when_it_is_configured_is_not_made_ahead() {
    let keys: String =
        (0..8).map(|i| format!("[[settings.keys]]\nname = \"{i}\"\nsha256 = \"{i:064}\"\ntenant = \"t\"\n")).collect();
    let (_bench, policy) = loaded(Hook::Auth, "10-keys", "plugins/auth-api-keys", &keys);
    takes_long(&policy);
    policy.configured(None, |_| {}).unwrap();
    eventually("nobody tries again", || !policy.ahead.is_wanted());
    assert_eq!(policy.ahead.ready(), 0);
}

#[test]
fn a_version_that_nobody_uses_any_more_keeps_no_instance() {
    let (bench, policy) = loaded(Hook::Validator, "10-x", "guests/misbehave-validator", NO_SNAPSHOT);
    takes_long(&policy);
    policy.configured(None, |_| {}).unwrap();
    eventually("four are ready", || policy.ahead.ready() == 4);
    let (runtime, gone) = (policy.runtime.clone(), Arc::downgrade(&policy));
    let places = runtime.ahead(Hook::Validator);
    let before = places.available_permits();
    drop((policy, bench));
    eventually("it is gone", || gone.upgrade().is_none());
    assert_eq!(places.available_permits(), before + 4);
}

#[test]
fn calls_are_made_where_they_are_asked_once_many_were_fast() {
    let (_bench, policy) = loaded(Hook::Auth, "10-x", "guests/misbehave-auth", "");
    let here = std::thread::current().id();
    let mut calls = 0;
    while wait(ask(&policy, |_| Ok(std::thread::current().id()))).unwrap() != here {
        calls += 1;
        assert!(calls < 100_000, "it has long been fast");
    }
    assert!(calls >= 8, "it had to prove it: {calls}");
}
