//! What trials once got wrong: what they counted, whom they let choose, and what they left behind.
use std::os::unix::fs::PermissionsExt;

use camshaft_core::policy::Mode;

use super::*;
use crate::grants::Grants;
use crate::load::ModeChange;

#[test]
fn regression_no_client_chooses_the_version_that_it_meets() {
    let (mut bench, ..) = trial(Hook::Auth);
    let ask = |bench: &Bench, headers: &[(&str, &str)]| {
        let candidate = bench.candidate(Hook::Auth);
        let before = candidate.health.calls();
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect();
        let request =
            AuthRequest { id: "mine".to_owned(), headers, path: "/v1/models".to_owned(), ..AuthRequest::default() };
        wait(View::stable(bench.loader.registry.current()).authenticate(&Arc::new(request)));
        candidate.health.calls() > before
    };
    let meets = ask(&bench, &[("authorization", "Bearer k")]);
    for other in 0..64 {
        let other = other.to_string();
        for more in ["authorization", "x-api-key"] {
            assert_eq!(ask(&bench, &[("authorization", "Bearer k"), (more, &other)]), meets, "{more}: {other}");
        }
    }
    bench.put("auth/10-x.toml", settings("canary-by = \"request\"\n"));
    bench.settle();
    let met: std::collections::HashSet<bool> = (0..64).map(|_| ask(&bench, &[])).collect();
    assert_eq!(met.len(), 2, "whatever request id it sends");
    let (mut bench, ..) = trial(Hook::Sampler);
    bench.put("sampler/10-x.toml", settings("canary-by = \"request\"\n"));
    bench.settle();
    let view = View::stable(bench.loader.registry.current());
    let met: std::collections::HashSet<_> =
        (0..64).map(|_| view.assigned(&"t".into()).unwrap().sampler_chain()).collect();
    assert_eq!(met.len(), 2);
}

#[test]
fn regression_a_version_that_differs_in_any_key_is_met_and_found() {
    let guest = component("guests/misbehave-sampler");
    let lists = tempfile::tempdir().unwrap();
    std::fs::write(lists.path().join("list"), "one").unwrap();
    let document = format!("[documents.list]\npath = \"{}\"", lists.path().join("list").display());
    let sha256 = format!("sha256 = \"{}\"", digest_of(&guest));
    let cases = [
        "deadline = \"7ms\"",
        "memory = \"32MiB\"",
        "on-fault = \"deny\"",
        "required = true",
        "monitor-share = 0.5",
        &sha256,
        "breaker = { faults = 7 }",
        "snapshot = \"never\"",
        "[settings]\nbehave = \"trap\"",
        "[match]\nmodels = [\"demo\"]",
        "[secrets]\nkey = { env = \"PATH\" }",
        &document,
    ];
    let elsewhere = |key: &str| ["mode", "body-digest"].contains(&key) || key.starts_with("canary");
    for key in crate::sidecar::POLICY_KEYS.into_iter().filter(|key| !elsewhere(key)) {
        assert!(cases.iter().any(|case| case.starts_with(key)), "{key} is tried");
    }
    let mut bench = Bench::new();
    bench.put("sampler/10-x.wasm", &guest);
    bench.loader.start().unwrap();
    for case in cases {
        bench.put("sampler/10-x.toml", format!("[policy]\ncanary = 0.5\n{case}\n"));
        bench.settle();
        assert_eq!(bench.tries(Hook::Sampler), 1, "{case}");
        let set = bench.loader.registry.current();
        let picks = set.picks(Hook::Sampler, |_, _| true);
        let chain = set.variant(Hook::Sampler, picks);
        assert!(Arc::ptr_eq(chain.ready().next().unwrap(), &bench.candidate(Hook::Sampler)));
        assert_ne!(chain.digest, set.chain(Hook::Sampler).digest, "{case}");
        assert_eq!(set.find(Hook::Sampler, chain.digest), Some(picks), "{case}");
    }
}

