//! Every way to misbehave, in every hook: the right kind of fault, and what the operator chose for it.
use std::time::Duration;

use camshaft_core::ids::Token;
use camshaft_core::policy::{AuthOutcome, FaultKind, ValidateOutcome};

use crate::rig::{
    MISBEHAVIOURS, WORDS, arrival, behave, caller, component, drawn, generation_request, point, rig, row,
    sampling_request,
};

/// Time in which a guest comes to misbehave on a busy machine, where it is not time itself that it takes.
fn enough_time(how: &str) -> &'static str {
    if matches!(how, "spin" | "verify") { "" } else { "deadline = \"2s\"" }
}

#[test]
fn an_auth_policy_that_misbehaves_denies() {
    let rig = rig(&[("auth/10-bad.wasm", &component("guests/misbehave-auth"))]);
    assert!(matches!(rig.authenticate(&caller(false, None)), AuthOutcome::Allow(_)), "it behaves without settings");
    for (how, kind) in MISBEHAVIOURS {
        rig.put("auth/10-bad.toml", behave(how, enough_time(how)));
        let AuthOutcome::Fault(fault) = rig.authenticate(&caller(true, None)) else { panic!("{how} is no fault") };
        assert_eq!(fault.kind, kind, "{how}: {fault}");
        assert!(rig.calls("auth", "bad", kind.as_str()) >= 1.0, "{how} is not counted");
    }
}

#[test]
fn an_auth_policy_that_faults_is_skipped_or_replaced_as_chosen() {
    let bad = component("guests/misbehave-auth");
    let rig = rig(&[("auth/10-bad.wasm", &bad), ("auth/20-well.wasm", &bad)]);
    let refused = |outcome| matches!(outcome, AuthOutcome::Refuse(refusal) if refusal.status == 401);
    rig.put("auth/10-bad.toml", behave("trap", "on-fault = \"skip\""));
    assert!(matches!(rig.authenticate(&caller(false, None)), AuthOutcome::Allow(_)), "the next one decides");
    rig.remove("auth/20-well.wasm");
    assert!(refused(rig.authenticate(&caller(true, None))), "nobody decided");
    rig.put("auth/10-bad.toml", behave("trap", "on-fault = \"fallback\""));
    assert!(matches!(rig.authenticate(&caller(true, None)), AuthOutcome::Allow(p) if p.name == "anonymous"));
    assert!(refused(rig.authenticate(&caller(false, None))), "the native default lets in loopback peers only");
}

#[test]
fn a_validator_that_misbehaves_denies_or_is_passed_over_as_chosen() {
    let rig = rig(&[("validator/10-bad.wasm", &component("guests/misbehave-validator"))]);
    for (how, kind) in MISBEHAVIOURS {
        rig.put("validator/10-bad.toml", behave(how, enough_time(how)));
        match rig.validate(&generation_request(1)) {
            ValidateOutcome::Fault(fault) => assert_eq!(fault.kind, kind, "{how}: {fault}"),
            outcome => panic!("{how} came to {outcome:?}"),
        }
    }
    for on_fault in ["skip", "fallback"] {
        rig.put("validator/10-bad.toml", behave("trap", &format!("on-fault = \"{on_fault}\"")));
        assert!(matches!(rig.validate(&generation_request(1)), ValidateOutcome::Accept), "{on_fault}");
    }
}

#[test]
fn no_call_finds_what_another_left_in_memory() {
    let rig = rig(&[
        ("auth/10-bad.wasm", &component("guests/misbehave-auth")),
        ("validator/10-bad.wasm", &component("guests/misbehave-validator")),
    ]);
    for hook in ["auth", "validator"] {
        rig.put(&format!("{hook}/10-bad.toml"), behave("remember", "deadline = \"2s\""));
    }
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let allowed = rig.authenticate(&caller(false, None));
                    assert!(matches!(allowed, AuthOutcome::Allow(_)), "{allowed:?}");
                    let accepted = rig.validate(&generation_request(1));
                    assert!(matches!(accepted, ValidateOutcome::Accept), "{accepted:?}");
                }
            });
        }
    });
}

