//! What the main configuration withholds from policies, at a load and while they serve.
use std::sync::Arc;

use camshaft_core::policy::{AuthOutcome, AuthRequest, Policies, PolicyState, ValidateOutcome};
use camshaft_policy::{GrantEntry, Grants};

use crate::rig::{Rig, behave, caller, component, generation_request, rig};

fn granted(entries: &[GrantEntry]) -> Grants {
    Grants::new(false, entries).unwrap()
}

fn entry(policy: &str) -> GrantEntry {
    GrantEntry { policy: policy.to_owned(), ..GrantEntry::default() }
}

/// What an auth policy says that tells what it sees.
fn told(rig: &Rig) -> Option<String> {
    let headers = vec![("x-a".to_owned(), b"1".to_vec()), ("x-a".to_owned(), b"secret".to_vec())];
    match rig.authenticate(&Arc::new(AuthRequest { headers, ..(*caller(true, None)).clone() })) {
        AuthOutcome::Refuse(told) => Some(told.message),
        AuthOutcome::Fault(_) => None,
        AuthOutcome::Allow(_) => panic!("it refuses"),
    }
}

#[test]
fn a_header_that_is_not_granted_is_there_but_reads_as_redacted() {
    let settings = behave("tell", "");
    let rig = rig(&[("auth/10-a.wasm", &component("guests/misbehave-auth")), ("auth/10-a.toml", settings.as_bytes())]);
    let shown = format!("{:?}", [b"1".to_vec(), b"secret".to_vec()]);
    let redacted = format!("{:?}", [b"<redacted>", b"<redacted>"]);
    assert!(told(&rig).unwrap().contains(&shown), "by default it reads all");
    rig.host
        .set_grants(granted(&[GrantEntry { headers: vec!["authorization".to_owned()], ..entry("auth/a") }]))
        .unwrap();
    let message = told(&rig).unwrap();
    assert!(message.contains(&redacted) && message.contains("[\"x-a\"]"), "{message}");
    rig.host.set_grants(granted(&[GrantEntry { headers: vec!["x-*".to_owned()], ..entry("auth/a") }])).unwrap();
    assert!(told(&rig).unwrap().contains(&shown));
    rig.host.set_grants(Grants::nothing()).unwrap();
    assert!(told(&rig).unwrap().contains(&redacted));
}

#[test]
fn a_policy_gets_only_secrets_that_are_granted_and_one_that_is_revoked_is_gone_at_once() {
    let settings = format!("{}[secrets]\nkey = {{ env = \"PATH\" }}\n", behave("tell", ""));
    let rig = rig(&[("auth/10-a.wasm", &component("guests/misbehave-auth")), ("auth/10-a.toml", settings.as_bytes())]);
    assert!(told(&rig).is_some());
    rig.host.set_grants(granted(&[GrantEntry { secrets: vec!["$HOME".to_owned()], ..entry("auth/a") }])).unwrap();
    assert_eq!(told(&rig), None, "a guard that lost its secret refuses everything");
    let status = rig.status("auth/10-a.wasm");
    assert_eq!((status.state, status.serving), (PolicyState::Rejected, None));
    let error = status.error.unwrap();
    assert!(error.contains("$PATH") && error.contains("secret key") && error.contains("policy.grant"), "{error}");
    assert!(rig.host.current().has_auth(), "no door opens");
    rig.host.set_grants(granted(&[GrantEntry { secrets: vec!["$PA*".to_owned()], ..entry("auth/a") }])).unwrap();
    assert!(told(&rig).is_some());
    assert_eq!(rig.status("auth/10-a.wasm").state, PolicyState::Active);
    // A new settings file gets nothing more; what serves goes on.
    rig.put("auth/10-a.toml", format!("{}[secrets]\nkey = {{ env = \"HOME\" }}\n", behave("tell", "")));
    assert_eq!(rig.status("auth/10-a.wasm").state, PolicyState::Rejected);
    assert!(told(&rig).is_some());
}

#[test]
fn a_validator_without_the_body_faults_where_it_asks_for_it() {
    let settings = behave("tell", "");
    let rig = rig(&[
        ("validator/10-v.wasm", &component("guests/misbehave-validator")),
        ("validator/10-v.toml", settings.as_bytes()),
    ]);
    let validate = || rig.validate(&generation_request(7));
    assert!(matches!(validate(), ValidateOutcome::Refuse(told) if told.message.contains("max_tokens")));
    rig.host.set_grants(Grants::nothing()).unwrap();
    assert!(matches!(validate(), ValidateOutcome::Fault(fault) if fault.detail.contains("does not grant it the body")));
    rig.host.set_grants(granted(&[GrantEntry { body: true, ..entry("validator/v") }])).unwrap();
    assert!(matches!(validate(), ValidateOutcome::Refuse(_)));
}
