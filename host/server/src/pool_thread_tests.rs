//! A pool thread between a test that submits and workers that the test plays.
use camshaft_core::engine::EngineLimits;
use camshaft_core::pool::Watermarks;
use camshaft_core::reserve::Reserve;
use crossbeam_channel::bounded;

use super::*;
use crate::metrics::ServerMetrics;
use crate::worker_thread::Handle;

const PATIENCE: Duration = Duration::from_secs(60);
const LIMITS: EngineLimits = EngineLimits { sequences: 4, kv_tokens: 256, batch_tokens: 32, context_tokens: 128 };
const ID: WorkerId = WorkerId(0);

#[test]
fn regression_a_restarted_worker_has_the_cache_limits_in_force() {
    let supervisor = Supervisor::new();
    let policies = camshaft_policy::PolicyHost::start(
        camshaft_policy::PolicyConfig { dir: None, poll: PATIENCE, cache_dir: None, allow_anonymous: true },
        &prometheus::Registry::new(),
    );
    let pool = Pool::new(policies.unwrap().scheduler("demo"), Watermarks { high: 4, low: 2 }, Reserve::Full);
    let ((submit, submissions), (report, reports)) = (bounded(8), bounded(8));
    let metrics = ServerMetrics::new(&prometheus::Registry::new()).unwrap().pool("fake");
    let setup = PoolSetup { pool, begun: Instant::now(), submissions, reports, workers: BTreeMap::new(), metrics };
    spawn(&supervisor, setup, "fake").unwrap();
    let start = |limits: Option<(u64, Duration)>| {
        let (messages, received) = bounded(8);
        report.send(WorkerReport::Up(ID, Handle { limits: LIMITS, messages })).unwrap();
        let Some((ram_bytes, session_ttl)) = limits else { return received };
        match received.recv_timeout(PATIENCE).unwrap() {
            WorkerMessage::Command(command) => assert_eq!(command, Command::CacheLimits { ram_bytes, session_ttl }),
            other => panic!("{other:?}"),
        }
        received
    };
    let limits = (1 << 20, Duration::from_secs(5));
    // One that is up hears of the change when it happens, one that comes up later as the first thing.
    let first = start(None);
    submit.send(PoolMessage::Cache { ram_bytes: limits.0, session_ttl: limits.1 }).unwrap();
    assert!(matches!(first.recv_timeout(PATIENCE).unwrap(), WorkerMessage::Command(Command::CacheLimits { .. })));
    report.send(WorkerReport::Down(ID)).unwrap();
    start(Some(limits));
    assert!(supervisor.end(PATIENCE));
}
