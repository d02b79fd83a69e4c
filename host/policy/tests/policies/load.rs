//! The shipped schedulers under load, natively and as components, and the one built into the core: a real pool and real
//! workers, whose clients leave, read slowly or have deadlines, and which die and come back.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use camshaft_core::engine::EngineLimits;
use camshaft_core::policy::{Priority, SchedulerHook};
use camshaft_core::reserve::Reserve;

use crate::cluster::{Cluster, End, Load, Setup, TURN};
use crate::native::{NATIVE_BUILDS, NoPolicy};
use crate::rig::{Rig, component, rig};

const LIMITS: EngineLimits = EngineLimits { sequences: 4, kv_tokens: 512, batch_tokens: 128, context_tokens: 512 };
const CLASSES: [Priority; 3] = [Priority::High, Priority::Normal, Priority::Low];
const RESERVES: [Reserve; 3] = [Reserve::None, Reserve::Expected, Reserve::Full];
const REQUESTS: u64 = 60;
/// Longer than any load here can take.
const PATIENCE: Duration = Duration::from_secs(10_000);

/// A scheduler in one of its builds.
struct Candidate {
    name: String,
    hook: Arc<dyn SchedulerHook>,
    /// Holds the component.
    _rig: Option<Rig>,
}

/// The one that is built in, and the shipped ones' native builds.
fn natives() -> Vec<Candidate> {
    let built_in = Candidate { name: "built in".to_owned(), hook: Arc::new(NoPolicy), _rig: None };
    let builds = NATIVE_BUILDS.iter().map(|&build| Candidate {
        name: format!("{} natively", build.name),
        hook: Arc::new(build),
        _rig: None,
    });
    [built_in].into_iter().chain(builds).collect()
}

/// The shipped ones as they are shipped: one after another, because each host reserves many addresses of the process.
fn components() -> impl Iterator<Item = Candidate> {
    // Virtual time passes quickly, the guest's own does not: a busy machine is no fault of the policy.
    let settings: &[u8] = b"[policy]\ndeadline = \"5s\"\n";
    let candidate = move |name: &str| {
        let file = component(&format!("plugins/{name}"));
        let rig = rig(&[("scheduler/10-it.wasm", &file), ("scheduler/10-it.toml", settings)]);
        Candidate { name: format!("{name} as a component"), hook: rig.host.scheduler("demo"), _rig: Some(rig) }
    };
    NATIVE_BUILDS.iter().map(move |build| candidate(build.name))
}

fn setup(candidate: &Candidate, workers: u32, reserve: Reserve, seed: u64) -> Setup {
    Setup { hook: candidate.hook.clone(), workers, limits: LIMITS, reserve, seed }
}

fn any_load(cluster: &mut Cluster) -> Load {
    // One in ten fills a worker.
    let prompt = if cluster.once_in(10) { 500 } else { 1 + cluster.below(150) as u32 };
    Load {
        prompt,
        max_tokens: (1 + cluster.below(60) as u32).min(LIMITS.context_tokens - prompt),
        tenant: ["a", "b", "c"][cluster.below(3) as usize],
        priority: CLASSES[cluster.below(3) as usize],
        session: cluster.once_in(3).then(|| cluster.below(6)),
        timeout: cluster.once_in(3).then(|| TURN * cluster.below(100) as u32),
    }
}

/// What happens to clients, workers and the scheduler within a turn.
fn disturb(cluster: &mut Cluster) {
    type Act = fn(&mut Cluster);
    let acts: [(u64, Act); 7] = [
        (8, Cluster::cancel_any),
        (4, Cluster::pause_any),
        (6, Cluster::resume_any),
        (6, Cluster::preempt_any),
        (40, Cluster::crash_any),
        (5, Cluster::restart_any),
        (20, Cluster::swap_scheduler),
    ];
    for (times, act) in acts {
        if cluster.once_in(times) {
            act(cluster);
        }
    }
}

