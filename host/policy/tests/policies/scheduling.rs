//! A pool whose scheduler policy faults: who decides then, and what operators see of it.
use std::time::Duration;

use camshaft_core::engine::EngineLimits;
use camshaft_core::ids::WorkerId;
use camshaft_core::policy::PolicyState;
use camshaft_core::pool::{Pool, Watermarks};
use camshaft_core::reserve::Reserve;

use crate::rig::{Rig, behave, component, rig};

const LIMITS: EngineLimits = EngineLimits { sequences: 4, kv_tokens: 1000, batch_tokens: 64, context_tokens: 1000 };

fn pool(rig: &Rig, model: &str) -> Pool {
    let mut pool = Pool::new(rig.host.scheduler(model), Watermarks { high: 100, low: 50 }, Reserve::Expected);
    pool.add_worker(WorkerId(0), LIMITS);
    pool
}

#[test]
fn regression_operators_see_that_the_native_scheduler_took_over_and_that_the_policy_returned() {
    const FILE: &str = "scheduler/10-bad.wasm";
    let rig = rig(&[(FILE, &component("guests/misbehave-scheduler"))]);
    let state = || (rig.status(FILE).state, rig.status(FILE).error);
    let mut pools = [pool(&rig, "one"), pool(&rig, "two")];
    let ask = |pools: &mut [Pool], ms| pools.iter_mut().for_each(|pool| drop(pool.schedule(Duration::from_millis(ms))));
    ask(&mut pools, 0);
    assert_eq!(state(), (PolicyState::Active, None));
    rig.put("scheduler/10-bad.toml", behave("trap", "deadline = \"2s\""));
    assert_eq!(state(), (PolicyState::Active, None), "nobody asked it yet");
    ask(&mut pools[..1], 1);
    let (replaced, error) = state();
    let error = error.unwrap();
    assert_eq!(replaced, PolicyState::Replaced);
    assert!(error.contains("model one: replaced by the native scheduler since a fault: policy bad faulted (trap)"));
    assert!(!error.contains("two"), "{error}");
    ask(&mut pools[1..], 1);
    assert!(rig.error(FILE).contains("model one: ") && rig.error(FILE).contains("model two: "));
    rig.put("scheduler/10-bad.toml", behave("well", "deadline = \"2s\""));
    assert_eq!(state(), (PolicyState::Active, None), "what was put there did not fault");
    ask(&mut pools, 2);
    assert_eq!(state(), (PolicyState::Active, None));
}

#[test]
fn a_pool_that_ends_takes_its_replacement_along() {
    const FILE: &str = "scheduler/10-bad.wasm";
    let settings = behave("trap", "deadline = \"2s\"");
    let rig = rig(&[(FILE, &component("guests/misbehave-scheduler")), ("scheduler/10-bad.toml", settings.as_bytes())]);
    let mut pool = pool(&rig, "one");
    pool.schedule(Duration::ZERO);
    assert_eq!(rig.status(FILE).state, PolicyState::Replaced);
    drop(pool);
    assert_eq!((rig.status(FILE).state, rig.status(FILE).error), (PolicyState::Active, None));
}

#[test]
fn a_monitored_scheduler_comes_and_goes_while_the_one_in_force_stays() {
    let rig = rig(&[("scheduler/10-fcfs.wasm", &component("plugins/scheduler-fcfs"))]);
    let hook = rig.host.scheduler("demo");
    let before = hook.generation(Duration::ZERO);
    assert_eq!(hook.monitored(), None);
    for (file, content) in [("20-old", "scheduler-fcfs"), ("30-short", "scheduler-shortest-first")] {
        rig.put(&format!("scheduler/{file}.toml"), "[policy]\nmode = \"monitor\"");
        rig.put(&format!("scheduler/{file}.wasm"), component(&format!("plugins/{content}")));
        assert_eq!(hook.generation(Duration::ZERO), before);
    }
    let monitored = hook.monitored();
    assert!(monitored.is_some());
    let state = |file: &str| rig.status(file).state;
    assert_eq!(state("scheduler/10-fcfs.wasm"), PolicyState::Active);
    assert_eq!(state("scheduler/20-old.wasm"), PolicyState::Standby);
    assert_eq!(state("scheduler/30-short.wasm"), PolicyState::Active);
    assert_eq!(hook.open(Duration::ZERO).unwrap().unwrap().0.as_str(), "fcfs");
    assert_eq!(hook.open_monitored().unwrap().unwrap().0.as_str(), "short");
    // The one in force changes, and the monitored one stays.
    rig.remove("scheduler/10-fcfs.wasm");
    assert!(hook.generation(Duration::ZERO) != before && hook.open(Duration::ZERO).unwrap().is_none());
    assert_eq!(hook.monitored(), monitored);
    rig.remove("scheduler/30-short.wasm");
    assert!(hook.monitored().is_some() && hook.monitored() != monitored, "the one that stood by is monitored now");
    assert_eq!(hook.open_monitored().unwrap().unwrap().0.as_str(), "old");
}
