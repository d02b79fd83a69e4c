//! Files that vanish: by accident, which opens no door, and on purpose.
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use camshaft_core::policy::{Hook, Mode, ModeError, PolicyEffect, PolicyEvent, PolicySet, PolicyState};

use super::bench::{Bench, component, put, variant};
use super::*;
use crate::grants::Grants;
use crate::view::View;

/// What happens to a directory.
type Accident = (&'static str, fn(&Path));

/// What serves: an auth policy, two validators, a scheduler.
const NAMES: [&str; 4] = ["keys", "limits", "words", "fcfs"];

/// Files that were all written long ago.
fn fill(dir: &Path) {
    put(dir, "auth/10-keys.wasm", &component("guests/misbehave-auth"));
    let validator = component("plugins/validator-limits");
    put(dir, "validator/10-limits.wasm", &validator);
    put(dir, "validator/20-words.wasm", &variant(&validator, 1));
    put(dir, "scheduler/10-fcfs.wasm", &component("plugins/scheduler-fcfs"));
}

fn served() -> Bench {
    let mut bench = Bench::new();
    fill(bench.dir.path());
    bench.loader.start().unwrap();
    assert!(NAMES.iter().all(|name| bench.state(name) == Some(PolicyState::Active)));
    bench
}

/// Those of the policies that serve and say why they do so without a file.
fn missing(bench: &Bench) -> Vec<&'static str> {
    let says = |name: &&str| {
        let Some(status) = bench.status(name).filter(|status| status.serving.is_some()) else { return false };
        status.error.is_some_and(|why| why.contains("goes on serving") && why.contains("/off"))
    };
    NAMES.into_iter().filter(says).collect()
}

#[test]
fn regression_a_directory_that_vanishes_changes_nothing_that_serves() {
    let accidents: [Accident; 7] = [
        ("removed", |dir| fs::remove_dir_all(dir).unwrap()),
        ("moved away", |dir| fs::rename(dir, dir.with_extension("old")).unwrap()),
        ("emptied", |dir| {
            fs::remove_dir_all(dir).unwrap();
            fs::create_dir(dir).unwrap();
        }),
        ("a link to nowhere", |dir| {
            fs::remove_dir_all(dir).unwrap();
            symlink("/nowhere", dir).unwrap();
        }),
        ("a file in its place", |dir| {
            fs::remove_dir_all(dir).unwrap();
            fs::write(dir, "").unwrap();
        }),
        ("only its folders left", |dir| {
            fs::remove_dir_all(dir).unwrap();
            for hook in Hook::ALL {
                fs::create_dir_all(dir.join(hook.as_str())).unwrap();
            }
        }),
        ("another directory with nothing in it", |dir| {
            fs::remove_dir_all(dir).unwrap();
            fs::create_dir(dir.with_extension("other")).unwrap();
            symlink(dir.with_extension("other"), dir).unwrap();
        }),
    ];
    let mut bench = served();
    let root = bench.dir.path().join("policy.d");
    fill(&root);
    let other = Demands { auth: true, same_guards: true };
    Relocation::new(root.clone(), other, Grants::default(), Claim::default())
        .unwrap()
        .attempt(&mut bench.loader)
        .unwrap()
        .unwrap();
    for (accident, happens) in accidents {
        let before = bench.loader.registry.current().generation;
        happens(&root);
        for _ in 0..2 {
            let scan = bench.loader.scan_settled();
            assert!(!scan.published, "{accident}");
        }
        assert_eq!(missing(&bench), NAMES, "{accident}: everything serves, and says so");
        assert_eq!(bench.loader.directory.missing().map(|(_, count)| count).sum::<usize>(), 4, "{accident}");
        let set = bench.loader.registry.current();
        assert!(
            set.generation == before && set.has_auth() && set.chain(Hook::Validator).links.len() == 2,
            "{accident}"
        );
        let _ = fs::remove_file(&root);
        let _ = fs::remove_dir_all(&root);
        fill(&root);
        bench.settle();
        assert!(missing(&bench).is_empty(), "{accident}: all is well again");
        assert!(NAMES.iter().all(|name| bench.state(name) == Some(PolicyState::Active)), "{accident}");
    }
}

