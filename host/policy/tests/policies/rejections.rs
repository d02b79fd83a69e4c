//! Files that are rejected: each with its own sentence, and what served goes on serving.
use std::fs;

use camshaft_core::policy::{AuthOutcome, Hook, Mode, Policies, PolicyState, ValidateOutcome};
use camshaft_policy::{check_dir, inspect};

use crate::forged::{forge, renamed};
use crate::rig::{behave, caller, component, generation_request, rig};

const PLUGIN: &str = "camshaft:host/plugin@1.0.0";
const AUTH: &str = "camshaft:auth/policy@1.0.0";
const SCHEDULER: &str = "camshaft:scheduler/policy@0.2.0";

/// Replaces a policy that serves by `bad` and expects `sentence` to be said about it.
fn check(bad: impl AsRef<[u8]>, sentence: &str) {
    let good = component("guests/misbehave-auth");
    let rig = rig(&[("auth/10-door.wasm", &good)]);
    let (generation, serving) = (rig.generation(), rig.status("auth/10-door.wasm").serving);
    for _ in 0..2 {
        rig.put("auth/10-door.wasm", bad.as_ref());
        let status = rig.status("auth/10-door.wasm");
        let error = status.error.unwrap_or_default();
        assert!(error.contains(sentence), "{error:?} does not say {sentence:?}");
        assert_eq!((status.state, &status.serving), (PolicyState::Rejected, &serving));
        assert_eq!(rig.generation(), generation, "nothing is published");
        assert!(matches!(rig.authenticate(&caller(false, None)), AuthOutcome::Allow(_)), "the old one serves");
        assert_eq!(rig.swaps("auth", "rejected"), 1.0, "one content is counted once");
    }
    rig.put("auth/10-door.wasm", good);
    let status = rig.status("auth/10-door.wasm");
    assert_eq!((status.state, status.error), (PolicyState::Active, None), "what was put back is no news");
}

#[test]
fn keeps_the_old_policy_when_the_new_one_is_truncated() {
    let good = component("guests/misbehave-auth");
    check(&good[..good.len() / 2], "file is truncated or corrupt: ");
    check(&good[..6], "file is truncated or corrupt: ");
    check(b"", "file is truncated or corrupt: it is empty");
}

#[test]
fn says_that_a_core_module_is_no_component() {
    check(b"\0asm\x01\0\0\0", "not a WebAssembly component: this is a core module");
    check(b"#!/bin/sh", "not a WebAssembly component");
}

#[test]
fn says_that_a_policy_lies_in_the_directory_of_another_hook() {
    let sentence = "wrong hook: exports camshaft:validator/policy but lies in auth/";
    check(component("plugins/validator-limits"), sentence);
}

#[test]
fn says_which_version_a_policy_was_built_for() {
    let of = |version: &str| forge(&[], &[PLUGIN, &format!("camshaft:auth/policy@{version}")]);
    check(of("0.1.0"), "built for camshaft:auth/policy@0.1.0; this host speaks 1.0.0");
    check(of("2.0.0"), "built for camshaft:auth/policy@2.0.0; this host speaks 1.0.0");
    check(
        forge(&["camshaft:host/log@2.0.0"], &[PLUGIN, AUTH]),
        "built for camshaft:host/log@2.0.0; this host speaks 1.0.0",
    );
    check(
        forge(&[], &["camshaft:policy/plugin@0.1.0", "camshaft:policy/auth@0.1.0"]),
        "exports camshaft:policy/plugin@0.1.0, which is no hook of this host: expected one of camshaft:auth/policy, ",
    );
}

#[test]
fn a_policy_that_was_built_for_another_minor_version_runs_where_it_needs_no_function_that_is_missing() {
    let built = component("plugins/auth-api-keys");
    let newer = ["camshaft:auth/policy@", "camshaft:auth/context@", "camshaft:host/plugin@", "camshaft:host/state@"]
        .iter()
        .fold(built.clone(), |bytes, name| renamed(&bytes, &format!("{name}1.0.0"), &format!("{name}1.7.3")));
    let rig = rig(&[("auth/10-keys.wasm", &newer)]);
    rig.put("auth/10-keys.toml", "[settings]\nanonymous-loopback = true");
    let status = rig.status("auth/10-keys.wasm");
    assert_eq!((status.state, status.error), (PolicyState::Active, None));
    assert!(matches!(rig.authenticate(&caller(true, None)), AuthOutcome::Allow(_)));
    let missing = renamed(&newer, "[method]call.header", "[method]call.trails");
    let sentence =
        "needs the function [method]call.trails of camshaft:auth/context@1.7.3, which this host does not have";
    check(missing, sentence);
}

