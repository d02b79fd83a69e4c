//! Snapshots: when one is taken, what instances are like that begin from it, and which policies have none.
use std::fs;
use std::sync::Arc;

use camshaft_core::answering::wait;
use camshaft_core::policy::{AuthOutcome, AuthRequest, FaultKind, Hook, PolicySet as _};

use super::ahead_tests::{eventually, loaded, takes_long};
use super::bench::{Bench, component, variant};
use crate::loaded::Loaded;
use crate::view::View;

/// An auth policy that misbehaves as these settings say, and of which making instances took long.
fn slow(settings: &str) -> (Bench, Arc<Loaded>) {
    let settings = format!("[settings]\n{settings}");
    let (bench, policy) = loaded(Hook::Auth, "10-x", "guests/misbehave-auth", &settings);
    takes_long(&policy);
    assert!(!policy.snapshots.has_begun(), "it takes many seconds: it is to be worth it");
    (bench, policy)
}

/// Has one taken, if that is possible.
fn take(policy: &Arc<Loaded>) -> bool {
    policy.configured(None, |_| {}).unwrap();
    let ended = || policy.snapshots.get().is_some() || policy.snapshots.why_none().is_some();
    eventually("one is taken, or cannot be", ended);
    policy.snapshots.get().is_some()
}

fn why_none(policy: &Loaded) -> String {
    policy.report(None).snapshot_error.unwrap()
}

fn authenticate(bench: &Bench) -> AuthOutcome {
    let view = View::stable(bench.loader.registry.current());
    wait(view.authenticate(&Arc::new(AuthRequest::default()))).outcome
}

#[test]
fn instances_of_a_snapshot_are_not_configured_again_and_share_nothing() {
    let (bench, policy) = slow("behave = \"count-starts\"");
    let starts = || {
        let text = bench.metrics();
        let line = text.lines().find(|line| line.contains("starts") && !line.starts_with('#')).unwrap();
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let before = starts();
    policy.configured(None, |_| {}).unwrap();
    assert!(starts() > before, "an ordinary instance is");
    assert!(take(&policy), "{}", why_none(&policy));
    let before = starts();
    for _ in 0..3 {
        assert!(matches!(authenticate(&bench), AuthOutcome::Allow(_)));
    }
    assert_eq!(starts(), before);

    // It panics if anything is left of another call.
    let (bench, policy) = slow("behave = \"remember\"");
    assert!(take(&policy), "{}", why_none(&policy));
    for _ in 0..3 {
        assert!(matches!(authenticate(&bench), AuthOutcome::Allow(_)));
    }
    assert!(policy.snapshots.get().is_some());
}

#[test]
fn instances_begin_configured_from_a_snapshot_until_one_traps() {
    let (bench, policy) = slow("behave = \"trap-later\"\nreuse = true");
    assert!(take(&policy), "{}", why_none(&policy));
    assert!(policy.report(None).snapshot);
    eventually("those made ahead before are given up", || !policy.ahead.is_wanted() && policy.ahead.ready() == 0);
    assert!(policy.ahead.is_timed(), "from a snapshot, making one may take long or not");
    // Each call of one instance: the plugin allowed that when the snapshot was taken.
    for call in 0..8 {
        assert!(matches!(authenticate(&bench), AuthOutcome::Allow(_)), "{call}");
        assert_eq!(policy.kept.len(), 1);
    }
    assert!(policy.snapshots.get().is_some());
    assert!(matches!(authenticate(&bench), AuthOutcome::Fault(fault) if fault.kind == FaultKind::Trap));
    assert!(policy.snapshots.get().is_none(), "it may be the snapshot's fault");
    assert!(!policy.report(None).snapshot);
    assert!(matches!(authenticate(&bench), AuthOutcome::Allow(_)));
}

#[test]
fn what_no_other_instance_may_have_is_not_in_a_snapshot() {
    for (behave, why) in [
        ("draw-at-start", "draws random numbers"),
        ("read-clock-at-start", "may change"),
        ("print-at-start", "keeps a resource"),
    ] {
        let (_bench, policy) = slow(&format!("behave = \"{behave}\""));
        assert!(!take(&policy), "{behave}");
        assert!(why_none(&policy).contains(why), "{behave}: {}", why_none(&policy));
    }
    let secret = tempfile::NamedTempFile::new().unwrap();
    fs::write(secret.path(), "hush").unwrap();
    let settings = format!("[secrets]\nkey = {{ file = {:?} }}\n[settings]\nbehave = \"tell\"", secret.path());
    let (_bench, policy) = loaded(Hook::Auth, "10-x", "guests/misbehave-auth", &settings);
    takes_long(&policy);
    assert!(!take(&policy));
    assert!(why_none(&policy).contains("secret"), "{}", why_none(&policy));
}

#[test]
fn a_file_that_has_changed_since_has_no_snapshot() {
    let (bench, policy) = slow("");
    bench.put("auth/10-x.wasm", variant(&component("guests/misbehave-auth"), 1));
    assert!(!take(&policy));
    assert!(why_none(&policy).contains("changed since"), "{}", why_none(&policy));
}

#[test]
fn who_wants_no_snapshot_has_none() {
    let never = "[policy]\nsnapshot = \"never\"\n";
    let (_bench, policy) = loaded(Hook::Auth, "10-x", "guests/misbehave-auth", never);
    takes_long(&policy);
    policy.configured(None, |_| {}).unwrap();
    eventually("four are ready", || policy.ahead.ready() == 4);
    assert!(!policy.snapshots.has_begun());
}

#[test]
fn random_numbers_are_shared_where_the_settings_file_says_so() {
    let settings = "[policy]\nsnapshot = \"share-random\"\n[settings]\nbehave = \"draw-at-start\"";
    let (_bench, policy) = loaded(Hook::Auth, "10-x", "guests/misbehave-auth", settings);
    takes_long(&policy);
    assert!(take(&policy), "{}", why_none(&policy));
}
