//! The shipped schedulers as components, and the native one, under load: a real pool and real workers.
use std::time::Duration;

use camshaft_core::engine::EngineLimits;
use camshaft_core::policy::Priority;

use crate::cluster::{Cluster, Load};
use crate::rig::{Rig, component, rig};

/// `None`: the native one.
const SCHEDULERS: [Option<&str>; 5] = [
    None,
    Some("scheduler-fcfs"),
    Some("scheduler-priority"),
    Some("scheduler-fair"),
    Some("scheduler-shortest-first"),
];
const LIMITS: EngineLimits = EngineLimits { sequences: 4, kv_tokens: 512, batch_tokens: 128, context_tokens: 512 };
const CLASSES: [Priority; 3] = [Priority::High, Priority::Normal, Priority::Low];

fn host_with(scheduler: Option<&str>) -> Rig {
    // Virtual time passes quickly, the guest's own does not: a busy machine is no fault of the policy.
    let settings: &[u8] = b"[policy]\ndeadline = \"5s\"\n";
    match scheduler {
        Some(name) => {
            rig(&[("scheduler/10-it.wasm", &component(&format!("plugins/{name}"))), ("scheduler/10-it.toml", settings)])
        }
        None => rig(&[]),
    }
}

fn any_load(cluster: &mut Cluster) -> Load {
    // One in ten fills a worker.
    let prompt = if cluster.below(10) == 0 { 500 } else { 1 + cluster.below(150) as u32 };
    Load {
        prompt,
        max_tokens: (1 + cluster.below(60) as u32).min(LIMITS.context_tokens - prompt),
        tenant: ["a", "b", "c"][cluster.below(3) as usize],
        priority: CLASSES[cluster.below(3) as usize],
    }
}

#[test]
fn every_scheduler_serves_any_load_without_a_fault_an_idle_worker_or_a_request_left_over() {
    for scheduler in SCHEDULERS {
        let rig = host_with(scheduler);
        let cases = if scheduler.is_none() { 40 } else { 10 };
        for case in 0..cases {
            let workers = 1 + (case % 4) as u32;
            let mut cluster = Cluster::new(rig.host.scheduler("demo"), workers, LIMITS, case);
            let mut next = 0;
            while next < 60 || cluster.unfinished() > 0 {
                for _ in 0..cluster.below(4).min(60 - next) {
                    next += 1;
                    let load = any_load(&mut cluster);
                    cluster.submit(next, load);
                }
                cluster.turn(true);
                cluster.check();
                assert!(cluster.now < Duration::from_secs(10_000), "{scheduler:?}, case {case}: it never ends");
            }
            assert_eq!(cluster.finished, 60, "{scheduler:?}, case {case}");
        }
    }
}

#[test]
fn no_scheduler_starves_anybody_while_more_comes_than_there_are_sequences() {
    // Longer than the slowest policy takes to lift a low request above high ones, and to serve those before it.
    const LONGEST: Duration = Duration::from_secs(240);
    for scheduler in SCHEDULERS {
        let rig = host_with(scheduler);
        for workers in [1, 3] {
            let mut cluster = Cluster::new(rig.host.scheduler("demo"), workers, LIMITS, 7);
            let mut next = 0;
            while cluster.now < 2 * LONGEST {
                while cluster.unfinished() < 12 * workers as usize {
                    next += 1;
                    // Small and urgent ones keep coming; every ninth is large and can wait.
                    let load = match next % 9 {
                        0 => Load { prompt: 480, max_tokens: 30, tenant: "a", priority: Priority::Low },
                        _ => Load { prompt: 20, max_tokens: 10, tenant: "b", priority: Priority::High },
                    };
                    cluster.submit(next, load);
                }
                cluster.turn(false);
                let waits = cluster.longest_wait();
                assert!(waits < LONGEST, "{scheduler:?}, {workers} workers: {waits:?} at {:?}", cluster.now);
            }
            cluster.check();
            assert!(next > 500, "{scheduler:?}, {workers} workers: {next} requests are no load");
        }
    }
}

#[test]
fn regression_twenty_long_prompts_in_a_row_are_no_fault_of_any_shipped_scheduler() {
    let limits = EngineLimits { sequences: 4, kv_tokens: 8192, batch_tokens: 512, context_tokens: 8192 };
    for scheduler in SCHEDULERS {
        let rig = host_with(scheduler);
        for case in 0..4 {
            let mut cluster = Cluster::new(rig.host.scheduler("demo"), 1, limits, case);
            (1..=20).for_each(|id| {
                cluster.submit(id, Load { prompt: 5000, max_tokens: 8, tenant: "a", priority: Priority::Normal });
                cluster.turn(true);
            });
            while cluster.unfinished() > 0 {
                cluster.turn(true);
                cluster.check();
                assert!(cluster.now < Duration::from_secs(10_000), "{scheduler:?}: it never ends");
            }
            assert_eq!(cluster.finished, 20, "{scheduler:?}");
        }
    }
}
