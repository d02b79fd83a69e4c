//! What a scheduler's component leaves to its next version, and components that leave nonsense.
use camshaft_core::policy::PolicyState;

use crate::desk::Desk;
use crate::rig::{behave, component, rig};

const FILE: &str = "scheduler/10-bad.wasm";
const SETTINGS: &str = "scheduler/10-bad.toml";

#[test]
fn round_robin_goes_on_after_an_upgrade_where_it_was() {
    let rig = rig(&[("scheduler/10-rr.wasm", &component("plugins/scheduler-round-robin"))]);
    rig.put("scheduler/10-rr.toml", "[policy]\ndeadline = \"2s\"");
    let mut desk = Desk::new(&rig, "one", 3);
    desk.submit(1, "t", 10);
    desk.submit(2, "t", 10);
    assert_eq!(desk.schedule(1).0, [(1, 0), (2, 1)]);
    desk.finish(0, 1);
    desk.finish(1, 2);
    rig.put("scheduler/10-rr.toml", "[policy]\ndeadline = \"2s\"\n[settings]\nageing = \"31s\"");
    desk.submit(3, "t", 10);
    assert_eq!(desk.schedule(2).0, [(3, 2)], "not from the first worker on");
    assert_eq!(rig.status("scheduler/10-rr.wasm").state, PolicyState::Active);
}

#[test]
fn the_counters_of_fair_shares_survive_an_upgrade_in_each_model() {
    let rig = rig(&[("scheduler/10-fair.wasm", &component("plugins/scheduler-fair"))]);
    let settings =
        |price: u32| format!("[policy]\ndeadline = \"2s\"\n[settings]\npreempt = false\noutput-price = {price}");
    rig.put("scheduler/10-fair.toml", settings(2));
    let mut desks = ["one", "two"].map(|model| Desk::new(&rig, model, 1));
    // In one model a gets more, in the other b. They share the plugin's state store, where the second one writes last.
    for (desk, (a, b)) in desks.iter_mut().zip([(80, 10), (10, 80)]) {
        desk.submit(1, "a", a);
        desk.submit(2, "b", b);
        assert_eq!(desk.schedule(1).0.len(), 2);
        // Both wait for a place; a came first.
        desk.submit(3, "a", 10);
        desk.submit(4, "b", 10);
        assert_eq!(desk.schedule(2).0, []);
    }
    rig.put("scheduler/10-fair.toml", settings(3));
    for (desk, next) in desks.iter_mut().zip([4, 3]) {
        assert_eq!(desk.schedule(3).0, [], "the replay");
        desk.finish(0, 1);
        assert_eq!(desk.schedule(4).0, [(next, 0)], "who got less goes next");
    }
    assert_eq!(rig.status("scheduler/10-fair.wasm").state, PolicyState::Active);
}

#[test]
fn a_checkpoint_that_cannot_be_had_is_none_and_the_next_version_serves() {
    for (behaves, policy, fault) in [
        ("large-checkpoint", "deadline = \"2s\"", Some("memory")),
        ("leak-checkpoint", "memory = \"64MiB\"\ndeadline = \"2s\"", Some("invalid_output")),
        ("long-checkpoint", "deadline = \"2s\"", Some("invalid_output")),
        ("spin-at-save", "deadline = \"50ms\"", Some("deadline")),
        ("full-checkpoint", "deadline = \"2s\"", None),
        ("well", "deadline = \"2s\"", None),
    ] {
        let rig = rig(&[(FILE, &component("guests/misbehave-scheduler"))]);
        rig.put(SETTINGS, behave(behaves, policy));
        let mut desk = Desk::new(&rig, "one", 1);
        desk.submit(1, "t", 10);
        assert_eq!(desk.schedule(1).0, [(1, 0)], "{behaves}");
        // It would panic over what it is given.
        rig.put(SETTINGS, behave("trap-at-restore", "deadline = \"2s\""));
        desk.submit(2, "t", 10);
        assert_eq!(desk.schedule(2).0, [(2, 0)], "{behaves}");
        let faults = |kind: &str| rig.calls("scheduler", "bad", kind);
        assert_eq!(fault.map(faults), fault.map(|_| 1.0), "{behaves}");
        assert_eq!(faults("trap"), f64::from(fault.is_none()), "{behaves}: whether anything was restored");
        assert_eq!((rig.status(FILE).state, rig.status(FILE).error), (PolicyState::Active, None), "{behaves}");
    }
}

#[test]
fn a_version_that_refuses_what_the_last_one_left_begins_afresh() {
    let rig = rig(&[(FILE, &component("guests/misbehave-scheduler"))]);
    let mut desk = Desk::new(&rig, "one", 1);
    rig.put(SETTINGS, behave("well", "deadline = \"2s\""));
    desk.submit(1, "t", 10);
    desk.schedule(1);
    rig.put(SETTINGS, behave("refuse-checkpoint", "deadline = \"2s\""));
    desk.submit(2, "t", 10);
    assert_eq!(desk.schedule(2).0, [(2, 0)]);
    assert_eq!((rig.status(FILE).state, rig.status(FILE).error), (PolicyState::Active, None));
}

#[test]
fn what_a_component_leaves_is_named_where_it_is_inspected_and_need_not_be_there() {
    let dir = tempfile::tempdir().unwrap();
    for (plugin, exports) in
        [("scheduler-fair", &["camshaft:scheduler/checkpoint@0.2.0"][..]), ("scheduler-fcfs", &[]), ("auth-jwt", &[])]
    {
        let path = dir.path().join(format!("{plugin}.wasm"));
        std::fs::write(&path, component(&format!("plugins/{plugin}"))).unwrap();
        assert_eq!(camshaft_policy::inspect(&path, None, None).unwrap().exports, exports, "{plugin}");
    }
}
