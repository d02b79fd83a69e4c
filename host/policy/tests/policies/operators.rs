//! What operators do beside putting files in place: another mode, another directory.
use camshaft_core::answering::wait;
use camshaft_core::policy::{AuthOutcome, Hook, Mode, ModeError, Policies, PolicyState, ValidateOutcome};
use camshaft_policy::{Demands, Grants};

use crate::rig::{NEVER, Rig, behave, caller, component, generation_request, put, rig};

const LIMITS: &str = "[settings]\nmax-tokens = 100";

fn limits() -> Rig {
    rig(&[
        ("validator/10-limits.wasm", &component("plugins/validator-limits")),
        ("validator/10-limits.toml", LIMITS.as_bytes()),
    ])
}

/// Whether the validator, if any, refuses 101 tokens.
fn refuses(rig: &Rig) -> bool {
    rig.host.current().validators() > 0 && matches!(rig.validate(&generation_request(101)), ValidateOutcome::Refuse(_))
}

#[test]
fn an_operators_mode_holds_until_the_files_change() {
    let rig = limits();
    assert!(refuses(&rig));
    let set = |mode: Mode| rig.host.set_mode(Hook::Validator, "limits", mode);
    let status = set(Mode::Monitor).unwrap();
    assert_eq!((status.mode, status.overridden, status.state), (Mode::Monitor, true, PolicyState::Active));
    assert!(!refuses(&rig));
    assert_eq!(rig.differences("validator", "limits", "refuse"), 1.0, "it saw the request");
    rig.host.reload().unwrap();
    assert!(!refuses(&rig), "looking again changes nothing");
    let status = set(Mode::Off).unwrap();
    assert_eq!((status.mode, status.state, status.serving), (Mode::Off, PolicyState::Off, None));
    assert_eq!(rig.host.current().validators(), 0);
    assert_eq!(set(Mode::Enforce).unwrap().state, PolicyState::Active);
    assert!(refuses(&rig));
    set(Mode::Monitor).unwrap();
    rig.put("validator/10-limits.wasm", "nonsense");
    let status = rig.status("validator/10-limits.wasm");
    assert_eq!((status.mode, status.overridden, status.state), (Mode::Monitor, true, PolicyState::Rejected));
    rig.put("validator/10-limits.wasm", component("plugins/validator-limits"));
    let status = rig.status("validator/10-limits.wasm");
    assert_eq!((status.mode, status.overridden, status.state), (Mode::Monitor, true, PolicyState::Active));
    set(Mode::Off).unwrap();
    assert!(rig.status("validator/10-limits.wasm").overridden);
    rig.put("validator/10-limits.toml", "[settings]\nmax-tokens = 99");
    assert!(refuses(&rig), "new files decide for themselves");
    assert!(!rig.status("validator/10-limits.wasm").overridden);
}

#[test]
fn a_mode_that_cannot_be_is_refused_and_changes_nothing() {
    let rig = rig(&[
        ("sampler/10-x.wasm", &component("plugins/sampler-standard")),
        ("validator/10-bad.wasm", &component("guests/misbehave-validator")),
        ("validator/10-bad.toml", format!("{}\n", behave("trap-at-start", "mode = \"off\"")).as_bytes()),
    ]);
    let refused = |hook, name: &str, mode: Mode| match rig.host.set_mode(hook, name, mode) {
        Err(error @ ModeError::Rejected(_)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    for mode in Mode::ALL {
        assert_eq!(rig.host.set_mode(Hook::Sampler, "x", mode).unwrap().mode, mode, "all hooks have all modes");
    }
    // What is off is not even tried; now it is.
    assert_eq!(rig.status("validator/10-bad.wasm").state, PolicyState::Off);
    assert!(refused(Hook::Validator, "bad", Mode::Enforce).contains("traps at start"));
    let status = rig.status("validator/10-bad.wasm");
    assert_eq!((status.state, status.overridden, status.error), (PolicyState::Off, false, None));
    let nobody = rig.host.set_mode(Hook::Auth, "x", Mode::Off);
    assert!(matches!(&nobody, Err(ModeError::NoPolicy { hook: Hook::Auth, name }) if name == "x"), "{nobody:?}");
}

#[test]
fn another_directory_serves_whole_and_is_watched() {
    let rig = limits();
    let other = tempfile::tempdir().unwrap();
    put(other.path(), "auth/10-open.wasm", &component("guests/misbehave-auth"));
    put(other.path(), "validator/30-limits.wasm", &component("plugins/validator-limits"));
    put(other.path(), "validator/30-limits.toml", b"[settings]\nmax-tokens = 200");
    let held = rig.host.current();
    rig.host
        .relocate(other.path().to_path_buf(), NEVER, Demands { auth: true, same_guards: true }, Grants::default())
        .unwrap();
    assert!(rig.host.current().has_auth() && !refuses(&rig));
    assert!(
        matches!(wait(held.validate(0, &generation_request(101))).outcome, ValidateOutcome::Refuse(_)),
        "who began goes on"
    );
    let files: Vec<String> = rig.host.status().into_iter().map(|status| status.file).collect();
    assert!(
        files.len() == 2 && files.iter().all(|file| file.starts_with(&*other.path().to_string_lossy())),
        "{files:?}"
    );
    assert_eq!(rig.metric("camshaft_policy_generation{hook=\"validator\",plugin=\"limits\"}"), 2.0);
    put(other.path(), "validator/30-limits.toml", LIMITS.as_bytes());
    rig.wait("the new directory is watched", refuses);
    // The old one no longer is.
    rig.put("auth/99-new.wasm", component("guests/misbehave-auth"));
    assert_eq!(rig.host.status().len(), 2);
}

#[test]
fn a_directory_with_anything_bad_in_it_changes_nothing() {
    let rig = limits();
    let generation = rig.generation();
    let other = tempfile::tempdir().unwrap();
    let refused = |dir: &std::path::Path, needs_auth| {
        rig.host
            .relocate(dir.to_path_buf(), NEVER, Demands { auth: needs_auth, same_guards: false }, Grants::default())
            .unwrap_err()
            .to_string()
    };
    let missing = refused(&other.path().join("none"), false);
    assert!(missing.contains("none"), "{missing}");
    assert!(refused(other.path(), false).contains("auth/"), "a directory without any hook's");
    put(other.path(), "validator/10-limits.wasm", &component("plugins/validator-limits"));
    assert!(refused(other.path(), true).contains("no auth policy"));
    put(other.path(), "auth/10-open.wasm", &component("guests/misbehave-auth"));
    put(other.path(), "auth/10-open.toml", b"[policy]\nmode = \"monitor\"");
    assert!(refused(other.path(), true).contains("no auth policy"), "one that is only looked at is none");
    put(other.path(), "auth/10-bad.wasm", b"\0asm nonsense");
    let bad = refused(other.path(), false);
    assert!(bad.contains("auth/10-bad.wasm"), "{bad}");
    assert!(refuses(&rig) && !rig.host.current().has_auth());
    assert_eq!((rig.generation(), rig.host.status().len()), (generation, 1));
    assert_eq!(rig.metric("camshaft_policy_generation{hook=\"validator\",plugin=\"limits\"}"), 1.0);
    assert_eq!((rig.swaps("validator", "swapped"), rig.swaps("validator", "removed")), (1.0, 0.0));
    // It is still the one that is looked at.
    rig.put("auth/10-open.wasm", component("guests/misbehave-auth"));
    assert!(matches!(rig.authenticate(&caller(false, None)), AuthOutcome::Allow(_)));
}