#[test]
fn regression_a_folder_that_is_a_link_to_nowhere_refuses_the_start() {
    for hook in [Hook::Auth, Hook::Validator] {
        let mut bench = Bench::new();
        fill(bench.dir.path());
        let folder = bench.dir.path().join(hook.as_str());
        let elsewhere = folder.with_extension("volume");
        fs::rename(&folder, &elsewhere).unwrap();
        symlink("/nowhere", &folder).unwrap();
        let why = bench.loader.start().unwrap_err().to_string();
        assert!(why.contains(hook.as_str()), "{why}");
        fs::remove_file(&folder).unwrap();
        symlink(&elsewhere, &folder).unwrap();
        bench.loader.start().unwrap();
        assert!(NAMES.iter().all(|name| bench.state(name) == Some(PolicyState::Active)), "the volume is there");
    }
}

#[test]
fn regression_a_folder_that_vanishes_or_cannot_be_listed_keeps_its_policies() {
    let mut bench = served();
    let auth = bench.dir.path().join("auth");
    fs::rename(&auth, bench.dir.path().join("elsewhere")).unwrap();
    bench.loader.scan_settled();
    assert_eq!(missing(&bench), ["keys"]);
    fs::write(&auth, "in the way").unwrap();
    bench.loader.scan_settled();
    assert!(bench.status("keys").unwrap().error.unwrap().contains("cannot be listed"));
    assert!(bench.loader.has_auth());
    fs::remove_file(&auth).unwrap();
    fs::create_dir(&auth).unwrap();
    fs::remove_dir_all(bench.dir.path().join("scheduler")).unwrap();
    bench.loader.scan_settled();
    assert_eq!(
        missing(&bench),
        ["keys", "fcfs"],
        "the last guard of an empty folder, and a scheduler without a folder"
    );
    // Root may list anything.
    fs::set_permissions(&auth, fs::Permissions::from_mode(0o0)).unwrap();
    bench.loader.scan_settled();
    assert!(bench.loader.has_auth());
}

#[test]
fn regression_what_is_copied_back_file_by_file_is_not_taken_for_removals() {
    let mut bench = served();
    let validators = bench.dir.path().join("validator");
    fs::rename(&validators, bench.dir.path().join("validator.old")).unwrap();
    bench.loader.scan_settled();
    assert_eq!(missing(&bench), ["limits", "words"]);
    bench.put("validator/10-limits.wasm", component("plugins/validator-limits"));
    assert!(bench.loader.scan(Patience::Now).unsettled, "it is looked at again");
    assert_eq!(missing(&bench), ["words"], "the other one may still come");
    bench.loader.directory.returns_after = Duration::ZERO;
    bench.loader.scan_settled();
    assert_eq!(bench.state("words"), None, "it did not come");
    assert_eq!(bench.state("limits"), Some(PolicyState::Active));
}

#[test]
fn a_file_that_is_removed_removes_its_policy_but_not_the_last_guard() {
    let mut bench = served();
    bench.loader.directory.returns_after = Duration::ZERO;
    let remove = |bench: &mut Bench, file: &str| {
        fs::remove_file(bench.dir.path().join(file)).unwrap();
        bench.loader.scan_settled();
    };
    remove(&mut bench, "scheduler/10-fcfs.wasm");
    assert_eq!(bench.state("fcfs"), None);
    remove(&mut bench, "validator/10-limits.wasm");
    assert_eq!(bench.state("limits"), None);
    remove(&mut bench, "validator/20-words.wasm");
    assert_eq!(missing(&bench), ["words"]);
    // One that only looks on guards nothing.
    bench.put("validator/30-onlooker.wasm", variant(&component("plugins/validator-limits"), 2));
    bench.put("validator/30-onlooker.toml", "[policy]\nmode = \"monitor\"");
    bench.settle();
    assert_eq!(missing(&bench), ["words"]);
    let keys = bench.dir.path().join("auth/10-keys.wasm");
    fs::rename(&keys, bench.dir.path().join("auth/20-keys.wasm")).unwrap();
    bench.settle();
    assert!(bench.loader.has_auth() && missing(&bench) == ["words"], "a guard that is renamed replaces itself");
}