#[test]
fn regression_one_long_answer_does_not_outweigh_requests_that_a_version_breaks() {
    let (mut bench, old, _) = trial(Hook::Sampler);
    let candidate = bench.candidate(Hook::Sampler);
    for _ in 0..8 {
        (0..1000).for_each(|_| candidate.note_call(Outcome::Shaped, Instant::now()));
        candidate.tell_answered();
    }
    fault(&candidate);
    fault(&candidate);
    let canary = bench.status("x").unwrap().canary.unwrap();
    assert_eq!((canary.calls, canary.faults), (10, 2));
    std::thread::sleep(Duration::from_millis(1100));
    assert!(bench.loader.judge_trials());
    assert_eq!(bench.stable(Hook::Sampler), digest_of(&old));
    let why = bench.status("x").unwrap().error.unwrap();
    assert!(why.contains("2 of its 10 calls faulted"), "{why}");
}

#[test]
fn regression_a_request_that_faults_late_is_one_request_that_faulted() {
    let (bench, ..) = trial(Hook::Filter);
    let candidate = bench.candidate(Hook::Filter);
    let late = Fault { plugin: "x".into(), kind: FaultKind::Trap, detail: "trapped".to_owned() };
    candidate.note_answer(Outcome::Pass, Instant::now());
    candidate.note_fault_of(&late, Instant::now(), true);
    let tally = candidate.health.tally();
    assert_eq!((tally.calls, tally.faults, candidate.health.calls()), (1, 1, 2));
}

#[test]
fn regression_callers_who_take_all_instances_end_no_trial() {
    let (mut bench, _, new) = trial(Hook::Validator);
    let candidate = bench.candidate(Hook::Validator);
    answer(&candidate, 10);
    let full = Fault { plugin: "x".into(), kind: FaultKind::Exhausted, detail: "full".to_owned() };
    (0..10).for_each(|_| candidate.note_fault(&full, Instant::now()));
    std::thread::sleep(Duration::from_millis(1100));
    assert!(bench.loader.judge_trials());
    assert_eq!(bench.stable(Hook::Validator), digest_of(&new));
}

#[test]
fn regression_modes_can_be_chosen_after_a_trial_has_ended() {
    for of_settings in [false, true] {
        let (mut bench, old, _) = trial(Hook::Validator);
        if of_settings {
            bench.put("validator/10-x.wasm", &old);
            bench.put("validator/10-x.toml", settings("deadline = \"7ms\"\n"));
            bench.settle();
        }
        bench.order(Hook::Validator, PolicyAction::Rollback).unwrap();
        let mut choose = |mode| {
            let mut change = ModeChange::new(Hook::Validator, "x".to_owned(), mode);
            let status = change.attempt(&mut bench.loader).unwrap().unwrap();
            (status.mode, status.state, status.serving)
        };
        let serves = Some(digest_of(&old));
        assert_eq!(choose(Mode::Monitor), (Mode::Monitor, PolicyState::Rejected, serves.clone()));
        assert_eq!(choose(Mode::Off), (Mode::Off, PolicyState::Off, None));
        assert_eq!(choose(Mode::Enforce), (Mode::Enforce, PolicyState::Rejected, serves));
        assert_eq!((bench.stable(Hook::Validator), bench.tries(Hook::Validator)), (digest_of(&old), 0));
    }
}

#[test]
fn regression_what_was_tried_beside_nothing_can_be_off_and_does_not_come_back() {
    let mut bench = Bench::new();
    bench.put("sampler/10-x.toml", CANARY);
    bench.put("sampler/10-x.wasm", component("guests/misbehave-sampler"));
    bench.loader.start().unwrap();
    bench.order(Hook::Sampler, PolicyAction::Rollback).unwrap();
    let mut choose = |mode| {
        let mut change = ModeChange::new(Hook::Sampler, "x".to_owned(), mode);
        change.attempt(&mut bench.loader).unwrap().map(|status| status.state)
    };
    assert_eq!(choose(Mode::Off).unwrap(), PolicyState::Off);
    let refused = choose(Mode::Enforce);
    assert!(matches!(refused, Err(ModeError::Rejected(_))), "{refused:?}");
    assert_eq!(bench.tries(Hook::Sampler), 0);
}

