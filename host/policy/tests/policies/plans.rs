//! Samplers that leave their work to the host, ask it for more than it gives, or refuse.
use std::sync::Arc;

use camshaft_core::ids::Token;
use camshaft_core::policy::{FaultKind, NoSampler, Policies, SamplerHook, SamplingRequest};
use camshaft_core::sampling::{EndReason, Row};
use camshaft_core::vocabulary::Vocabulary;

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

/// A request to a model with so many tokens, and a row of it.
fn large(size: u32) -> (SamplingRequest, Row) {
    let vocabulary = Arc::new(Vocabulary::new((0..size).map(u32::to_le_bytes), vec![Token(0)]));
    let logits: Vec<f32> = (0..size).map(|token| (token % 1000) as f32 / 100.0).collect();
    let mut row = Row::new(&[Token(1)], 1);
    row.load(&logits).unwrap();
    (SamplingRequest { vocabulary, ..sampling_request() }, row)
}

#[test]
fn a_plan_that_takes_too_much_work_is_a_fault_of_the_start() {
    // 24 passes each, of 64 and 2^20 logits more.
    for (steps, fits) in [(3, true), (4, false)] {
        let rig = asks("plan-costly", &format!("{:?}", vec![0; steps]), "on-fault = \"deny\"");
        match (rig.sampler(&large(65_536).0), fits) {
            (Ok(_), true) => {}
            (Err(fault), false) => {
                assert_eq!(fault.kind, FaultKind::InvalidOutput);
                assert!(fault.detail.contains("units of work"), "{fault}");
            }
            (answer, _) => panic!("{steps} steps: {:?}", answer.err()),
        }
    }
}

#[test]
fn a_plan_that_takes_more_time_than_a_call_may_is_a_fault_at_a_later_token() {
    let policy = "on-fault = \"deny\"\ndeadline = \"1ms\"";
    let rig = asks("plan-costly", "[0, 0]", policy);
    let (request, mut row) = large(1 << 20);
    let mut sampler = rig.sampler(&request).unwrap();
    let logits = row.read(0, 1 << 20).unwrap().to_vec();
    let fault = (0..100).find_map(|_| {
        row.load(&logits).unwrap();
        sampler.sample(&mut row).err()
    });
    let fault = fault.expect("it takes more than 1 ms for a million tokens");
    assert!(fault.kind == FaultKind::Deadline && fault.detail.contains("its plan takes more than 1 ms"), "{fault}");
    assert_eq!(row.candidates(), 1 << 20, "the row is as it was");
    assert_eq!(rig.calls("sampler", "asks", "deadline"), 1.0);
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
        assert!(row.take_forced().is_none() && row.finished().is_none(), "{what}");
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
fn a_sampler_ends_a_generation_for_one_of_three_reasons() {
    for (what, reason) in [
        ("finish-stop", EndReason::Stop),
        ("finish-length", EndReason::Length),
        ("finish-content-filter", EndReason::ContentFilter),
    ] {
        let rig = asks(what, "[]", "on-fault = \"deny\"");
        let (mut sampler, mut row) = (rig.sampler(&sampling_request()).unwrap(), row());
        sampler.sample(&mut row).unwrap();
        assert_eq!(row.finished(), Some(reason), "{what}");
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
