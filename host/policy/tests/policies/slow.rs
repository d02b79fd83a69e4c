//! Guests that take long: on which threads they are called, and how many calls wait for them.
use std::sync::Arc;

use camshaft_core::answering::{Answering, at_once, wait};
use camshaft_core::policy::{AuthOutcome, AuthRequest, FaultKind, Policies, PolicySet, ValidateOutcome};

use crate::rig::{Rig, behave, caller, component, generation_request, rig};

/// Calls of one version that may wait, and the most threads that make them.
const WAITING: usize = 64;
const THREADS: usize = 8;
/// A breaker that never opens.
const NO_BREAKER: &str = "breaker = { faults = 0 }";

fn auth(how: &str, policy: &str) -> Rig {
    let rig = rig(&[("auth/10-bad.wasm", &component("guests/misbehave-auth"))]);
    rig.put("auth/10-bad.toml", behave(how, &format!("{NO_BREAKER}\n{policy}")));
    rig
}

fn ask<'a>(set: &'a dyn PolicySet, request: &'a Arc<AuthRequest>) -> Result<AuthOutcome, Answering<'a, AuthOutcome>> {
    let answering = at_once(set.authenticate(request)).map(|answer| answer.outcome);
    answering.map_err(|later| -> Answering<'a, AuthOutcome> { Box::pin(async { later.await.outcome }) })
}

#[test]
fn guests_that_spin_are_on_no_thread_that_serves_connections() {
    // Long enough that no answer is there yet when it is looked for.
    let rig = auth("spin", "deadline = \"200ms\"");
    let (set, request) = (rig.host.current(), caller(true, None));
    let waiting: Vec<_> = (0..32).map(|_| ask(&*set, &request).expect_err("nobody spins here")).collect();
    for answer in waiting {
        assert!(matches!(wait(answer), AuthOutcome::Fault(fault) if fault.kind == FaultKind::Deadline));
    }
    assert!(rig.calls("auth", "bad", "deadline") >= 32.0);
}

#[test]
fn a_validator_that_spins_is_waited_for_by_whoever_can() {
    let rig = rig(&[("validator/10-bad.wasm", &component("guests/misbehave-validator"))]);
    rig.put("validator/10-bad.toml", behave("spin", &format!("{NO_BREAKER}\ndeadline = \"200ms\"")));
    let answer = at_once(rig.host.current().validate(0, &generation_request(1))).expect_err("nobody spins here");
    assert!(matches!(wait(answer).outcome, ValidateOutcome::Fault(fault) if fault.kind == FaultKind::Deadline));
}

#[test]
fn a_policy_with_too_many_waiting_calls_answers_no_more_and_is_not_skipped_for_it() {
    for on_fault in ["deny", "skip", "fallback"] {
        // It spins for long, so that the calls come to wait.
        let rig = auth("spin", &format!("on-fault = \"{on_fault}\"\ndeadline = \"500ms\""));
        let (set, request) = (rig.host.current(), caller(true, None));
        let mut waiting = Vec::new();
        let refused = loop {
            match ask(&*set, &request) {
                Ok(outcome) => break outcome,
                Err(later) => waiting.push(later),
            }
            assert!(waiting.len() <= WAITING + THREADS, "one past the bound is refused");
        };
        assert!(matches!(refused, AuthOutcome::Fault(fault) if fault.kind == FaultKind::Exhausted), "{on_fault}");
        assert!(waiting.len() >= WAITING, "as many as the bound wait: {}", waiting.len());
        // Clients that leave make room.
        waiting.truncate(1);
        assert!(ask(&*set, &request).is_err());
    }
}
