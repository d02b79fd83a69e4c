//! Trials of new versions: whom they serve, and how they end.
mod regressions;

use std::sync::Arc;
use std::time::{Duration, Instant};

use camshaft_core::answering::wait;
use camshaft_core::policy::{
    AuthRequest, Fault, FaultKind, Hook, Mode, ModeError, PolicyAction, PolicyEvent, PolicyOrder, PolicySet,
    PolicyState,
};

use super::ModeChange;
use super::bench::{Bench, component, variant};
use crate::digest::digest_of;
use crate::loaded::Loaded;
use crate::metrics::Outcome;
use crate::view::View;

/// Half of the traffic, until each version has answered ten calls and a second is over.
const CANARY: &str =
    "[policy]\ncanary = 0.5\ncanary-calls = 10\ncanary-time = \"1s\"\nbreaker = { faults = 3, share = 0.0 }\n";

fn settings(more: &str) -> String {
    format!("{CANARY}{more}")
}

impl Bench {
    fn candidate(&self, hook: Hook) -> Arc<Loaded> {
        self.loader.registry.current().candidates(hook).first().unwrap().clone()
    }

    fn stable(&self, hook: Hook) -> String {
        self.loader.registry.current().ready(hook).next().unwrap().compiled.digest.clone()
    }

    fn tries(&self, hook: Hook) -> usize {
        self.loader.registry.current().candidates(hook).len()
    }

    fn order(&mut self, hook: Hook, action: PolicyAction) -> Result<PolicyState, ModeError> {
        let order = PolicyOrder { hook, name: "x".to_owned(), action, who: "me".to_owned() };
        if let Some(status) = self.loader.obey(&order)? {
            return Ok(status.state);
        }
        if self.loader.outcome(&order).is_none() {
            self.settle();
        }
        self.loader.outcome(&order).unwrap().map(|status| status.state)
    }

    fn events(&self, event: PolicyEvent) -> Vec<String> {
        let changes = self.loader.history().lock().unwrap().changes();
        changes.into_iter().filter(|change| change.event == event).map(|change| change.who).collect()
    }
}

fn answer(policy: &Loaded, times: u64) {
    (0..times).for_each(|_| policy.note_answer(Outcome::Next, Instant::now()));
}

fn fault(policy: &Loaded) {
    let fault = Fault { plugin: "x".into(), kind: FaultKind::Trap, detail: "trapped".to_owned() };
    policy.note_fault(&fault, Instant::now());
}

/// A bench in which the second version of a policy is on trial; both files.
fn trial(hook: Hook) -> (Bench, Vec<u8>, Vec<u8>) {
    let guest = component(&format!("guests/misbehave-{hook}"));
    let mut bench = Bench::new();
    bench.put(&format!("{hook}/10-x.toml"), "[policy]\nmode = \"enforce\"\n");
    bench.put(&format!("{hook}/10-x.wasm"), &guest);
    bench.loader.start().unwrap();
    let next = variant(&guest, 1);
    bench.put(&format!("{hook}/10-x.toml"), CANARY);
    bench.put(&format!("{hook}/10-x.wasm"), &next);
    bench.settle();
    bench.settle();
    (bench, guest, next)
}

#[test]
fn a_new_version_is_tried_beside_the_one_before_and_each_tenant_meets_one_of_them() {
    for hook in [Hook::Validator, Hook::Sampler, Hook::Filter] {
        let (bench, old, new) = trial(hook);
        assert_eq!(
            (bench.stable(hook), bench.candidate(hook).compiled.digest.clone()),
            (digest_of(&old), digest_of(&new))
        );
        let status = bench.status("x").unwrap();
        assert_eq!((status.state, status.serving), (PolicyState::Active, Some(digest_of(&old))));
        let canary = status.canary.unwrap();
        assert_eq!((canary.share, canary.digest, canary.digest_before), (0.5, digest_of(&new), Some(digest_of(&old))));
        let view = View::stable(bench.loader.registry.current());
        // What is seen of a choice, and of both chains that workers find.
        let assigned = |tenant: &str| {
            let assigned = view.assigned(&tenant.into()).unwrap();
            (format!("{assigned:?}"), assigned.sampler_chain(), assigned.filter_chain())
        };
        let mut met = std::collections::HashSet::new();
        for tenant in 0..64 {
            let tenant = format!("t{tenant}");
            assert_eq!(assigned(&tenant), assigned(&tenant), "whatever the request");
            met.insert(assigned(&tenant));
        }
        assert_eq!(met.len(), 2, "{hook}: both are met");
        // A chain that was assigned is found again.
        for (_, sampler, filter) in met {
            for (of, chain) in [(Hook::Sampler, sampler), (Hook::Filter, filter)] {
                assert_eq!(bench.loader.registry.find(of, chain).chain(of).digest, chain);
            }
        }
        assert_eq!(bench.events(PolicyEvent::Canary), ["file"]);
    }
}

