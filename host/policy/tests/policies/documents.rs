//! Documents and secrets from the settings file to the guest.
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use camshaft_core::answering::wait;
use camshaft_core::policy::{AuthOutcome, Policies, PolicyState};

use crate::rig::{Rig, caller, component, rig};

/// A guest that says in its refusal what it was given.
fn settings(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "[policy]\ndeadline = \"2s\"\n[settings]\nbehave = \"tell\"\n[documents.list]\npath = \"{dir}/list\"\nrefresh = \"1s\"\n\
         [secrets]\nkey = {{ file = \"{dir}/key\" }}\n"
    )
}

fn put(dir: &Path, file: &str, content: &str) {
    let (path, beside) = (dir.join(file), dir.join("beside"));
    fs::write(&beside, content).unwrap();
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(beside, path).unwrap();
}

fn told(rig: &Rig) -> String {
    match rig.authenticate(&caller(false, None)) {
        AuthOutcome::Refuse(refusal) => refusal.message,
        outcome => panic!("{outcome:?}"),
    }
}

#[test]
fn a_guest_sees_the_documents_and_secrets_that_its_settings_name() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "list", "one");
    put(dir.path(), "key", "hidden\n");
    let rig = rig(&[
        ("auth/10-tell.wasm", &component("guests/misbehave-auth")),
        ("auth/10-tell.toml", settings(dir.path()).as_bytes()),
        ("auth/20-none.wasm", &component("guests/misbehave-auth")),
    ]);
    let first = told(&rig);
    assert!(first.contains("Some(Ok(\"hidden\"))") && first.contains("[(\"list\", (Some("), "{first}");
    assert!(first.contains(", 3)"), "three bytes: {first}");
    put(dir.path(), "list", "three");
    rig.wait("the document is read again", |rig| told(rig).contains(", 5)"));
    fs::remove_file(dir.path().join("list")).unwrap();
    rig.wait("it cannot be read", |rig| rig.metric("camshaft_policy_documents_stale{hook=\"auth\"}") == 1.0);
    assert!(told(&rig).contains(", 5)"), "the last good version stays");
    // Other settings with the same document go on with what is there.
    let generation = rig.generation();
    rig.put("auth/10-tell.toml", settings(dir.path()).replace("2s", "3s"));
    assert!(rig.generation() > generation && told(&rig).contains(", 5)"));
    let shown = format!("{:?}", rig.host.status());
    assert!(!shown.contains("hidden"), "{shown}");
}

#[test]
fn secrets_are_read_again_when_policies_are_reloaded() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "list", "one");
    put(dir.path(), "key", "first");
    let rig = rig(&[
        ("auth/10-tell.wasm", &component("guests/misbehave-auth")),
        ("auth/10-tell.toml", settings(dir.path()).as_bytes()),
    ]);
    let generation = rig.generation();
    rig.host.reload().unwrap();
    assert_eq!(rig.generation(), generation, "the same secret is no change");
    put(dir.path(), "key", "second");
    assert!(told(&rig).contains("first"), "it counts from the reload on");
    rig.host.reload().unwrap();
    assert!(told(&rig).contains("second") && rig.generation() > generation);
    fs::remove_file(dir.path().join("key")).unwrap();
    rig.host.reload().unwrap();
    assert!(told(&rig).contains("second"), "the version before goes on serving");
    assert!(rig.error("auth/10-tell.wasm").contains("its secret key cannot be read"), "{:?}", rig.host.status());
    put(dir.path(), "key", "third");
    rig.host.reload().unwrap();
    assert!(told(&rig).contains("third"));
    assert_eq!(rig.status("auth/10-tell.wasm").error, None);
}

#[test]
fn a_document_that_was_never_there_rejects_the_policy_until_it_is() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "key", "hidden");
    let rig = rig(&[
        ("auth/10-tell.wasm", &component("guests/misbehave-auth")),
        ("auth/10-tell.toml", settings(dir.path()).as_bytes()),
    ]);
    let outcome = rig.authenticate(&caller(true, None));
    assert!(matches!(outcome, AuthOutcome::Fault(_)), "a guard that cannot be loaded refuses everything: {outcome:?}");
    let error = rig.error("auth/10-tell.wasm");
    assert!(error.contains("its document list cannot be read from") && error.contains("No such file"), "{error}");
    assert!(!error.contains("hidden"));
    put(dir.path(), "list", "late");
    rig.wait("it is tried again", |rig| rig.status("auth/10-tell.wasm").state == PolicyState::Active);
    assert!(told(&rig).contains(", 4)"));
}

#[test]
fn regression_content_that_a_plugin_does_not_take_replaces_no_good_content() {
    let dir = tempfile::tempdir().unwrap();
    let jwks = dir.path().join("jwks.json");
    fs::write(&jwks, r#"{"keys": []}"#).unwrap();
    let settings = format!(
        "[policy]\ndeadline = \"2s\"\n[settings]\njwks = \"jwks\"\n[documents.jwks]\npath = \"{}\"\nrefresh = \"1s\"\n",
        jwks.display()
    );
    let rig = rig(&[("auth/10-jwt.wasm", &component("plugins/auth-jwt")), ("auth/10-jwt.toml", settings.as_bytes())]);
    let stale = |rig: &Rig| rig.metric("camshaft_policy_documents_stale{hook=\"auth\"}");
    fs::write(&jwks, "<html>try later</html>").unwrap();
    rig.wait("the page is refused", |rig| stale(rig) == 1.0);
    // Fresh instances, too, have the keys that were there.
    let outcomes: Vec<_> = (0..3)
        .map(|_| {
            std::thread::spawn({
                let host = rig.host.clone();
                move || wait(host.current().authenticate(&caller(false, None))).outcome
            })
        })
        .map(|thread| thread.join().unwrap())
        .collect();
    for outcome in outcomes {
        assert!(matches!(&outcome, AuthOutcome::Refuse(refusal) if refusal.status == 401), "{outcome:?}");
    }
    fs::write(&jwks, r#"{"keys": [], "more": 1}"#).unwrap();
    rig.wait("a set is taken again", |rig| stale(rig) == 0.0);
}
