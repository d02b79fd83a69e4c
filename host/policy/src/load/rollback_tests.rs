//! Rolling back: what serves again, and what is not loaded again.
use std::sync::Arc;

use camshaft_core::policy::{
    Fault, FaultKind, Hook, Mode, ModeError, PolicyAction, PolicyEvent, PolicyOrder, PolicyState, PolicyStatus,
};

use super::bench::{Bench, component, variant};
use super::*;
use crate::digest::digest_of;
use crate::loaded::Loaded;
use crate::metrics::Outcome;

const LAST_GOOD: &str = "[policy]\non-fault = \"last-good\"\nbreaker = { faults = 1, share = 0.0 }\n";

impl Bench {
    fn serving(&self, hook: Hook) -> Arc<Loaded> {
        self.loader.registry.current().ready(hook).next().unwrap().clone()
    }

    fn answers(&self, hook: Hook) {
        self.serving(hook).note_answer(Outcome::Allow, std::time::Instant::now());
    }

    fn faults(&self, hook: Hook) {
        let fault = Fault { plugin: "x".into(), kind: FaultKind::Trap, detail: "trapped".to_owned() };
        self.serving(hook).note_fault(&fault, std::time::Instant::now());
    }

    fn digest(&self, hook: Hook) -> String {
        self.serving(hook).compiled.digest.clone()
    }
}

/// A bench in which the second version of a policy has just faulted.
fn faulted(hook: Hook, guest: &[u8], (first, second): (&str, &str)) -> Bench {
    let mut bench = Bench::new();
    bench.put(&format!("{hook}/10-x.toml"), first);
    bench.put(&format!("{hook}/10-x.wasm"), guest);
    bench.loader.start().unwrap();
    bench.answers(hook);
    bench.put(&format!("{hook}/10-x.toml"), second);
    bench.put(&format!("{hook}/10-x.wasm"), variant(guest, 1));
    bench.settle();
    assert_eq!(bench.digest(hook), digest_of(&variant(guest, 1)));
    bench.answers(hook);
    bench.faults(hook);
    bench
}

#[test]
fn a_version_whose_breaker_opens_is_rolled_back_and_not_loaded_again_until_its_file_changes() {
    let guest = component("guests/misbehave-auth");
    let mut bench = faulted(Hook::Auth, &guest, (LAST_GOOD, LAST_GOOD));
    let before = bench.loader.registry.current().generation;
    assert!(bench.loader.alarms().try_recv().is_ok());
    assert!(bench.loader.heed_breakers());
    assert!(!bench.loader.heed_breakers(), "once");
    assert_eq!(bench.digest(Hook::Auth), digest_of(&guest));
    let after = bench.loader.registry.current().generation;
    assert_eq!(after.0, before.0 + 1);
    let status = bench.status("x").unwrap();
    assert_eq!((status.state, status.generation), (PolicyState::Rejected, Some(after)));
    let why = status.error.unwrap();
    assert!(why.contains("its breaker opened") && why.contains("trapped"), "{why}");
    // Neither a scan nor a panic nor other settings bring it back; and the settings hold.
    bench.settle();
    bench.loader.recover();
    bench.settle();
    assert_eq!(bench.digest(Hook::Auth), digest_of(&guest));
    bench.put("auth/10-x.toml", format!("{LAST_GOOD}deadline = \"7ms\"\n").replace("breaker", "# breaker"));
    bench.settle();
    assert_eq!(bench.digest(Hook::Auth), digest_of(&guest));
    assert_eq!(bench.serving(Hook::Auth).sidecar.deadline.as_millis(), 7);
    assert_eq!(bench.state("x"), Some(PolicyState::Rejected), "the component is still barred");
    // A mode holds for what serves.
    let mut change = ModeChange::new(Hook::Auth, "x".to_owned(), Mode::Monitor);
    assert_eq!(change.attempt(&mut bench.loader).unwrap().unwrap().mode, Mode::Monitor);
    assert_eq!(bench.digest(Hook::Auth), digest_of(&guest));
    // Another file is another chance.
    bench.put("auth/10-x.wasm", variant(&guest, 2));
    bench.settle();
    assert_eq!(
        (bench.digest(Hook::Auth), bench.state("x")),
        (digest_of(&variant(&guest, 2)), Some(PolicyState::Active))
    );
}

#[test]
fn what_is_rolled_back_keeps_the_newest_settings_of_a_guard() {
    let guest = component("guests/misbehave-auth");
    let newest = format!("{LAST_GOOD}[settings]\nbehave = \"trap\"\n");
    let mut bench = faulted(Hook::Auth, &guest, (LAST_GOOD, &newest));
    assert!(bench.loader.heed_breakers());
    assert_eq!(bench.digest(Hook::Auth), digest_of(&guest));
    assert!(bench.serving(Hook::Auth).sidecar.settings.contains("trap"), "they may revoke what older ones allowed");
}

