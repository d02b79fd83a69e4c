//! Samplers that leave their work to the host, ask it for more than it gives, or refuse.
use camshaft_core::ids::Token;
use camshaft_core::policy::{FaultKind, NoSampler, Policies, SamplerHook};

use crate::rig::{Rig, component, drawn, rig, row, sampling_request};

fn asks(what: &str, tokens: &str, policy: &str) -> Rig {
    let settings = format!("[policy]\n{policy}\n[settings]\nask = \"{what}\"\ntokens = {tokens}\n");
    rig(&[("sampler/10-asks.wasm", &component("guests/sampler-plans")), ("sampler/10-asks.toml", settings.as_bytes())])
}

fn refused(rig: &Rig) -> NoSampler {
    let chain = rig.host.current().sampler_chain();
    SamplerHook::open(&*rig.host, chain, &sampling_request()).err().unwrap()
}

#[test]
fn a_plan_that_never_wakes_shapes_each_row_without_a_call() {
    let rig = asks("plan-best", "[]", "");
    let mut sampler = rig.sampler(&sampling_request()).unwrap();
    for _ in 0..100 {
        assert_eq!(drawn(&mut *sampler, &mut row()).unwrap(), Token(2));
    }
    assert_eq!((rig.calls("sampler", "asks", "planned"), rig.calls("sampler", "asks", "shaped")), (1.0, 0.0));
}

#[test]
fn instances_whose_plans_never_wake_them_make_room_for_others() {
    let rig = asks("plan-best", "[]", "");
    let open: Vec<_> = (0..2100).map(|_| rig.sampler(&sampling_request()).unwrap()).collect();
    assert_eq!(open.len(), 2100, "2048 may exist at once");
}

#[test]
fn a_sampler_is_called_when_its_plan_wakes_it() {
    let rig = asks("every-third", "[3]", "");
    let mut sampler = rig.sampler(&sampling_request()).unwrap();
    let mut row = row();
    let mut tokens = Vec::new();
    for _ in 0..7 {
        row.load(&[0.0, 1.0, 4.0, 2.0, 3.0, -1.0]).unwrap();
        let token = drawn(&mut *sampler, &mut row).unwrap();
        row.accept(token, b"x");
        tokens.push(token.0);
    }
    assert_eq!(tokens, [3, 2, 2, 3, 2, 2, 3]);
    assert_eq!(rig.calls("sampler", "asks", "drawn"), 3.0);
}

#[test]
fn plans_that_no_row_can_take_are_faults_of_the_start() {
    for what in ["plan-nan", "plan-overfull", "plan-outside", "refuse-wrongly"] {
        let rig = asks(what, "[]", "on-fault = \"deny\"");
        match refused(&rig) {
            NoSampler::Fault(fault) => assert_eq!(fault.kind, FaultKind::InvalidOutput, "{what}: {fault}"),
            NoSampler::Refused(refusal) => panic!("{what}: {refusal:?}"),
        }
        let rig = asks(what, "[]", "");
        let mut sampler = rig.sampler(&sampling_request()).unwrap();
        assert_eq!(drawn(&mut *sampler, &mut row()).unwrap(), Token(2), "{what}: the native chain");
    }
    assert!(asks("plan-full", "[]", "on-fault = \"deny\"").sampler(&sampling_request()).is_ok(), "32 steps");
}

#[test]
fn a_sampler_may_refuse_the_request() {
    match refused(&asks("refuse", "[]", "")) {
        NoSampler::Refused(refusal) => {
            assert_eq!((refusal.status, refusal.code.as_str()), (403, "not_today"));
            assert_eq!(refusal.param.as_deref(), Some("prompt"));
        }
        NoSampler::Fault(fault) => panic!("{fault}"),
    }
}

#[test]
fn a_fault_takes_back_all_that_the_policy_did_to_the_row() {
    // Token 2 is the best. Were its ban left over, 4 would be drawn.
    for what in ["plan-then-trap", "half-then-trap"] {
        let rig = asks(what, "[2]", "");
        let mut sampler = rig.sampler(&sampling_request()).unwrap();
        let mut row = row();
        assert_eq!(drawn(&mut *sampler, &mut row).unwrap(), Token(2), "{what}");
        assert!(row.take_forced().is_none() && !row.is_finished(), "{what}");
        assert_eq!(rig.calls("sampler", "asks", "trap"), 1.0);
    }
}

#[test]
fn what_is_asked_of_a_row_is_checked() {
    for what in ["force-outside", "finish-wrongly"] {
        let rig = asks(what, "[]", "on-fault = \"deny\"");
        let mut sampler = rig.sampler(&sampling_request()).unwrap();
        let fault = sampler.sample(&mut row()).unwrap_err();
        assert_eq!(fault.kind, FaultKind::InvalidOutput, "{what}: {fault}");
    }
}

#[test]
fn every_operation_does_the_same_in_a_call_and_in_a_plan() {
    for what in ["every-operation", "every-operation-planned"] {
        let rig = asks(what, "[]", "on-fault = \"deny\"");
        let mut sampler = rig.sampler(&sampling_request()).unwrap();
        assert_eq!(drawn(&mut *sampler, &mut row()).unwrap(), Token(2), "{what}");
    }
}

#[test]
fn a_required_sampler_runs_first_whatever_a_request_names() {
    let settings = "[policy]\nrequired = true\n[settings]\nwords = [\"blue\"]";
    let rig = rig(&[
        ("sampler/10-best.wasm", &component("guests/sampler-plans")),
        ("sampler/10-best.toml", b"[settings]\nask = \"every-third\"\ntokens = [2]"),
        ("sampler/20-avoid.wasm", &component("plugins/sampler-avoid-words")),
        ("sampler/20-avoid.toml", settings.as_bytes()),
    ]);
    let mut request = sampling_request();
    for names in [vec!["avoid", "best", "best"], vec!["best", "avoid"], vec!["best"], vec![]] {
        request.samplers = Some(names.iter().map(|name| (*name).to_owned()).collect());
        let before =
            ["avoid", "best"].map(|name| rig.calls("sampler", name, "shaped") + rig.calls("sampler", name, "drawn"));
        let mut sampler = rig.sampler(&request).unwrap();
        sampler.sample(&mut row()).unwrap();
        let after =
            ["avoid", "best"].map(|name| rig.calls("sampler", name, "shaped") + rig.calls("sampler", name, "drawn"));
        let best = if names.contains(&"best") { 1.0 } else { 0.0 };
        assert_eq!([after[0] - before[0], after[1] - before[1]], [1.0, best], "{names:?}");
    }
}