/// Of what became of policies: what, and whose doing it was.
fn history(bench: &Bench) -> Vec<(PolicyEvent, String)> {
    let history = bench.loader.history();
    let changes = history.lock().unwrap().changes();
    changes.into_iter().map(|change| (change.event, change.who)).collect()
}

#[test]
fn says_what_requests_meet_at_a_rejected_guard() {
    let broken = b"\0asm\x01\0\0\0";
    let mut running = Bench::new();
    running.put("filter/10-other.wasm", component("plugins/filter-mask-secrets"));
    running.loader.start().unwrap();
    running.put("filter/20-x.wasm", broken);
    running.settle();
    let effects = |bench: &Bench| ["other", "x"].map(|name| bench.status(name).map(|status| status.effect));
    assert_eq!(effects(&running), [Some(PolicyEffect::Decides), Some(PolicyEffect::None)]);
    running.put("filter/10-other.toml", "[policy]\nmode = \"monitor\"");
    running.settle();
    assert_eq!(effects(&running), [Some(PolicyEffect::Watches), Some(PolicyEffect::None)]);

    let mut started = Bench::new();
    started.put("filter/20-x.wasm", broken);
    started.put("scheduler/10-other.wasm", component("plugins/scheduler-fcfs"));
    started.loader.start().unwrap();
    assert_eq!(effects(&started), [Some(PolicyEffect::Decides), Some(PolicyEffect::Fails)]);
    assert!(started.metrics().contains("camshaft_policies_rejected{hook=\"filter\"} 1"), "from the start");
    // Nothing of it has served, and it guards until an operator says otherwise.
    fs::remove_file(started.dir.path().join("filter/20-x.wasm")).unwrap();
    started.loader.scan_settled();
    let status = started.status("x").unwrap();
    assert_eq!((status.effect, status.serving), (PolicyEffect::Fails, None));
    let why = status.error.unwrap();
    assert!(why.contains("does not serve: requests that need it go on failing") && why.contains("x/off"), "{why}");
    let end = ModeChange::new(Hook::Filter, "x".to_owned(), Mode::Off).by("me".to_owned());
    { end }.attempt(&mut started.loader).unwrap().unwrap();
    assert_eq!(effects(&started)[1], None);
    assert!(history(&started).contains(&(PolicyEvent::Removed, "me".to_owned())));
    assert!(started.metrics().contains("camshaft_policies_rejected{hook=\"filter\"} 0"));

    let mut skipped = Bench::new();
    skipped.put("filter/20-x.wasm", broken);
    skipped.put("filter/20-x.toml", "[policy]\non-fault = \"skip\"");
    skipped.put("scheduler/10-other.wasm", component("plugins/scheduler-fcfs"));
    skipped.loader.start().unwrap();
    assert_eq!(effects(&skipped)[1], Some(PolicyEffect::None));

    let mut native = Bench::new();
    native.put("auth/20-x.wasm", broken);
    native.put("auth/20-x.toml", "[policy]\non-fault = \"fallback\"");
    native.put("scheduler/10-other.wasm", component("plugins/scheduler-fcfs"));
    native.loader.start().unwrap();
    fs::remove_file(native.dir.path().join("auth/20-x.wasm")).unwrap();
    native.loader.scan_settled();
    let status = native.status("x").unwrap();
    let why = status.error.unwrap();
    assert!(status.effect == PolicyEffect::None && why.contains("requests pass without it"), "{why}");
}