#[test]
fn a_missing_function_is_named_before_anything_is_compiled() {
    let mut built = component("plugins/auth-api-keys");
    // No code that any compiler takes, in the midst of it.
    let middle = built.len() / 2;
    built[middle..middle + 4096].fill(0xff);
    check(&built, "file is truncated or corrupt: ");
    let missing = renamed(&built, "[method]call.header", "[method]call.trails");
    check(
        missing,
        "needs the function [method]call.trails of camshaft:auth/context@1.0.0, which this host does not have",
    );
}

#[test]
fn says_which_import_is_not_granted() {
    check(
        forge(&["wasi:http/outgoing-handler@0.2.0"], &[PLUGIN, AUTH]),
        "imports wasi:http/outgoing-handler, which is not granted",
    );
    check(
        forge(&["wasi:cli/command-line@0.2.0"], &[PLUGIN, AUTH]),
        "imports wasi:cli/command-line, which is not granted",
    );
    check(
        forge(&["wasi:cli/environment@0.3.0"], &[PLUGIN, AUTH]),
        "imports wasi:cli/environment@0.3.0, which is not granted",
    );
    check(forge(&["camshaft:host/files@1.0.0"], &[PLUGIN, AUTH]), "imports camshaft:host/files, which is not granted");
    check(
        forge(&["camshaft:sampler/logits@0.2.0"], &[PLUGIN, AUTH]),
        "imports camshaft:sampler/logits, which auths are not granted",
    );
}

#[test]
fn says_which_export_is_missing_or_mistyped() {
    check(forge(&[], &[]), "exports no hook");
    check(forge(&[], &[AUTH]), "does not export camshaft:host/plugin");
    check(forge(&[], &[PLUGIN, AUTH, SCHEDULER]), "exports more than one hook: auth and scheduler");
    check(forge(&[], &[PLUGIN, AUTH]), "does not fit the auth world: ");
}

#[test]
fn schedulers_and_samplers_are_not_granted_a_clock() {
    let sampler = forge(&["camshaft:host/clock@1.0.0"], &[PLUGIN, "camshaft:sampler/policy@0.2.0"]);
    let sentence = "imports camshaft:host/clock, which samplers are not granted";
    assert_eq!(rig(&[("sampler/10-x.wasm", &sampler)]).error("sampler/10-x.wasm"), sentence);
    let rig = rig(&[("scheduler/10-x.wasm", &forge(&["camshaft:host/clock@1.0.0"], &[PLUGIN, SCHEDULER]))]);
    let sentence = "imports camshaft:host/clock, which schedulers are not granted";
    assert_eq!(rig.error("scheduler/10-x.wasm"), sentence);
}

#[test]
fn keeps_the_old_settings_when_the_guest_fails_over_the_new_ones() {
    for (how, sentence) in [
        ("trap-at-start", "traps at start: "),
        ("spin-at-start", "spins: configure ran past 1 s"),
        ("refuse-settings", "10-x.toml: the plugin refuses its settings: behave = refuse-settings: as asked"),
        ("unheard-of", "10-x.toml: the plugin refuses its settings: "),
    ] {
        let rig = rig(&[("validator/10-x.wasm", &component("guests/misbehave-validator"))]);
        rig.put("validator/10-x.toml", behave(how, ""));
        let error = rig.error("validator/10-x.wasm");
        assert!(error.starts_with(sentence), "{how}: {error}");
        assert!(matches!(rig.validate(&generation_request(1)), ValidateOutcome::Accept), "{how}");
        assert_eq!((rig.swaps("validator", "rejected"), rig.swaps("validator", "swapped")), (1.0, 1.0));
    }
}