#[test]
fn regression_to_enforce_what_is_on_trial_does_not_begin_its_trial_anew() {
    let (mut bench, _, new) = trial(Hook::Sampler);
    let candidate = bench.candidate(Hook::Sampler);
    let mut change = ModeChange::new(Hook::Sampler, "x".to_owned(), Mode::Enforce);
    let status = change.attempt(&mut bench.loader).unwrap().unwrap();
    assert_eq!(status.canary.map(|canary| canary.digest), Some(digest_of(&new)));
    bench.settle();
    assert!(Arc::ptr_eq(&candidate, &bench.candidate(Hook::Sampler)), "it goes on");
    // Another mode ends it.
    let mut change = ModeChange::new(Hook::Sampler, "x".to_owned(), Mode::Monitor);
    change.attempt(&mut bench.loader);
    bench.settle();
    assert_eq!(bench.tries(Hook::Sampler), 0);
}

#[test]
fn an_auth_policy_is_tried_by_what_callers_bring_before_their_tenant_is_known() {
    let (bench, ..) = trial(Hook::Auth);
    let view = View::stable(bench.loader.registry.current());
    let ask = |key: &str, id: &str| {
        let before = bench.candidate(Hook::Auth).health.calls();
        let headers = vec![("authorization".to_owned(), key.as_bytes().to_vec())];
        let request =
            AuthRequest { id: id.to_owned(), headers, path: "/v1/models".to_owned(), ..AuthRequest::default() };
        wait(view.authenticate(&Arc::new(request)));
        bench.candidate(Hook::Auth).health.calls() > before
    };
    let mut met = [false; 2];
    for key in 0..64 {
        let key = format!("Bearer {key}");
        assert_eq!(ask(&key, "a"), ask(&key, "b"), "the same caller meets the same version");
        met[usize::from(ask(&key, "a"))] = true;
    }
    assert_eq!(met, [true; 2]);
}

#[test]
fn a_trial_is_promoted_by_its_rule_and_the_version_before_is_kept_for_going_back() {
    let (mut bench, old, new) = trial(Hook::Sampler);
    answer(&bench.candidate(Hook::Sampler), 10);
    let serving = bench.loader.registry.current().ready(Hook::Sampler).next().unwrap().clone();
    answer(&serving, 3);
    assert!(!bench.loader.judge_trials(), "it is not a second old");
    std::thread::sleep(Duration::from_millis(1100));
    let before = bench.loader.registry.current().generation;
    assert!(bench.loader.judge_trials());
    assert!(!bench.loader.judge_trials(), "once");
    assert_eq!((bench.stable(Hook::Sampler), bench.tries(Hook::Sampler)), (digest_of(&new), 0));
    assert_eq!(bench.loader.registry.current().generation.0, before.0 + 1);
    let status = bench.status("x").unwrap();
    assert_eq!((status.state, status.canary, status.error), (PolicyState::Active, None, None));
    assert_eq!(status.health.unwrap().last_good, Some(digest_of(&old)));
    assert_eq!(bench.events(PolicyEvent::Promoted), ["canary"]);
    // Looking again, also after a panic, changes nothing.
    bench.loader.recover();
    bench.settle();
    assert_eq!((bench.stable(Hook::Sampler), bench.tries(Hook::Sampler)), (digest_of(&new), 0));
    bench.order(Hook::Sampler, PolicyAction::Rollback).unwrap();
    assert_eq!(bench.stable(Hook::Sampler), digest_of(&old));
}