#[test]
fn only_settings_are_rolled_back_where_nothing_is_guarded() {
    for (hook, rolled_back) in [(Hook::Sampler, true), (Hook::Validator, false)] {
        let mut bench = Bench::new();
        bench.put(&format!("{hook}/10-x.toml"), LAST_GOOD);
        bench.put(&format!("{hook}/10-x.wasm"), component(&format!("guests/misbehave-{hook}")));
        bench.loader.start().unwrap();
        bench.answers(hook);
        bench.put(&format!("{hook}/10-x.toml"), format!("{LAST_GOOD}[settings]\nbehave = \"trap\"\n"));
        bench.settle();
        let health = bench.status("x").unwrap().health.unwrap();
        assert_eq!(health.last_good.is_some(), rolled_back, "{hook}: what cannot be gone back to is not promised");
        assert_eq!(health.last_fault, None);
        bench.faults(hook);
        let last = bench.status("x").unwrap().health.unwrap().last_fault.unwrap();
        assert!(last.kind == "trap" && !last.detail.is_empty(), "{last:?}");
        assert_eq!(bench.loader.heed_breakers(), rolled_back, "{hook}");
        bench.settle();
        assert_eq!(bench.serving(hook).sidecar.settings.contains("trap"), !rolled_back, "{hook}");
        let error = bench.status("x").unwrap().error;
        let said = error.as_ref().map(|error| error.contains("its settings were rolled back to those before them"));
        assert_eq!(said, rolled_back.then_some(true), "{hook}: {error:?}");
    }
}

#[test]
fn a_version_that_never_answered_is_not_gone_back_to() {
    let guest = component("guests/misbehave-auth");
    let mut bench = Bench::new();
    bench.put("auth/10-x.toml", LAST_GOOD);
    bench.put("auth/10-x.wasm", &guest);
    bench.loader.start().unwrap();
    bench.put("auth/10-x.wasm", variant(&guest, 1));
    bench.settle();
    bench.faults(Hook::Auth);
    assert!(!bench.loader.heed_breakers());
    assert_eq!(bench.digest(Hook::Auth), digest_of(&variant(&guest, 1)));
    assert!(bench.serving(Hook::Auth).admit().is_err(), "but it is not asked any more");
}

#[test]
fn without_last_good_a_breaker_rolls_nothing_back() {
    let guest = component("guests/misbehave-auth");
    let settings = LAST_GOOD.replace("last-good", "deny");
    let mut bench = faulted(Hook::Auth, &guest, (&settings, &settings));
    assert!(!bench.loader.heed_breakers());
    assert_eq!(bench.digest(Hook::Auth), digest_of(&variant(&guest, 1)));
    // By hand it is, and back.
    let order =
        |action, name: &str| PolicyOrder { hook: Hook::Auth, name: name.to_owned(), action, who: "me".to_owned() };
    let nothing = |result: Result<Option<PolicyStatus>, ModeError>| {
        assert!(matches!(result, Err(ModeError::Nothing(_))), "{result:?}")
    };
    nothing(bench.loader.obey(&order(PolicyAction::Promote, "x")));
    let serving = |bench: &Bench, action| Some(bench.loader.outcome(&order(action, "x"))?.unwrap().serving);
    let status = bench.loader.obey(&order(PolicyAction::Rollback, "x")).unwrap();
    assert_eq!(status.and_then(|status| status.serving), Some(digest_of(&guest)));
    nothing(bench.loader.obey(&order(PolicyAction::Rollback, "x")));
    ModeChange::new(Hook::Auth, "x".to_owned(), Mode::Off).attempt(&mut bench.loader).unwrap().unwrap();
    nothing(bench.loader.obey(&order(PolicyAction::Rollback, "x")));
    ModeChange::new(Hook::Auth, "x".to_owned(), Mode::Enforce).attempt(&mut bench.loader).unwrap().unwrap();
    assert!(matches!(bench.loader.obey(&order(PolicyAction::Rollback, "nobody")), Err(ModeError::NoPolicy { .. })));
    assert!(matches!(bench.loader.obey(&order(PolicyAction::Promote, "x")), Ok(None)), "it is tried again");
    // Whoever asked is told when it serves, not what served before.
    let promoted = Some(Some(digest_of(&variant(&guest, 1))));
    assert!(serving(&bench, PolicyAction::Promote).is_none_or(|now| Some(now) == promoted));
    bench.settle();
    assert_eq!(serving(&bench, PolicyAction::Promote), promoted);
    assert_eq!(
        (bench.digest(Hook::Auth), bench.state("x")),
        (digest_of(&variant(&guest, 1)), Some(PolicyState::Active))
    );
    let history = bench.loader.history();
    let events: Vec<_> =
        history.lock().unwrap().changes().into_iter().map(|change| (change.event, change.who)).collect();
    let noted = |event| events.iter().filter(|(of, who)| *of == event && who == "me").count();
    assert_eq!((noted(PolicyEvent::RolledBack), noted(PolicyEvent::Promoted), noted(PolicyEvent::Refused)), (1, 1, 3));
    assert!(noted(PolicyEvent::Swapped) > 0, "what the order brought into force is whose order it was: {events:?}");
}