#[test]
fn a_scheduler_that_misbehaves_faults() {
    let rig = rig(&[("scheduler/10-bad.wasm", &component("guests/misbehave-scheduler"))]);
    for (how, kind) in MISBEHAVIOURS {
        rig.put("scheduler/10-bad.toml", behave(how, enough_time(how)));
        let hook = rig.host.scheduler("demo");
        let (name, mut scheduler) = hook.open(Duration::ZERO).unwrap().unwrap();
        assert_eq!(name.as_str(), "bad");
        let answer = scheduler.schedule(&point(vec![arrival(1, 5)]));
        if how == "nonsense" {
            // Only the pool knows which requests and workers there are; it reports back.
            let fault = camshaft_core::policy::Fault { plugin: name, kind, detail: "unknown request".to_owned() };
            assert_eq!(answer.unwrap().len(), 1);
            hook.refused(&fault);
            assert_eq!(rig.calls("scheduler", "bad", "invalid_output"), 1.0);
        } else {
            let fault = answer.unwrap_err();
            assert_eq!(fault.kind, kind, "{how}: {fault}");
            assert!(scheduler.schedule(&point(vec![])).is_err(), "{how}: an instance is gone after a fault");
        }
    }
}

#[test]
fn a_sampler_that_misbehaves_falls_back_to_the_native_chain() {
    let rig = rig(&[("sampler/10-bad.wasm", &component("guests/misbehave-sampler"))]);
    for (how, kind) in MISBEHAVIOURS {
        rig.put("sampler/10-bad.toml", behave(how, enough_time(how)));
        let mut sampler = rig.sampler(&sampling_request()).unwrap();
        let before = rig.calls("sampler", "bad", kind.as_str());
        let mut row = row();
        for _ in 0..3 {
            assert_eq!(drawn(&mut *sampler, &mut row).unwrap().0, 2, "{how}: greedy takes the best");
        }
        assert_eq!(rig.calls("sampler", "bad", kind.as_str()), before + 1.0, "{how} faults once, then is out");
    }
}

#[test]
fn a_sampler_that_faults_is_skipped_or_ends_the_request_as_chosen() {
    let words = "[settings]\nwords = [\"blue\"]";
    let rig = rig(&[
        ("sampler/10-bad.wasm", &component("guests/misbehave-sampler")),
        ("sampler/20-avoid.wasm", &component("plugins/sampler-avoid-words")),
        ("sampler/20-avoid.toml", words.as_bytes()),
    ]);
    rig.put("sampler/10-bad.toml", behave("trap", "on-fault = \"skip\""));
    let mut sampler = rig.sampler(&sampling_request()).unwrap();
    let mut left = row();
    drawn(&mut *sampler, &mut left).unwrap();
    assert_eq!(rig.calls("sampler", "avoid", "shaped"), 1.0, "the rest of the chain goes on");
    rig.put("sampler/10-bad.toml", behave("nonsense", "on-fault = \"deny\""));
    let mut sampler = rig.sampler(&sampling_request()).unwrap();
    let mut kept = row();
    assert_eq!(sampler.sample(&mut kept).unwrap_err().kind, FaultKind::InvalidOutput);
    assert_eq!(kept.size(), row().size(), "the row is given back after a fault");
}

#[test]
fn answers_far_too_large_are_faults() {
    let memory = "memory = \"64MiB\"\ndeadline = \"1s\"";
    let rig = rig(&[
        ("validator/10-bad.wasm", &component("guests/misbehave-validator")),
        ("validator/10-bad.toml", behave("leak", memory).as_bytes()),
        ("scheduler/10-bad.wasm", &component("guests/misbehave-scheduler")),
        ("scheduler/10-bad.toml", behave("leak", memory).as_bytes()),
        ("auth/10-bad.wasm", &component("guests/misbehave-auth")),
        ("auth/10-bad.toml", behave("leak", memory).as_bytes()),
    ]);
    match rig.validate(&generation_request(1)) {
        ValidateOutcome::Fault(fault) => assert_eq!(fault.kind, FaultKind::InvalidOutput, "{fault}"),
        outcome => panic!("{outcome:?}"),
    }
    let (_, mut scheduler) = rig.host.scheduler("demo").open(Duration::ZERO).unwrap().unwrap();
    assert_eq!(scheduler.schedule(&point(vec![])).unwrap_err().kind, FaultKind::InvalidOutput);
    match rig.authenticate(&caller(true, None)) {
        AuthOutcome::Fault(fault) => assert_eq!(fault.kind, FaultKind::InvalidOutput, "too much to copy: {fault}"),
        outcome => panic!("{outcome:?}"),
    }
}