#[test]
fn a_trap_at_start_tells_what_the_guest_wrote() {
    let rig = rig(&[("validator/10-x.wasm", &component("guests/misbehave-validator"))]);
    rig.put("validator/10-x.toml", behave("trap-at-start", ""));
    let error = rig.error("validator/10-x.wasm");
    assert!(error.contains("behave = trap-at-start: as asked"), "{error}");
}

#[test]
fn a_pinned_digest_must_be_the_files() {
    let good = component("guests/misbehave-auth");
    let rig = rig(&[("auth/10-x.wasm", &good)]);
    let digest = rig.status("auth/10-x.wasm").serving.unwrap();
    rig.put("auth/10-x.toml", format!("[policy]\nsha256 = \"{}\"", "0".repeat(64)));
    let error = rig.error("auth/10-x.wasm");
    assert_eq!(error, format!("10-x.toml: pins the SHA-256 {}, but the component's is {digest}", "0".repeat(64)));
    rig.put("auth/10-x.toml", format!("[policy]\nsha256 = \"{digest}\""));
    assert_eq!(rig.status("auth/10-x.wasm").state, PolicyState::Active);
}

#[test]
fn regression_a_broken_settings_file_changes_nothing_and_is_named_with_its_line() {
    let rig = rig(&[("auth/10-x.wasm", &component("guests/misbehave-auth"))]);
    rig.put("auth/10-x.toml", "# how it runs\n[policy]\ndedline = \"5ms\"");
    let error = rig.error("auth/10-x.wasm");
    assert_eq!(error, "10-x.toml, line 3: unknown key policy.dedline; did you mean `policy.deadline`?");
    rig.put("auth/10-x.toml", "[settings]\n\n[policy");
    assert!(rig.error("auth/10-x.wasm").starts_with("10-x.toml, line 3: not valid TOML: "));
    assert!(matches!(rig.authenticate(&caller(false, None)), AuthOutcome::Allow(_)));
    assert_eq!(rig.swaps("auth", "rejected"), 2.0);
}

#[test]
fn a_door_whose_lock_does_not_load_at_start_stays_shut() {
    let rig = rig(&[("auth/10-door.wasm", b"\0asm\x01\0\0\0"), ("validator/10-v.wasm", b"")]);
    assert!(rig.host.current().has_auth());
    assert!(matches!(rig.authenticate(&caller(true, None)), AuthOutcome::Fault(_)));
    assert!(matches!(rig.validate(&generation_request(1)), ValidateOutcome::Fault(_)));
    assert_eq!(rig.calls("auth", "door", "unavailable"), 1.0);
    rig.put("auth/10-door.wasm", component("guests/misbehave-auth"));
    assert!(matches!(rig.authenticate(&caller(false, None)), AuthOutcome::Allow(_)));
    rig.remove("validator/10-v.wasm");
    assert!(matches!(rig.validate(&generation_request(1)), ValidateOutcome::Fault(_)), "nor does removing it open it");
    rig.host.set_mode(Hook::Validator, "v", Mode::Off).unwrap();
    assert_eq!(rig.host.current().validators(), 0);
}

#[test]
fn a_new_bad_file_changes_nothing_while_running() {
    let rig = rig(&[]);
    rig.put("auth/10-new.wasm", "nonsense");
    assert!(!rig.host.current().has_auth());
    assert_eq!((rig.status("auth/10-new.wasm").state, rig.swaps("auth", "rejected")), (PolicyState::Rejected, 1.0));
}

#[test]
fn two_policies_of_one_hook_cannot_share_a_name() {
    let good = component("guests/misbehave-auth");
    let rig = rig(&[("auth/10-x.wasm", &good), ("auth/20-x.wasm", &good)]);
    assert_eq!(rig.error("auth/20-x.wasm"), "the name x is taken by 10-x.wasm");
    rig.remove("auth/10-x.wasm");
    assert_eq!(rig.status("auth/20-x.wasm").state, PolicyState::Active);
}

#[test]
fn checking_a_directory_reports_without_serving() {
    let dir = tempfile::tempdir().unwrap();
    crate::rig::put(dir.path(), "auth/10-x.wasm", &component("guests/misbehave-auth"));
    crate::rig::put(dir.path(), "sampler/10-y.wasm", b"nonsense");
    let states: Vec<_> = check_dir(dir.path(), None).unwrap().into_iter().map(|s| (s.name, s.state)).collect();
    assert_eq!(states, [("x".to_owned(), PolicyState::Active), ("y".to_owned(), PolicyState::Rejected)]);
}