#[test]
fn a_trial_with_too_large_a_share_of_faults_is_rolled_back_and_not_tried_again_until_its_file_changes() {
    let (mut bench, old, new) = trial(Hook::Sampler);
    answer(&bench.candidate(Hook::Sampler), 50);
    fault(&bench.candidate(Hook::Sampler));
    std::thread::sleep(Duration::from_millis(1100));
    assert!(bench.loader.judge_trials());
    assert_eq!((bench.stable(Hook::Sampler), bench.tries(Hook::Sampler)), (digest_of(&old), 0));
    let why = bench.status("x").unwrap().error.unwrap();
    assert!(why.contains("1 of its 51 calls faulted") && why.contains(&digest_of(&new)), "{why}");
    bench.loader.recover();
    bench.settle();
    assert_eq!((bench.state("x"), bench.tries(Hook::Sampler)), (Some(PolicyState::Rejected), 0));
    assert_eq!(bench.stable(Hook::Sampler), digest_of(&old));
    // An operator may have it tried again, and another file is another chance.
    bench.order(Hook::Sampler, PolicyAction::Promote).unwrap();
    bench.settle();
    assert_eq!((bench.state("x"), bench.tries(Hook::Sampler)), (Some(PolicyState::Active), 1));
    bench.put("sampler/10-x.wasm", variant(&old, 2));
    bench.settle();
    assert_eq!(bench.candidate(Hook::Sampler).compiled.digest, digest_of(&variant(&old, 2)));
}

#[test]
fn the_breaker_of_a_version_on_trial_ends_it_at_once() {
    let (mut bench, old, _) = trial(Hook::Validator);
    let candidate = bench.candidate(Hook::Validator);
    let set = bench.loader.registry.current();
    let picks = set.picks(Hook::Validator, |_, _| true);
    let assigned = View::stable(set.clone()).with(Hook::Validator, picks);
    assert_eq!(assigned.chain(Hook::Validator).digest, set.variant(Hook::Validator, picks).digest);
    (0..3).for_each(|_| fault(&candidate));
    assert!(candidate.health.has_opened());
    // Before anybody has looked, nobody new meets it, nor do those who were assigned it.
    assert_eq!(set.picks(Hook::Validator, |_, _| true), Default::default());
    assert_eq!(assigned.chain(Hook::Validator).digest, set.chain(Hook::Validator).digest);
    assert!(bench.loader.alarms().try_recv().is_ok());
    assert!(bench.loader.heed_breakers());
    assert_eq!((bench.stable(Hook::Validator), bench.tries(Hook::Validator)), (digest_of(&old), 0));
    assert_eq!(bench.events(PolicyEvent::RolledBack), ["canary"]);
    let why = bench.status("x").unwrap().error.unwrap();
    assert!(why.contains("its breaker opened") && why.contains("trapped"), "{why}");
}

#[test]
fn operators_end_trials_at_once() {
    for (action, promoted) in [(PolicyAction::Promote, true), (PolicyAction::Rollback, false)] {
        let (mut bench, old, new) = trial(Hook::Filter);
        let state = bench.order(Hook::Filter, action).unwrap();
        assert_eq!(state, if promoted { PolicyState::Active } else { PolicyState::Rejected });
        let serves = if promoted { &new } else { &old };
        assert_eq!((bench.stable(Hook::Filter), bench.tries(Hook::Filter)), (digest_of(serves), 0));
        let event = if promoted { PolicyEvent::Promoted } else { PolicyEvent::RolledBack };
        assert_eq!(bench.events(event), ["me"]);
        bench.settle();
        assert_eq!((bench.stable(Hook::Filter), bench.tries(Hook::Filter)), (digest_of(serves), 0));
    }
}