/// Runs one load to its end. How many requests ended in each way.
fn run(setup: Setup, name: &str) -> BTreeMap<End, usize> {
    let case = format!("{name}, {setup:?}");
    let mut cluster = Cluster::new(setup);
    let mut next = 0;
    while next < REQUESTS || cluster.unfinished() > 0 {
        for _ in 0..cluster.below(4).min(REQUESTS - next) {
            next += 1;
            let load = any_load(&mut cluster);
            cluster.submit(next, load);
        }
        disturb(&mut cluster);
        cluster.turn(true);
        // Not after each turn: the pool shall also decide by facts that are no longer true.
        if cluster.once_in(4) {
            cluster.check();
        }
        assert!(cluster.now < PATIENCE, "{case}: it never ends");
    }
    while !cluster.is_quiet() {
        cluster.restart_any();
        cluster.resume_any();
        cluster.turn(false);
        assert!(cluster.now < PATIENCE, "{case}: it never rests");
    }
    cluster.check();
    cluster.assert_all_free();
    let ends = cluster.ends();
    assert_eq!(ends.values().sum::<usize>() as u64, REQUESTS, "{case}: {ends:?}");
    ends
}

/// Runs many loads, each with another seed, number of workers and reserve.
fn run_all(candidates: impl IntoIterator<Item = Candidate>, cases: u64) {
    let mut ends: BTreeMap<End, usize> = BTreeMap::new();
    for candidate in candidates {
        for case in 0..cases {
            let (workers, reserve) = (1 + (case % 4) as u32, RESERVES[(case % 3) as usize]);
            let of_case = run(setup(&candidate, workers, reserve, case), &candidate.name);
            of_case.into_iter().for_each(|(end, count)| *ends.entry(end).or_default() += count);
        }
    }
    for end in [End::Finished, End::Cancelled, End::Cut, End::DeadlineExceeded, End::WorkerLost] {
        assert!(ends.contains_key(&end), "no request ended as {end:?}, so the load tries too little: {ends:?}");
    }
}

#[test]
fn every_scheduler_natively_serves_any_load_without_a_fault_an_idle_worker_or_a_request_left_over() {
    run_all(natives(), 300);
}

#[test]
fn every_component_serves_any_load_without_a_fault_an_idle_worker_or_a_request_left_over() {
    run_all(components(), 12);
}

#[test]
fn no_scheduler_starves_anybody_while_more_comes_than_there_are_sequences() {
    // Longer than the slowest policy takes to lift a low request above high ones, and to serve those before it.
    const MAX_WAIT: Duration = Duration::from_secs(240);
    for candidate in natives().into_iter().chain(components()) {
        for (workers, reserve) in [(1, Reserve::Expected), (3, Reserve::Full), (3, Reserve::None)] {
            let mut cluster = Cluster::new(setup(&candidate, workers, reserve, 7));
            let mut next = 0;
            while cluster.now < 2 * MAX_WAIT {
                while cluster.unfinished() < 12 * workers as usize {
                    next += 1;
                    // Small and urgent ones keep coming; every ninth is large and can wait.
                    let load = match next % 9 {
                        0 => Load::plain(480, 30, "a", Priority::Low),
                        _ => Load::plain(20, 10, "b", Priority::High),
                    };
                    cluster.submit(next, load);
                }
                cluster.turn(false);
                let waits = cluster.longest_wait();
                assert!(waits < MAX_WAIT, "{}, {workers} workers: {waits:?} at {:?}", candidate.name, cluster.now);
            }
            cluster.check();
            assert!(next > 500, "{}, {workers} workers: {next} requests are no load", candidate.name);
        }
    }
}

#[test]
fn regression_twenty_long_prompts_in_a_row_are_no_fault_of_any_shipped_scheduler() {
    let limits = EngineLimits { sequences: 4, kv_tokens: 8192, batch_tokens: 512, context_tokens: 8192 };
    for candidate in natives().into_iter().chain(components()) {
        for seed in 0..4 {
            let mut cluster = Cluster::new(Setup { limits, ..setup(&candidate, 1, Reserve::Expected, seed) });
            (1..=20).for_each(|id| {
                cluster.submit(id, Load::plain(5000, 8, "a", Priority::Normal));
                cluster.turn(true);
            });
            while cluster.unfinished() > 0 {
                cluster.turn(true);
                cluster.check();
                assert!(cluster.now < PATIENCE, "{}: it never ends", candidate.name);
            }
            assert_eq!(cluster.ends(), [(End::Finished, 20)].into(), "{}", candidate.name);
        }
    }
}
