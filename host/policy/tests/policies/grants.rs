//! What the main configuration withholds from policies, at a load and while they serve.
use std::path::Path;
use std::sync::Arc;

use camshaft_core::policy::{AuthOutcome, AuthRequest, Hook, Mode, Policies, PolicyState, ValidateOutcome};
use camshaft_policy::{Demands, GrantEntry, Grants, PolicyError};

use crate::rig::{NEVER, Rig, behave, caller, component, generation_request, put, rig};

fn granted(entries: &[GrantEntry]) -> Grants {
    Grants::new(false, entries).unwrap()
}

fn entry(policy: &str) -> GrantEntry {
    GrantEntry { policy: policy.to_owned(), ..GrantEntry::default() }
}

/// Puts other grants in force, as a reload of the configuration does.
fn grant(rig: &Rig, grants: Grants) {
    relocate(rig, rig.dir.path(), grants).unwrap();
}

fn relocate(rig: &Rig, dir: &Path, grants: Grants) -> Result<(), PolicyError> {
    rig.host.relocate(dir.to_path_buf(), NEVER, Demands { auth: false, same_guards: true }, grants)
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
    grant(&rig, granted(&[GrantEntry { headers: vec!["authorization".to_owned()], ..entry("auth/a") }]));
    let message = told(&rig).unwrap();
    assert!(message.contains(&redacted) && message.contains("[\"x-a\"]"), "{message}");
    grant(&rig, granted(&[GrantEntry { headers: vec!["x-*".to_owned()], ..entry("auth/a") }]));
    assert!(told(&rig).unwrap().contains(&shown));
    grant(&rig, Grants::nothing());
    assert!(told(&rig).unwrap().contains(&redacted));
}

#[test]
fn a_policy_gets_only_secrets_that_are_granted_and_one_that_is_revoked_is_gone_at_once() {
    let settings = format!("{}[secrets]\nkey = {{ env = \"PATH\" }}\n", behave("tell", ""));
    let rig = rig(&[("auth/10-a.wasm", &component("guests/misbehave-auth")), ("auth/10-a.toml", settings.as_bytes())]);
    assert!(told(&rig).is_some());
    grant(&rig, granted(&[GrantEntry { secrets: vec!["$HOME".to_owned()], ..entry("auth/a") }]));
    assert_eq!(told(&rig), None, "a guard that lost its secret refuses everything");
    let status = rig.status("auth/10-a.wasm");
    assert_eq!((status.state, status.serving), (PolicyState::Rejected, None));
    let error = status.error.unwrap();
    assert!(error.contains("$PATH") && error.contains("secret key") && error.contains("policy.grant"), "{error}");
    assert!(rig.host.current().has_auth(), "no door opens");
    grant(&rig, granted(&[GrantEntry { secrets: vec!["$PA*".to_owned()], ..entry("auth/a") }]));
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
    grant(&rig, Grants::nothing());
    assert!(matches!(validate(), ValidateOutcome::Fault(fault) if fault.detail.contains("does not grant it the body")));
    grant(&rig, granted(&[GrantEntry { body: true, ..entry("validator/v") }]));
    assert!(matches!(validate(), ValidateOutcome::Refuse(_)));
}

#[test]
fn regression_a_directory_that_is_refused_changes_no_grants() {
    let with = |variable: &str| format!("{}[secrets]\nkey = {{ env = \"{variable}\" }}\n", behave("tell", ""));
    let auth = component("guests/misbehave-auth");
    let rig = rig(&[("auth/10-a.wasm", &auth), ("auth/10-a.toml", with("PATH").as_bytes())]);
    let only = |variable: &str| granted(&[GrantEntry { secrets: vec![variable.to_owned()], ..entry("auth/a") }]);
    grant(&rig, only("$PATH"));
    let other = tempfile::tempdir().unwrap();
    assert!(relocate(&rig, &other.path().join("none"), Grants::nothing()).is_err());
    put(other.path(), "auth/10-a.wasm", &auth);
    put(other.path(), "auth/10-a.toml", with("HOME").as_bytes());
    put(other.path(), "validator/10-bad.wasm", b"nonsense");
    assert!(relocate(&rig, other.path(), only("$HOME")).is_err());
    assert!(told(&rig).is_some(), "it serves with what it is granted");
    // Nor does what is refused get anything.
    rig.put("auth/10-a.toml", with("HOME"));
    assert_eq!(rig.status("auth/10-a.wasm").state, PolicyState::Rejected);
    assert!(told(&rig).is_some());
    // What a directory needs comes with it, and what the one before needed goes.
    std::fs::remove_file(other.path().join("validator/10-bad.wasm")).unwrap();
    relocate(&rig, other.path(), only("$HOME")).unwrap();
    assert!(told(&rig).is_some());
    put(other.path(), "auth/10-a.toml", with("PATH").as_bytes());
    rig.host.reload().unwrap();
    assert!(rig.host.status()[0].error.as_ref().is_some_and(|error| error.contains("$PATH")));
    // Another directory is examined under its own grants alone.
    assert!(relocate(&rig, rig.dir.path(), only("$PATH")).unwrap_err().sentence().contains("$HOME"));
}

#[test]
fn regression_a_guard_that_is_revoked_refuses_as_it_served_whatever_its_file_says() {
    let secret = |variable: &str| format!("[secrets]\nkey = {{ env = \"{variable}\" }}\n");
    let start = |settings: &str| {
        let settings = format!("{settings}{}", secret("PATH"));
        rig(&[("auth/10-a.wasm", &component("guests/misbehave-auth")), ("auth/10-a.toml", settings.as_bytes())])
    };
    let is_closed = |rig: &Rig| {
        grant(rig, Grants::nothing());
        assert_eq!(rig.status("auth/10-a.wasm").serving, None);
        matches!(rig.authenticate(&caller(true, None)), AuthOutcome::Fault(fault) if fault.plugin.as_str() == "a")
    };
    // An operator had it enforced.
    let rig = start(&behave("tell", "mode = \"monitor\""));
    rig.host.set_mode(Hook::Auth, "a", Mode::Enforce).unwrap();
    assert!(is_closed(&rig));
    // A newer file was rejected.
    for newer in ["mode = \"monitor\"", "on-fault = \"skip\"", "\n[match]\nendpoints = [\"/metrics\"]"] {
        let rig = start(&behave("tell", ""));
        grant(&rig, granted(&[GrantEntry { secrets: vec!["$PATH".to_owned()], ..entry("auth/a") }]));
        rig.put("auth/10-a.toml", format!("{}{}", behave("tell", newer), secret("HOME")));
        assert_eq!(rig.status("auth/10-a.wasm").state, PolicyState::Rejected, "{newer}");
        assert!(is_closed(&rig), "{newer}");
    }
    // Whoever only looked on closes nothing.
    let rig = start(&behave("tell", "mode = \"monitor\""));
    assert!(!is_closed(&rig));
}