/// Settings with a document that is at this path.
fn with_document(settings: &str, path: &std::path::Path) -> String {
    format!("{settings}[documents.list]\npath = \"{}\"\n", path.display())
}

#[test]
fn regression_a_rolled_back_guard_serves_while_a_document_of_its_new_settings_is_read() {
    let guest = component("guests/misbehave-auth");
    let mut bench = faulted(Hook::Auth, &guest, (LAST_GOOD, LAST_GOOD));
    assert!(bench.loader.heed_breakers());
    let lists = tempfile::tempdir().unwrap();
    let path = lists.path().join("list");
    std::fs::write(&path, "one").unwrap();
    bench.put("auth/10-x.toml", with_document(LAST_GOOD, &path));
    let scan = bench.loader.scan_settled();
    assert!(scan.compiling && bench.loader.has_auth(), "{scan:?}");
    assert_eq!(bench.state("x"), Some(PolicyState::Rejected), "it is not off");
    bench.compile();
    assert_eq!(bench.digest(Hook::Auth), digest_of(&guest));
    assert_eq!(bench.serving(Hook::Auth).supplies.documents.len(), 1);
}

#[test]
fn regression_what_was_rolled_back_does_not_come_back_when_it_is_turned_off_and_on() {
    let guest = component("guests/misbehave-auth");
    let mut bench = faulted(Hook::Auth, &guest, (LAST_GOOD, LAST_GOOD));
    assert!(bench.loader.heed_breakers());
    let mut choose = |mode| {
        let mut change = ModeChange::new(Hook::Auth, "x".to_owned(), mode);
        change.attempt(&mut bench.loader).unwrap().unwrap()
    };
    assert_eq!(choose(Mode::Off).state, PolicyState::Off);
    let status = choose(Mode::Enforce);
    assert_eq!((status.state, status.serving), (PolicyState::Rejected, Some(digest_of(&guest))));
    assert_eq!(bench.digest(Hook::Auth), digest_of(&guest));
}

#[test]
fn regression_a_mode_that_what_was_rolled_back_cannot_take_is_refused() {
    let guest = component("guests/misbehave-auth");
    let mut bench = faulted(Hook::Auth, &guest, (LAST_GOOD, LAST_GOOD));
    assert!(bench.loader.heed_breakers());
    bench.put("auth/10-x.toml", format!("{LAST_GOOD}[settings]\nno-such = 1\n"));
    bench.settle();
    let mut change = ModeChange::new(Hook::Auth, "x".to_owned(), Mode::Monitor);
    let refused = change.attempt(&mut bench.loader).unwrap();
    assert!(matches!(refused, Err(ModeError::Rejected(_))), "{refused:?}");
    assert_eq!(bench.serving(Hook::Auth).sidecar.mode, Mode::Enforce);
}

#[test]
fn regression_an_opened_breaker_is_heeded_when_the_documents_of_the_version_before_are_there_again() {
    let guest = component("guests/misbehave-sampler");
    let lists = tempfile::tempdir().unwrap();
    let path = lists.path().join("list");
    std::fs::write(&path, "one").unwrap();
    let mut bench = Bench::new();
    bench.put("sampler/10-x.toml", with_document(LAST_GOOD, &path));
    bench.put("sampler/10-x.wasm", &guest);
    bench.loader.start().unwrap();
    bench.answers(Hook::Sampler);
    bench.put("sampler/10-x.toml", format!("{LAST_GOOD}[settings]\nbehave = \"trap\"\n"));
    bench.settle();
    bench.faults(Hook::Sampler);
    assert!(!bench.loader.heed_breakers(), "the document is read first");
    bench.loader.compiled().recv().unwrap();
    assert!(bench.loader.heed_breakers());
    assert!(!bench.serving(Hook::Sampler).sidecar.settings.contains("trap"));
}

#[test]
fn regression_a_version_stays_clean_when_its_mode_changes_to_and_fro() {
    let guest = component("guests/misbehave-auth");
    let mut bench = Bench::new();
    bench.put("auth/10-x.toml", LAST_GOOD);
    bench.put("auth/10-x.wasm", &guest);
    bench.loader.start().unwrap();
    bench.answers(Hook::Auth);
    for mode in [Mode::Monitor, Mode::Enforce] {
        let mut change = ModeChange::new(Hook::Auth, "x".to_owned(), mode);
        assert_eq!(change.attempt(&mut bench.loader).unwrap().unwrap().mode, mode);
    }
    bench.put("auth/10-x.wasm", variant(&guest, 1));
    bench.settle();
    bench.faults(Hook::Auth);
    assert!(bench.loader.heed_breakers());
    assert_eq!(bench.digest(Hook::Auth), digest_of(&guest));
}
