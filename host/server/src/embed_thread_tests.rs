//! An embedder's thread with the fake embedder: what a panic costs, and what comes after it.
use camshaft_core::embed::fake::FakeEmbedder;
use camshaft_core::policy::Priority;
use camshaft_core::pool::Watermarks;
use tokio::sync::watch;

use super::*;
use crate::metrics::ServerMetrics;
use crate::tuning::Tuning;

const PATIENCE: Duration = Duration::from_secs(60);
const LIMITS: EmbedderLimits = EmbedderLimits { batch_tokens: 64, batch_inputs: 8, input_tokens: 16, dimensions: 3 };
/// An input that begins with it makes the embedder panic.
const POISON: Token = Token(13);

/// Requests may be queued up to `high` inputs, until the sender says otherwise.
fn tuning(high: usize) -> watch::Sender<Tuning> {
    let watermarks = Watermarks { high, low: high / 2 };
    watch::Sender::new(Tuning { watermarks, ram_bytes: 0, session_ttl: PATIENCE })
}

type Answer = oneshot::Receiver<Result<Vec<Vec<f32>>, WorkerError>>;

fn job(inputs: &[&[u32]]) -> (EmbedJob, Answer) {
    let (reply, answer) = oneshot::channel();
    let inputs = inputs.iter().map(|input| input.iter().copied().map(Token).collect()).collect();
    (EmbedJob { inputs, priority: Priority::Normal, deadline: None, reply }, answer)
}

#[test]
fn regression_an_embedder_that_panics_comes_back() {
    let supervisor = Supervisor::new();
    let gauges = ServerMetrics::new(&prometheus::Registry::new()).unwrap();
    let gauges = gauges.gauges("fake", "0", camshaft_api::Health::default());
    // The embedder panics while the test waits here, so that another job is queued before it is back.
    let (go_on, wait) = crossbeam_channel::bounded::<()>(0);
    let mut made = 0;
    let make = move || {
        made += 1;
        if made > 1 {
            wait.recv_timeout(PATIENCE).map_err(|error| ServerError::internal("make it", error))?;
        }
        let mut embedder = FakeEmbedder::new(LIMITS);
        embedder.panics_at = Some(POISON);
        Ok(embedder)
    };
    let (jobs, limits) = spawn(&supervisor, gauges.clone(), "fake", tuning(8).subscribe(), make).unwrap();
    assert_eq!((limits, gauges.health.is_up()), (LIMITS, true));

    let (poisoned, lost) = job(&[&[1, 2], &[POISON.0]]);
    jobs.send(poisoned).unwrap();
    assert_eq!(lost.blocking_recv().unwrap(), Err(WorkerError::WorkerLost), "who was on board is told");
    assert!(!gauges.health.is_up());
    let (good, answer) = job(&[&[1, 2], &[3]]);
    jobs.send(good).unwrap();
    go_on.send(()).unwrap();
    let vectors = answer.blocking_recv().unwrap().expect("what waits goes on waiting");
    assert_eq!((vectors.len(), vectors[0].len()), (2, 3));
    assert_eq!((gauges.restarts.get(), gauges.up.get(), gauges.health.is_up()), (1, 1, true));
    assert!(supervisor.end(PATIENCE));
    assert_eq!((gauges.up.get(), gauges.health.is_up()), (0, false));
    assert!(jobs.send(job(&[&[1]]).0).is_err(), "nobody takes jobs any more");
}

#[test]
fn a_job_whose_deadline_has_passed_is_not_begun() {
    let supervisor = Supervisor::new();
    let gauges = ServerMetrics::new(&prometheus::Registry::new()).unwrap();
    let gauges = gauges.gauges("fake", "0", camshaft_api::Health::default());
    let (jobs, _) =
        spawn(&supervisor, gauges, "fake", tuning(8).subscribe(), || Ok(FakeEmbedder::new(LIMITS))).unwrap();
    let (mut late, answer) = job(&[&[1]]);
    late.deadline = Some(Instant::now());
    jobs.send(late).unwrap();
    assert_eq!(answer.blocking_recv().unwrap(), Err(WorkerError::DeadlineExceeded));
    assert!(supervisor.end(PATIENCE));
}

#[test]
fn regression_how_many_inputs_may_wait_follows_a_reload() {
    let supervisor = Supervisor::new();
    let gauges = ServerMetrics::new(&prometheus::Registry::new()).unwrap();
    let gauges = gauges.gauges("fake", "0", camshaft_api::Health::default());
    let tuning = tuning(8);
    let make = || Ok(FakeEmbedder::new(LIMITS));
    let (jobs, _) = spawn(&supervisor, gauges, "fake", tuning.subscribe(), make).unwrap();
    let ask = |inputs: usize| {
        let (job, answer) = job(&vec![&[1][..]; inputs]);
        jobs.send(job).unwrap();
        answer.blocking_recv().unwrap().map(|vectors| vectors.len())
    };
    let most = camshaft_core::limits::EMBED_INPUTS;
    assert_eq!((ask(most), ask(most + 1)), (Ok(most), Err(WorkerError::QueueFull)));
    tuning.send_modify(|tuning| tuning.watermarks.high = most + 1);
    assert_eq!(ask(most + 1), Ok(most + 1));
    tuning.send_modify(|tuning| tuning.watermarks.high = 8);
    assert_eq!(ask(most + 1), Err(WorkerError::QueueFull));
    assert!(supervisor.end(PATIENCE));
}