#[test]
fn a_flood_of_log_lines_is_cheap_enough_to_answer() {
    let files = behave("flood-log", "deadline = \"1s\"");
    let rig = rig(&[("auth/10-bad.wasm", &component("guests/misbehave-auth")), ("auth/10-bad.toml", files.as_bytes())]);
    assert!(matches!(rig.authenticate(&caller(true, None)), AuthOutcome::Allow(_)));
}

#[test]
fn regression_a_sampler_that_faults_stops_no_other_one_and_leaves_no_half_shaped_row() {
    let avoid = |word: &str| format!("[settings]\nwords = [\"{word}\"]");
    for on_fault in ["fallback", "skip"] {
        // It overwrites the row, keeps one candidate, and then answers nonsense.
        let rig = rig(&[
            ("sampler/20-bad.wasm", &component("guests/misbehave-sampler")),
            ("sampler/20-bad.toml", behave("nonsense", &format!("on-fault = \"{on_fault}\"")).as_bytes()),
            ("sampler/30-after.wasm", &component("plugins/sampler-avoid-words")),
            ("sampler/30-after.toml", avoid(WORDS[2]).as_bytes()),
        ]);
        let mut sampler = rig.sampler(&sampling_request()).unwrap();
        assert_eq!(drawn(&mut *sampler, &mut row()).unwrap(), Token(4), "{on_fault}: the second best, not the third");
        assert_eq!(rig.calls("sampler", "bad", "invalid_output"), 1.0);
        assert_eq!(rig.calls("sampler", "after", "shaped"), 1.0);
        assert_eq!(drawn(&mut *sampler, &mut row()).unwrap(), Token(4), "and so at the next token");
        assert_eq!(rig.calls("sampler", "after", "shaped"), 2.0);
    }
}

#[test]
fn regression_samplers_past_their_budget_are_busy_and_take_nothing_from_auth() {
    let rig = rig(&[
        ("auth/10-x.wasm", &component("guests/misbehave-auth")),
        ("validator/10-x.wasm", &component("plugins/validator-limits")),
        ("scheduler/10-x.wasm", &component("plugins/scheduler-fcfs")),
        // By default a fault falls back to the native chain. Being busy must not switch a policy off.
        ("sampler/10-x.wasm", &component("guests/misbehave-sampler")),
    ]);
    let mut request = sampling_request();
    let mut open = Vec::new();
    // One tenant has half of them, then another has the rest, and for a third there are none. A few may be made ahead just then.
    for (tenant, most, ahead) in [("a", 1024, 0), ("b", 2048, 4), ("c", 2048, 4)] {
        request.tenant = tenant.into();
        let fault = loop {
            match rig.sampler(&request) {
                Ok(sampler) => open.push(sampler),
                Err(fault) => break fault,
            }
            assert!(open.len() <= most, "there is a bound");
        };
        assert_eq!(fault.kind, FaultKind::Exhausted);
        assert!((most - ahead..=most).contains(&open.len()), "{tenant}: {}", open.len());
    }
    assert!(matches!(rig.authenticate(&caller(false, None)), AuthOutcome::Allow(_)));
    assert!(matches!(rig.validate(&generation_request(1)), ValidateOutcome::Accept));
    assert!(rig.host.scheduler("demo").open(Duration::ZERO).unwrap().is_some());
    open.truncate(open.len() - 5);
    assert!(rig.sampler(&request).is_ok(), "those that ended make room");
}