#[test]
fn regression_what_is_compiled_for_an_order_comes_into_force_as_the_orders_doing() {
    let (guest, other) = (component("guests/misbehave-auth"), component("plugins/auth-api-keys"));
    let mut bench = Bench::new();
    bench.put("auth/10-x.wasm", &guest);
    bench.put("auth/10-x.toml", "[policy]\nmode = \"off\"");
    bench.loader.start().unwrap();
    bench.hold(&guest);
    let mut enforce = ModeChange::new(Hook::Auth, "x".to_owned(), Mode::Enforce).by("me".to_owned());
    assert!(enforce.attempt(&mut bench.loader).is_none(), "it is being compiled");
    // The files of others change meanwhile.
    bench.put("auth/20-other.wasm", &other);
    bench.finish();
    assert!(enforce.decide(&mut bench.loader).unwrap().is_ok());
    let history = bench.loader.history();
    let changes = history.lock().unwrap().changes();
    let swapped = |name| {
        let of = changes.iter().filter(move |change| change.event == PolicyEvent::Swapped && change.name == name);
        of.map(|change| change.who.as_str()).collect::<Vec<_>>()
    };
    assert_eq!((swapped("x"), swapped("other")), (vec!["me"], vec!["file"]));
}

#[test]
fn an_operator_ends_what_serves_without_a_file() {
    let mut bench = served();
    fs::remove_dir_all(bench.dir.path().join("auth")).unwrap();
    bench.loader.scan_settled();
    let set = |bench: &mut Bench, mode| {
        ModeChange::new(Hook::Auth, "keys".to_owned(), mode).attempt(&mut bench.loader).unwrap()
    };
    let refused = set(&mut bench, Mode::Monitor).unwrap_err();
    assert!(matches!(refused, ModeError::Unreadable), "{refused}");
    assert!(bench.loader.has_auth());
    let status = set(&mut bench, Mode::Off).unwrap();
    assert_eq!((status.state, status.serving), (PolicyState::Off, None));
    assert!(!bench.loader.has_auth());
    bench.loader.scan_settled();
    assert_eq!(bench.status("keys"), None);
    bench.put("auth/10-keys.wasm", component("guests/misbehave-auth"));
    bench.settle();
    assert_eq!(bench.state("keys"), Some(PolicyState::Active), "a file that comes again is on again");
    // With its mode in its file it is ended, too.
    bench.put("auth/10-keys.toml", "[policy]\nmode = \"off\"");
    bench.settle();
    fs::remove_dir_all(bench.dir.path().join("auth")).unwrap();
    bench.loader.scan_settled();
    assert!(!bench.loader.has_auth() && bench.status("keys").is_none());
}

fn relocate(bench: &mut Bench, dir: &Path, same_guards: bool) -> Result<(), String> {
    let demands = Demands { auth: false, same_guards };
    let relocation = Relocation::new(dir.to_path_buf(), demands, Grants::default(), Claim::default());
    let (mut relocation, compiled) = (relocation.unwrap(), bench.loader.compiled());
    loop {
        if let Some(moved) = relocation.attempt(&mut bench.loader) {
            return moved.map_err(|error| error.to_string());
        }
        compiled.recv().unwrap();
    }
}

#[test]
fn regression_another_directory_without_a_guard_that_serves_is_refused() {
    let mut bench = served();
    let other = tempfile::tempdir().unwrap();
    fill(other.path());
    fs::remove_dir_all(other.path().join("validator")).unwrap();
    let mut attempt = |same_guards| relocate(&mut bench, other.path(), same_guards);
    assert!(attempt(true).unwrap_err().contains("no validator policy in force"));
    attempt(false).unwrap();
    assert_eq!(View::stable(bench.loader.registry.current()).validators(), 0);
}

#[test]
fn regression_another_directory_without_the_settings_of_a_guard_that_serves_is_refused() {
    let mut bench = Bench::new();
    fill(bench.dir.path());
    put(bench.dir.path(), "validator/10-limits.toml", b"[settings]\nmax-n = 1\n");
    bench.loader.start().unwrap();
    let other = tempfile::tempdir().unwrap();
    fill(other.path());
    let mut attempt = |same_guards| relocate(&mut bench, other.path(), same_guards);
    let why = "has no settings, or no [match], for the validator policy limits, which has some now";
    assert!(attempt(true).unwrap_err().contains(why));
    put(other.path(), "validator/10-limits.toml", b"");
    assert!(attempt(true).unwrap_err().contains(why), "an empty file says no more");
    attempt(false).unwrap();
}