#[test]
fn regression_a_grant_that_only_a_version_on_trial_needs_ends_the_trial_alone() {
    let (mut bench, old, _) = trial(Hook::Validator);
    bench.put("validator/10-x.toml", settings("[secrets]\nkey = { env = \"PATH\" }\n"));
    bench.settle();
    assert_eq!(bench.tries(Hook::Validator), 1);
    bench.loader.set_grants(Grants::nothing());
    bench.settle();
    assert_eq!((bench.stable(Hook::Validator), bench.tries(Hook::Validator)), (digest_of(&old), 0));
    let status = bench.status("x").unwrap();
    assert!(status.state == PolicyState::Rejected && status.error.unwrap().contains("policy.grant"));
    assert_eq!(bench.events(PolicyEvent::RolledBack), ["configuration"]);
    bench.loader.set_grants(Grants::default());
    bench.settle();
    assert_eq!((bench.state("x"), bench.tries(Hook::Validator)), (Some(PolicyState::Active), 1));
}

#[test]
fn regression_how_a_version_is_tried_makes_no_version_to_go_back_to() {
    let (mut bench, old, new) = trial(Hook::Sampler);
    answer(bench.loader.registry.current().ready(Hook::Sampler).next().unwrap(), 1);
    bench.order(Hook::Sampler, PolicyAction::Promote).unwrap();
    answer(bench.loader.registry.current().ready(Hook::Sampler).next().unwrap(), 1);
    bench.put("sampler/10-x.toml", CANARY.replace("canary", "# canary"));
    bench.settle();
    assert_eq!(bench.stable(Hook::Sampler), digest_of(&new));
    assert_eq!(bench.status("x").unwrap().health.unwrap().last_good, Some(digest_of(&old)));
}

#[test]
fn regression_the_gauge_of_a_breaker_says_what_serves_after_a_trial() {
    let (mut bench, ..) = trial(Hook::Validator);
    let gauge = "camshaft_policy_breaker_state{hook=\"validator\",plugin=\"x\"} ";
    let candidate = bench.candidate(Hook::Validator);
    (0..3).for_each(|_| fault(&candidate));
    assert!(bench.metrics().contains(&format!("{gauge}2")));
    assert!(bench.loader.heed_breakers());
    assert!(bench.metrics().contains(&format!("{gauge}0")), "{}", bench.metrics());
}

#[test]
fn regression_a_trial_beside_a_version_that_is_rolled_back_begins_anew() {
    const LAST_GOOD: &str = "[policy]\non-fault = \"last-good\"\nbreaker = { faults = 1, share = 0.0 }\n";
    let guest = component("guests/misbehave-sampler");
    let mut bench = Bench::new();
    bench.put("sampler/10-x.toml", LAST_GOOD);
    bench.put("sampler/10-x.wasm", &guest);
    bench.loader.start().unwrap();
    answer(bench.loader.registry.current().ready(Hook::Sampler).next().unwrap(), 1);
    bench.put("sampler/10-x.wasm", variant(&guest, 1));
    bench.settle();
    bench.put("sampler/10-x.toml", format!("{LAST_GOOD}canary = 0.5\n"));
    bench.put("sampler/10-x.wasm", variant(&guest, 2));
    bench.settle();
    assert_eq!((bench.stable(Hook::Sampler), bench.tries(Hook::Sampler)), (digest_of(&variant(&guest, 1)), 1));
    fault(bench.loader.registry.current().ready(Hook::Sampler).next().unwrap());
    assert!(bench.loader.heed_breakers());
    assert_eq!((bench.stable(Hook::Sampler), bench.tries(Hook::Sampler)), (digest_of(&guest), 0));
    assert_eq!(bench.events(PolicyEvent::RolledBack), ["breaker", "breaker"], "of both");
    bench.settle();
    assert_eq!(bench.stable(Hook::Sampler), digest_of(&guest));
    assert_eq!(bench.candidate(Hook::Sampler).compiled.digest, digest_of(&variant(&guest, 2)));
}

