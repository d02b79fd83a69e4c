//! How long sessions keep their numbers, and how many are kept.
use std::sync::Arc;

use super::*;
use crate::ids::{PolicyDigest, Token};
use crate::sampling::SamplingParams;

fn start(tenant: &str, namespace: &str, session: &str) -> Start {
    let prompt: Arc<[Token]> = vec![Token(1)].into();
    Start {
        id: RequestId(0),
        model: "m".to_owned(),
        tenant: tenant.into(),
        namespace: Namespace::Named(namespace.into()),
        adapters: Default::default(),
        session: Some(session.into()),
        priority: Default::default(),
        endpoint: crate::policy::Endpoint::Completion,
        sampler_chain: PolicyDigest::NATIVE,
        filter_chain: PolicyDigest::NATIVE,
        prompt,
        params: SamplingParams::greedy(),
        samplers: None,
        choice: 0,
        max_tokens: 1,
        stop: Vec::new(),
        ignore_eos: false,
        ends: Default::default(),
        score_prompt: false,
        logprobs: None,
        grammar: None,
        shown: Arc::default(),
        context: Default::default(),
    }
}

#[test]
fn a_name_counts_only_within_its_tenant_and_namespace() {
    let mut groups = Groups::default();
    let names = [("a", "x", "s"), ("a", "y", "s"), ("b", "x", "s"), ("a", "x", "t")];
    let numbers: BTreeSet<u64> =
        names.iter().map(|(t, n, s)| groups.enter(&start(t, n, s), RequestId(1)).group()).collect();
    assert_eq!(numbers.len(), names.len());
    assert!(!numbers.contains(&0) && numbers.iter().all(|number| number % 2 == 0), "{numbers:?}");
}

#[test]
fn only_so_many_idle_sessions_are_kept_and_none_with_a_request_is_forgotten() {
    let mut groups = Groups::default();
    let busy = groups.enter(&start("a", "x", "busy"), RequestId(0));
    let visit = |groups: &mut Groups, n: usize| {
        let membership = groups.enter(&start("a", "x", &n.to_string()), RequestId(n as u64 + 1));
        groups.leave(membership);
        membership
    };
    let first = visit(&mut groups, 0);
    (1..IDLE).for_each(|n| _ = visit(&mut groups, n));
    assert_eq!((groups.sessions.len(), groups.idle.len()), (IDLE + 1, IDLE), "at the bound");
    assert_eq!(visit(&mut groups, IDLE).turns(), 0);
    assert_eq!((groups.sessions.len(), groups.numbers.len(), groups.idle.len()), (IDLE + 1, IDLE + 1, IDLE));
    let again = visit(&mut groups, 0);
    assert!(again.group() != first.group() && again.turns() == 0, "the first that became idle was forgotten");
    let next = groups.enter(&start("a", "x", "busy"), RequestId(9));
    assert_eq!((next.group(), next.turns()), (busy.group(), 1));
}