#[test]
fn regression_another_directory_without_the_match_of_a_guard_is_refused() {
    let mut bench = Bench::new();
    fill(bench.dir.path());
    put(bench.dir.path(), "auth/10-keys.toml", b"[match]\nendpoints = [\"/metrics\"]\n");
    bench.loader.start().unwrap();
    let other = tempfile::tempdir().unwrap();
    fill(other.path());
    put(other.path(), "auth/10-keys.toml", b"[settings]\nreuse = true\n");
    assert!(relocate(&mut bench, other.path(), true).unwrap_err().contains("no [match], for the auth policy keys"));
    put(other.path(), "auth/10-keys.toml", b"[match]\nendpoints = [\"/v1/*\"]\n");
    relocate(&mut bench, other.path(), true).unwrap();
}

#[test]
fn regression_a_guard_that_lost_its_grant_still_has_settings_that_another_directory_must_have() {
    let mut bench = Bench::new();
    fill(bench.dir.path());
    let settings = "[settings]\nmax-n = 1\n[secrets]\nkey = { env = \"PATH\" }\n";
    put(bench.dir.path(), "validator/10-limits.toml", settings.as_bytes());
    bench.loader.start().unwrap();
    assert!(bench.loader.set_grants(Grants::nothing()));
    bench.settle();
    assert_eq!(bench.status("limits").unwrap().serving, None);
    let other = tempfile::tempdir().unwrap();
    fill(other.path());
    assert!(relocate(&mut bench, other.path(), true).unwrap_err().contains("no settings"));
    // Nor are they lost where it is.
    bench.put("validator/10-limits.toml", "# cut");
    bench.loader.directory.returns_after = Duration::ZERO;
    bench.settle();
    let status = bench.status("limits").unwrap();
    assert!(status.serving.is_none() && status.error.unwrap().contains("write settings = {}"));
}

/// The state that a policy's instances share.
fn state_of(bench: &Bench, name: &str) -> *const crate::imports::state::PluginState {
    let mut policies = bench.loader.directory.policies.iter();
    let (_, policy) = policies.find(|(place, _)| place.name() == name).unwrap();
    std::sync::Arc::as_ptr(&policy.serving.as_ref().unwrap().0.identity.state)
}

#[test]
fn regression_a_policy_that_is_renamed_keeps_its_state() {
    let mut bench = served();
    bench.loader.directory.returns_after = Duration::ZERO;
    let rename = |bench: &mut Bench, from: &str, to: &str| {
        fs::rename(bench.dir.path().join(from), bench.dir.path().join(to)).unwrap();
        bench.settle();
    };
    let (keys, fcfs) = (state_of(&bench, "keys"), state_of(&bench, "fcfs"));
    rename(&mut bench, "auth/10-keys.wasm", "auth/20-keys.wasm");
    assert_eq!(state_of(&bench, "keys"), keys, "another number is no other name");
    rename(&mut bench, "auth/20-keys.wasm", "auth/20-door.wasm");
    assert_eq!((state_of(&bench, "door"), bench.state("keys")), (keys, None));
    rename(&mut bench, "scheduler/10-fcfs.wasm", "scheduler/10-first.wasm");
    assert_eq!(state_of(&bench, "first"), fcfs);
    // Removed, and then there again under another name.
    rename(&mut bench, "scheduler/10-first.wasm", "first");
    assert_eq!(bench.state("first"), None);
    rename(&mut bench, "first", "scheduler/10-again.wasm");
    assert_eq!(state_of(&bench, "again"), fcfs);
    // A second one of the same kind has its own, and so has another plugin.
    let limits = state_of(&bench, "limits");
    assert_ne!(state_of(&bench, "words"), limits);
    bench.put("validator/30-third.wasm", variant(&component("plugins/validator-limits"), 3));
    bench.settle();
    assert!(![limits, state_of(&bench, "words")].contains(&state_of(&bench, "third")));
    bench.put("auth/30-other.wasm", component("plugins/auth-api-keys"));
    bench.settle();
    assert_ne!(state_of(&bench, "other"), keys);
}