#[test]
fn inspecting_a_component_tells_what_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = component("plugins/sampler-standard");
    crate::rig::put(dir.path(), "x.wasm", &bytes);
    let report = inspect(&dir.path().join("x.wasm"), None, None).unwrap();
    assert_eq!((report.hook.as_str(), report.api_version.as_str()), ("sampler", "0.2.0"));
    assert_eq!((report.name.as_str(), report.size_bytes), ("sampler-standard", bytes.len() as u64));
    assert!(report.imports.iter().any(|import| import.starts_with("camshaft:sampler/logits@")));
    crate::rig::put(dir.path(), "x.wasm", b"\0asm\x01\0\0\0");
    assert!(inspect(&dir.path().join("x.wasm"), None, None).unwrap_err().to_string().contains("core module"));
}

#[test]
fn regression_settings_that_are_a_pipe_are_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.wasm");
    fs::write(&file, component("plugins/auth-api-keys")).unwrap();
    let pipe = file.with_extension("toml");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let (say, said) = crossbeam_channel::bounded(1);
    std::thread::spawn(move || say.send(inspect(&file, None, None).map(drop).map_err(|error| error.sentence())));
    let refused = said.recv_timeout(std::time::Duration::from_secs(60)).expect("it waits for nobody").unwrap_err();
    assert_eq!(refused, format!("cannot read {}: not a regular file", pipe.display()));
}

#[test]
fn regression_inspecting_a_component_reads_its_settings_and_fills_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let (file, cache) = (dir.path().join("10-limits.wasm"), dir.path().join("cache"));
    crate::rig::put(dir.path(), "10-limits.wasm", &component("plugins/validator-limits"));
    let report = inspect(&file, Some(&cache), None).unwrap();
    assert_eq!(report.settings_file, None);
    assert!(fs::read_dir(&cache).unwrap().next().is_some(), "the server finds what was compiled");
    let refused = |settings: &str| {
        crate::rig::put(dir.path(), "10-limits.toml", settings.as_bytes());
        inspect(&file, Some(&cache), None).unwrap_err().sentence()
    };
    assert_eq!(refused("\n[polcy]"), "10-limits.toml, line 2: unknown key polcy; did you mean `policy`?");
    assert!(refused("[settings]\nmax-tokns = 5").starts_with("10-limits.toml: the plugin refuses its settings: "));
    assert!(refused(&format!("[policy]\nsha256 = \"{}\"", "0".repeat(64))).starts_with("10-limits.toml: pins "));
    crate::rig::put(dir.path(), "10-limits.toml", b"[policy]\nmode = \"monitor\"\n[settings]\nmax-tokens = 5");
    let report = inspect(&file, Some(&cache), None).unwrap();
    assert_eq!((report.settings_file, report.mode), (Some(dir.path().join("10-limits.toml")), Mode::Monitor));
}

#[test]
fn regression_a_key_whose_namespace_the_host_would_refuse_is_rejected_with_its_settings() {
    let dir = tempfile::tempdir().unwrap();
    let (file, cache) = (dir.path().join("10-keys.wasm"), dir.path().join("cache"));
    crate::rig::put(dir.path(), "10-keys.wasm", &component("plugins/auth-api-keys"));
    let inspected = |namespace: &str| {
        let key = format!("name = \"a\"\nsha256 = \"{}\"\ntenant = \"t\"", "0".repeat(64));
        let settings = format!("[[settings.keys]]\n{key}\ncache-namespace = \"{namespace}\"\n");
        crate::rig::put(dir.path(), "10-keys.toml", settings.as_bytes());
        inspect(&file, Some(&cache), None).map(drop).map_err(|error| error.sentence())
    };
    assert!(inspected("").unwrap_err().contains("key \"a\": cache-namespace is empty"));
    assert_eq!(inspected(&"x".repeat(128)), Ok(()));
    assert!(inspected(&"x".repeat(129)).unwrap_err().contains("cache-namespace has more than 128 characters"));
}