#[test]
fn the_first_version_of_a_guard_serves_whole_and_that_of_others_only_its_share() {
    for hook in Hook::ALL {
        let mut bench = Bench::new();
        bench.put(&format!("{hook}/10-x.toml"), CANARY);
        bench.put(&format!("{hook}/10-x.wasm"), component(&format!("guests/misbehave-{hook}")));
        bench.loader.start().unwrap();
        let guards = crate::spec::spec(hook).guards;
        let set = bench.loader.registry.current();
        assert_eq!((set.ready(hook).count(), bench.tries(hook)), if guards { (1, 0) } else { (0, 1) }, "{hook}");
        let status = bench.status("x").unwrap();
        assert_eq!(
            (status.state, status.serving.is_some(), status.canary.is_some()),
            (PolicyState::Active, guards, !guards)
        );
        if guards {
            continue;
        }
        bench.order(hook, PolicyAction::Rollback).unwrap();
        bench.settle();
        assert_eq!(
            (bench.state("x"), bench.tries(hook)),
            (Some(PolicyState::Rejected), 0),
            "{hook}: it is not tried again"
        );
        bench.order(hook, PolicyAction::Promote).unwrap();
        bench.settle();
        bench.order(hook, PolicyAction::Promote).unwrap();
        assert_eq!((bench.loader.registry.current().ready(hook).count(), bench.tries(hook)), (1, 0));
    }
}

#[test]
fn files_that_change_during_a_trial_are_tried_or_withdraw_it() {
    let (mut bench, old, new) = trial(Hook::Sampler);
    // Other settings of the version that is on trial: another version.
    bench.put("sampler/10-x.toml", settings("deadline = \"7ms\"\n").replace("breaker", "# breaker"));
    bench.settle();
    assert_eq!(bench.candidate(Hook::Sampler).sidecar.deadline.as_millis(), 7);
    assert_eq!(bench.stable(Hook::Sampler), digest_of(&old));
    // What cannot serve leaves both as they are.
    bench.put("sampler/10-x.wasm", "nonsense");
    bench.settle();
    assert_eq!((bench.state("x"), bench.tries(Hook::Sampler)), (Some(PolicyState::Rejected), 1));
    // The version on trial is there again.
    bench.put("sampler/10-x.wasm", &new);
    bench.settle();
    assert_eq!((bench.state("x"), bench.tries(Hook::Sampler)), (Some(PolicyState::Active), 1));
    // The version that serves is there again.
    bench.put("sampler/10-x.wasm", &old);
    bench.put("sampler/10-x.toml", "[policy]\nmode = \"enforce\"\n");
    bench.settle();
    assert_eq!((bench.stable(Hook::Sampler), bench.tries(Hook::Sampler)), (digest_of(&old), 0));
    // How it is to be tried is no other version.
    bench.put("sampler/10-x.toml", "[policy]\ncanary = 0.3\n");
    bench.settle();
    assert_eq!((bench.stable(Hook::Sampler), bench.tries(Hook::Sampler)), (digest_of(&old), 0));
    // A mode ends a trial.
    bench.put("sampler/10-x.wasm", &new);
    bench.settle();
    assert_eq!(bench.tries(Hook::Sampler), 1);
    bench.put("sampler/10-x.toml", "[policy]\nmode = \"off\"\n");
    bench.settle();
    assert_eq!((bench.state("x"), bench.tries(Hook::Sampler)), (Some(PolicyState::Off), 0));
}

#[test]
fn as_many_versions_of_a_hook_are_tried_at_once_as_the_bound_and_none_more() {
    let guest = component("guests/misbehave-sampler");
    let mut bench = Bench::new();
    let most = crate::set::TRIALS_MAX;
    let name = |number: usize| format!("sampler/{:02}-n{number}", number + 10);
    for number in 0..=most {
        bench.put(&format!("{}.wasm", name(number)), &guest);
    }
    bench.loader.start().unwrap();
    for number in 0..=most {
        bench.put(&format!("{}.toml", name(number)), CANARY.replace("3,", &format!("{},", number + 4)));
    }
    bench.settle();
    assert_eq!(bench.tries(Hook::Sampler), most);
    let waits = format!("n{most}");
    let why = bench.status(&waits).unwrap().error.unwrap();
    assert!(why.contains("4 new versions"), "{why}");
    let order =
        |name: &str, action| PolicyOrder { hook: Hook::Sampler, name: name.to_owned(), action, who: "me".to_owned() };
    bench.loader.obey(&order("n0", PolicyAction::Promote)).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    bench.settle();
    assert_eq!(
        (bench.tries(Hook::Sampler), bench.state(&waits)),
        (most, Some(PolicyState::Active)),
        "its turn has come"
    );
}