#[test]
fn regression_a_policy_that_only_looks_on_is_no_last_guard() {
    let mut bench = Bench::new();
    bench.put("auth/10-keys.wasm", component("guests/misbehave-auth"));
    bench.put("validator/10-limits.wasm", component("plugins/validator-limits"));
    bench.put("validator/10-limits.toml", "[policy]\nmode = \"monitor\"");
    bench.loader.start().unwrap();
    bench.loader.directory.returns_after = Duration::ZERO;
    assert_eq!(bench.state("limits"), Some(PolicyState::Active));
    fs::remove_file(bench.dir.path().join("validator/10-limits.wasm")).unwrap();
    bench.loader.scan_settled();
    assert_eq!(bench.state("limits"), None);
}

#[test]
fn regression_a_guard_keeps_its_settings_while_their_file_may_come_back() {
    let mut bench = served();
    let (file, limits) = (bench.dir.path().join("validator/10-limits.toml"), component("plugins/validator-limits"));
    let settings = |bench: &Bench| {
        let mut policies = bench.loader.directory.policies.iter();
        let (_, policy) = policies.find(|(place, _)| place.name() == "limits").unwrap();
        policy.serving.as_ref().unwrap().0.sidecar.settings.clone()
    };
    let lax = settings(&bench);
    bench.put("validator/10-limits.toml", "[settings]\nmax-tokens = 7");
    bench.settle();
    let strict = settings(&bench);
    assert_ne!(strict, lax);
    // All is removed, and copied back with the component first, which is another file now.
    fs::remove_dir_all(bench.dir.path().join("validator")).unwrap();
    bench.loader.scan_settled();
    bench.put("validator/10-limits.wasm", &limits);
    for patience in [Patience::Wait, Patience::Now] {
        assert!(bench.loader.scan(patience).unsettled, "it is looked at again");
        assert_eq!(settings(&bench), strict);
    }
    bench.put("validator/10-limits.toml", "[settings]\nmax-tokens = 7");
    bench.settle();
    assert_eq!((settings(&bench), bench.state("limits")), (strict, Some(PolicyState::Active)));
    // Removed by somebody who means it.
    bench.loader.directory.returns_after = Duration::ZERO;
    fs::remove_file(&file).unwrap();
    bench.settle();
    assert_eq!(settings(&bench), lax);
}

#[test]
fn regression_a_guard_keeps_its_settings_when_their_file_is_cut() {
    const FILE: &str = "validator/10-limits.toml";
    let mut bench = Bench::new();
    fill(bench.dir.path());
    const WHOLE: &str = "[policy]\nmode = \"monitor\"\n[settings]\nmax-tokens = 4\n";
    bench.put(FILE, WHOLE);
    bench.loader.start().unwrap();
    let generation = bench.status("limits").unwrap().generation;
    let is_as_before = |bench: &Bench| {
        let status = bench.status("limits").unwrap();
        status.mode == Mode::Monitor && status.generation == generation
    };
    for cut in ["", "# only this\n", "[policy]\nmode = \"enforce\"\n", "[settings]\n", "[settings]\n# cut he"] {
        bench.loader.directory.returns_after = Duration::from_secs(3600);
        bench.put(FILE, cut);
        // Whoever asks for a reload does not make it any better.
        assert!(bench.loader.scan_settled().unsettled, "{cut:?}: the rest may come");
        assert!(is_as_before(&bench) && bench.status("limits").unwrap().error.is_none(), "{cut:?}");
        bench.loader.directory.returns_after = Duration::ZERO;
        assert!(!bench.loader.scan_settled().unsettled);
        let status = bench.status("limits").unwrap();
        assert!(is_as_before(&bench) && status.state == PolicyState::Rejected, "{cut:?}: {status:?}");
        assert!(status.error.is_some_and(|why| why.contains("write settings = {}")));
        bench.put(FILE, WHOLE);
        bench.loader.scan_settled();
        assert!(is_as_before(&bench) && bench.state("limits") == Some(PolicyState::Active));
    }
    // Whoever means it says so.
    bench.put(FILE, "settings = {}\n");
    bench.loader.scan_settled();
    let status = bench.status("limits").unwrap();
    assert!(status.state == PolicyState::Active && status.mode == Mode::Enforce, "{status:?}");
}