#[test]
fn regression_settings_that_come_while_a_component_compiles_are_tried_too() {
    let (mut bench, _, new) = trial(Hook::Sampler);
    bench.order(Hook::Sampler, PolicyAction::Promote).unwrap();
    let newest = variant(&new, 7);
    bench.hold(&newest);
    bench.put("sampler/10-x.wasm", &newest);
    assert!(bench.loader.scan_settled().compiling);
    bench.begun.recv().unwrap();
    bench.put("sampler/10-x.toml", settings("deadline = \"7ms\"\n"));
    bench.loader.scan_settled();
    let stable = bench.loader.registry.current().ready(Hook::Sampler).next().unwrap().clone();
    assert_ne!(stable.sidecar.deadline.as_millis(), 7, "new settings are another version");
    let candidate = bench.candidate(Hook::Sampler);
    assert_eq!((candidate.compiled.digest.clone(), candidate.sidecar.deadline.as_millis()), (digest_of(&new), 7));
    bench.finish();
    let candidate = bench.candidate(Hook::Sampler);
    assert_eq!((candidate.compiled.digest.clone(), candidate.sidecar.deadline.as_millis()), (digest_of(&newest), 7));
    assert_eq!((bench.stable(Hook::Sampler), bench.tries(Hook::Sampler)), (digest_of(&new), 1));
}

#[test]
fn regression_both_versions_of_a_trial_have_a_secret_that_changes() {
    let mut bench = Bench::new();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    let write = |secret: &str| {
        std::fs::write(&file, secret).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    };
    write("first");
    let secrets = format!("[secrets]\nkey = {{ file = \"{}\" }}\n", file.display());
    let guest = component("guests/misbehave-validator");
    bench.put("validator/10-x.toml", &secrets);
    bench.put("validator/10-x.wasm", &guest);
    bench.loader.start().unwrap();
    bench.put("validator/10-x.wasm", variant(&guest, 1));
    bench.put("validator/10-x.toml", settings(&secrets));
    bench.settle();
    bench.settle();
    let known = |bench: &Bench| {
        let serving = bench.loader.registry.current().ready(Hook::Validator).next().unwrap().clone();
        let of = |loaded: &Arc<Loaded>| loaded.supplies.secrets.get("key").unwrap().to_vec();
        (of(&serving), of(&bench.candidate(Hook::Validator)))
    };
    assert_eq!(known(&bench), (b"first".to_vec(), b"first".to_vec()));
    answer(&bench.candidate(Hook::Validator), 5);
    bench.loader.try_again();
    bench.settle();
    assert_eq!(bench.status("x").unwrap().canary.unwrap().calls, 5, "the same secrets change nothing");
    write("second");
    bench.loader.try_again();
    bench.settle();
    assert_eq!(known(&bench), (b"second".to_vec(), b"second".to_vec()));
    let status = bench.status("x").unwrap();
    assert_eq!((status.state, status.canary.unwrap().calls), (PolicyState::Active, 0), "it is tried anew");
    // Without the secret both go on as they are, and it is said.
    std::fs::remove_file(&file).unwrap();
    bench.loader.try_again();
    bench.settle();
    assert_eq!(known(&bench), (b"second".to_vec(), b"second".to_vec()));
    assert!(bench.status("x").unwrap().error.unwrap().contains("key"));
    // Scans say so until it is there again, and then nobody has to ask for it.
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(100));
        bench.settle();
        assert!(bench.status("x").unwrap().error.unwrap().contains("key"));
    }
    write("third");
    std::thread::sleep(Duration::from_millis(500));
    bench.settle();
    assert_eq!(known(&bench), (b"third".to_vec(), b"third".to_vec()));
    assert_eq!((bench.state("x"), bench.tries(Hook::Validator)), (Some(PolicyState::Active), 1));
}