#[test]
fn regression_a_guard_keeps_its_match_when_its_file_is_cut_before_it() {
    let mut bench = Bench::new();
    fill(bench.dir.path());
    let file = "auth/10-keys.toml";
    const CUT: &str = "[settings]\nreuse = true\n";
    bench.put(file, format!("{CUT}[match]\nendpoints = [\"/metrics\"]\n"));
    bench.loader.start().unwrap();
    bench.loader.directory.returns_after = Duration::ZERO;
    let is_narrow = |bench: &Bench| {
        let set = bench.loader.registry.current();
        set.ready(Hook::Auth).all(|policy| !policy.sidecar.matching.is_all())
    };
    bench.put(file, CUT);
    bench.settle();
    let status = bench.status("keys").unwrap();
    assert!(is_narrow(&bench) && status.error.is_some_and(|why| why.contains("match = {}")));
    // Whoever means it says so.
    bench.put(file, format!("match = {{}}\n{CUT}"));
    bench.settle();
    assert!(!is_narrow(&bench) && bench.state("keys") == Some(PolicyState::Active));
}

#[test]
fn regression_a_guard_that_is_renumbered_does_not_lose_its_settings() {
    const SETTINGS: &str = "[settings]\nmax-tokens = 7";
    let at = |bench: &Bench, stem: &str| {
        let mut policies = bench.loader.directory.policies.iter();
        let (_, policy) = policies.find(|(place, _)| place.stem == stem)?;
        Some((policy.serving.as_ref()?.0.sidecar.settings.clone(), policy.error.clone()))
    };
    let path = |bench: &Bench, file: &str| bench.dir.path().join("validator").join(file);
    let mut bench = served();
    bench.put("validator/10-limits.toml", SETTINGS);
    bench.settle();
    let strict = at(&bench, "10-limits").unwrap().0;
    let generation = bench.loader.registry.current().generation;
    fs::rename(path(&bench, "10-limits.wasm"), path(&bench, "15-limits.wasm")).unwrap();
    for _ in 0..2 {
        assert!(bench.loader.scan_settled().unsettled, "its settings may come");
        assert_eq!((at(&bench, "10-limits").unwrap().0, at(&bench, "15-limits").is_none()), (strict.clone(), true));
    }
    assert_eq!(bench.loader.registry.current().generation, generation);
    // A file of settings that is cut is no better than none.
    bench.put("validator/15-limits.toml", "# the rest may come");
    assert!(bench.loader.scan_settled().unsettled);
    assert!(at(&bench, "15-limits").is_none());
    fs::remove_file(path(&bench, "15-limits.toml")).unwrap();
    bench.loader.directory.returns_after = Duration::ZERO;
    bench.loader.scan_settled();
    let status = bench.loader.directory.statuses().into_iter().find(|status| status.file.ends_with("15-limits.wasm"));
    let why = status.unwrap().error.unwrap();
    assert!(why.starts_with("15-limits.toml: ") && why.contains("move 10-limits.toml here"), "{why}");
    assert_eq!(at(&bench, "10-limits").unwrap().0, strict);
    assert_eq!(bench.loader.registry.current().generation, generation, "nothing else serves");
    fs::rename(path(&bench, "10-limits.toml"), path(&bench, "15-limits.toml")).unwrap();
    bench.settle();
    assert!(matches!(at(&bench, "15-limits"), Some((settings, None)) if settings == strict));
    assert!(at(&bench, "10-limits").is_none(), "it serves at its new place alone");
}

#[test]
fn a_guard_that_is_renumbered_may_leave_its_settings_where_that_is_said() {
    let mut bench = served();
    bench.put("validator/10-limits.toml", "[settings]\nmax-tokens = 7");
    bench.settle();
    bench.put("validator/15-limits.toml", "settings = {}");
    fs::rename(bench.dir.path().join("validator/10-limits.wasm"), bench.dir.path().join("validator/15-limits.wasm"))
        .unwrap();
    bench.settle();
    let status = bench.status("limits").unwrap();
    assert!(status.file.ends_with("15-limits.wasm") && status.state == PolicyState::Active, "{status:?}");
}
