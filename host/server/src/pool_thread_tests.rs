//! A pool thread between a test that submits and workers that the test plays.
use std::sync::Arc;

use camshaft_api::FirstReply;
use camshaft_api::backend::Shared;
use camshaft_core::engine::EngineLimits;
use camshaft_core::ids::{PolicyDigest, RequestId, Token};
use camshaft_core::message::{Delta, FinishReason, Start};
use camshaft_core::policy::Priority;
use camshaft_core::pool::Watermarks;
use camshaft_core::reserve::Reserve;
use camshaft_core::sampling::SamplingParams;
use camshaft_core::segments::Namespace;
use crossbeam_channel::{Sender, bounded};
use tokio::sync::{mpsc, watch};

use super::*;
use crate::config::ModelConfig;
use crate::delivery::Delivery;
use crate::delivery::tests::NoPolicies;
use crate::metrics::ServerMetrics;
use crate::streams::Stream;
use crate::worker::{Handle, WorkerMessage};

const PATIENCE: Duration = Duration::from_secs(60);
const LIMITS: EngineLimits = EngineLimits { sequences: 4, kv_tokens: 256, batch_tokens: 32, context_tokens: 128 };
const ID: WorkerId = WorkerId(0);

/// A pool thread with one worker that the test plays; reports from it go into the second channel.
fn pool_thread(supervisor: &Supervisor, mailbox: Option<Mailbox>) -> (Sender<PoolMessage>, Sender<WorkerReport>) {
    let (submit, submissions) = bounded(8);
    (submit, tuned_pool_thread(supervisor, mailbox, submissions, tuning().subscribe()))
}

fn tuning() -> watch::Sender<Tuning> {
    let watermarks = Watermarks { high: 4, low: 2 };
    watch::Sender::new(Tuning { watermarks, ram_bytes: 0, cache_bytes: 0, session_ttl: PATIENCE })
}

fn tuned_pool_thread(
    supervisor: &Supervisor,
    mailbox: Option<Mailbox>,
    submissions: Receiver<PoolMessage>,
    tuned: Tuned,
) -> Sender<WorkerReport> {
    let (report, reports) = bounded(8);
    spawn(supervisor, setup(mailbox, submissions, reports, tuned), "fake").unwrap();
    report
}

fn setup(
    mailbox: Option<Mailbox>,
    submissions: Receiver<PoolMessage>,
    reports: Receiver<WorkerReport>,
    tuned: Tuned,
) -> PoolSetup {
    let policies = camshaft_policy::PolicyHost::start(
        camshaft_policy::PolicyConfig {
            dir: None,
            allow_empty: true,
            compiler: None,
            poll: PATIENCE,
            cache_dir: None,
            allow_anonymous: true,
            grants: camshaft_policy::Grants::default(),
        },
        &prometheus::Registry::new(),
    );
    let mut pool = Pool::new(policies.unwrap().scheduler("demo"), Watermarks { high: 4, low: 2 }, Reserve::Full);
    if mailbox.is_some() {
        pool.add_worker(ID, LIMITS);
    }
    let metrics = ServerMetrics::new(&prometheus::Registry::new()).unwrap();
    let workers = [(ID, WorkerSeat { mailbox, metrics: metrics.worker("fake", "0") })].into();
    let metrics = metrics.pool("fake");
    let (begun, slow_reader) = (Instant::now(), PATIENCE);
    let (accepts, _alive) = (Arc::default(), bounded(0).0);
    let bounds = watch::Sender::new(ModelBounds::of(&ModelConfig::default())).subscribe();
    PoolSetup { pool, begun, submissions, reports, workers, metrics, slow_reader, tuned, bounds, accepts, _alive }
}

/// A pool without a thread, whose time the test moves on; it has one worker that takes messages in.
struct StillPool {
    thread: PoolThread,
    received: Receiver<WorkerMessage>,
    _tuning: watch::Sender<Tuning>,
}

impl StillPool {
    fn new() -> Self {
        let ((messages, received), tuning) = (bounded(8), tuning());
        let (submissions, reports) = (bounded(1).1, bounded(1).1);
        let thread =
            PoolThread::new(setup(Some(Mailbox::new(Box::new(messages))), submissions, reports, tuning.subscribe()));
        Self { thread, received, _tuning: tuning }
    }

    /// The stream of a request that was submitted and sent to the worker.
    fn start(&mut self, id: u64, client: mpsc::Sender<Event>) -> Stream {
        self.thread.take(submission(id, client));
        self.thread.schedule();
        match self.received.try_recv() {
            Ok(WorkerMessage::Start { stream, .. }) => stream,
            other => panic!("{other:?}"),
        }
    }

    /// All deadlines pass.
    fn pass_deadlines(&mut self) {
        self.thread.setup.begun -= 2 * PATIENCE;
        self.thread.schedule();
    }
}

fn submission(id: u64, events: mpsc::Sender<Event>) -> PoolMessage {
    let start = Start {
        id: RequestId(id),
        model: "fake".to_owned(),
        tenant: "t".into(),
        namespace: Namespace::Tenant("t".into()),
        adapters: Default::default(),
        session: None,
        priority: Priority::Normal,
        endpoint: camshaft_core::policy::Endpoint::Completion,
        sampler_chain: PolicyDigest::NATIVE,
        filter_chain: PolicyDigest::NATIVE,
        context: Default::default(),
        prompt: [Token(97)].into(),
        params: SamplingParams::greedy(),
        samplers: None,
        choice: 0,
        max_tokens: 4,
        stop: Vec::new(),
        ignore_eos: true,
        ends: Default::default(),
        score_prompt: false,
        logprobs: None,
        grammar: None,
        shown: Arc::default(),
    };
    PoolMessage::Submit(Box::new(Submission {
        first_choice: RequestId(id),
        start,
        priority: Priority::Normal,
        weight: 1.0,
        queue_share: None,
        arrived: Instant::now(),
        deadline: Some(Instant::now() + PATIENCE),
        hints: Arc::default(),
        shared: Shared::default(),
        events,
        policies: Arc::new(NoPolicies),
    }))
}

#[test]
fn a_worker_in_a_long_step_never_makes_the_pool_wait() {
    let supervisor = Supervisor::new();
    // Nobody takes anything in.
    let (messages, stalled) = bounded(64);
    let (submit, _report) = pool_thread(&supervisor, Some(Mailbox::new(Box::new(messages))));
    let (client, mut events) = mpsc::channel(4);
    submit.send(submission(1, client)).unwrap();
    for n in 0..10_000 {
        let (reply, _) = tokio::sync::oneshot::channel();
        let session = n.to_string().as_str().into();
        submit.send(PoolMessage::CloseSession { namespace: Namespace::Shared, session, reply }).unwrap();
    }
    let (reply, snapshot) = tokio::sync::oneshot::channel();
    submit.send(PoolMessage::Snapshot(reply)).unwrap();
    assert_eq!(snapshot.blocking_recv().unwrap().running, 1, "it still answers");
    // Nothing that matters was dropped: the cancelled generation is the last thing that the worker hears of.
    events.close();
    submit.send(PoolMessage::Wake).unwrap();
    let mut starts = 0;
    loop {
        match stalled.recv_timeout(PATIENCE).unwrap() {
            WorkerMessage::Start { .. } => starts += 1,
            WorkerMessage::Command(Command::Cancel { id: RequestId(1) }) => break,
            _ => {}
        }
    }
    assert_eq!(starts, 1);
    assert!(supervisor.end(PATIENCE));
}

#[test]
fn regression_the_clients_of_a_lost_worker_read_that_it_was_lost() {
    let supervisor = Supervisor::new();
    let (messages, received) = bounded(8);
    let (submit, report) = pool_thread(&supervisor, Some(Mailbox::new(Box::new(messages))));
    // The one has read everything, the channel of the other is full.
    let ((quick, mut quick_events), (slow, mut slow_events)) = (mpsc::channel(4), mpsc::channel(1));
    submit.send(submission(1, quick)).unwrap();
    submit.send(submission(2, slow.clone())).unwrap();
    let streams: Vec<WorkerMessage> = (0..2).map(|_| received.recv_timeout(PATIENCE).unwrap()).collect();
    slow.try_send(Event::Queued { id: RequestId(2), position: 1 }).unwrap();
    drop((streams, slow));
    report.send(WorkerReport::Down(ID)).unwrap();
    let lost = |id| Some(Event::Failed { id: RequestId(id), error: WorkerError::WorkerLost });
    assert_eq!(quick_events.blocking_recv(), lost(1));
    assert!(matches!(slow_events.blocking_recv(), Some(Event::Queued { .. })));
    assert_eq!(slow_events.blocking_recv(), lost(2));
    assert!(supervisor.end(PATIENCE));
}

#[test]
fn regression_a_restarted_worker_has_the_cache_limits_in_force() {
    let supervisor = Supervisor::new();
    let (tuning, (_submit, submissions)) = (tuning(), bounded(8));
    let report = tuned_pool_thread(&supervisor, None, submissions, tuning.subscribe());
    let start = |limits: Option<(u64, Duration)>| {
        let (messages, received) = bounded(8);
        report.send(WorkerReport::Up(ID, Handle { limits: LIMITS, messages: Box::new(messages) })).unwrap();
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
    tuning.send_modify(|tuning| (tuning.ram_bytes, tuning.session_ttl) = limits);
    assert!(matches!(first.recv_timeout(PATIENCE).unwrap(), WorkerMessage::Command(Command::CacheLimits { .. })));
    report.send(WorkerReport::Down(ID)).unwrap();
    start(Some(limits));
    assert!(supervisor.end(PATIENCE));
}

#[test]
fn regression_a_reload_reaches_a_pool_whose_queue_of_submissions_is_full() {
    let supervisor = Supervisor::new();
    let (tuning, (messages, received)) = (tuning(), bounded(64));
    let (submit, submissions) = bounded(4);
    let events: Vec<mpsc::Receiver<Event>> = (1..=4)
        .map(|id| {
            let (client, events) = mpsc::channel(4);
            submit.send(submission(id, client)).unwrap();
            events
        })
        .collect();
    let tuned = tuning.subscribe();
    assert!(submit.try_send(PoolMessage::Wake).is_err(), "nothing can be told this way");
    let now = Tuning {
        watermarks: Watermarks { high: 1, low: 0 },
        ram_bytes: 1 << 20,
        cache_bytes: 1 << 20,
        session_ttl: PATIENCE,
    };
    tuning.send_replace(now);
    let _report = tuned_pool_thread(&supervisor, Some(Mailbox::new(Box::new(messages))), submissions, tuned);
    let limits = now.cache_limits();
    let told = |message: &WorkerMessage| matches!(message, WorkerMessage::Command(command) if *command == limits);
    while !told(&received.recv_timeout(PATIENCE).unwrap()) {}
    // All sequences are taken and one waits, which is the bound now.
    let (client, _last) = mpsc::channel(4);
    submit.send(submission(5, client)).unwrap();
    let (reply, snapshot) = tokio::sync::oneshot::channel();
    submit.send(PoolMessage::Snapshot(reply)).unwrap();
    let snapshot = snapshot.blocking_recv().unwrap();
    assert_eq!((snapshot.running, snapshot.waiting, snapshot.accepting), (4, 1, false));
    drop(events);
    assert!(supervisor.end(PATIENCE));
}

#[test]
fn regression_no_client_reads_that_its_deadline_passed_after_it_has_read_a_token() {
    let mut pool = StillPool::new();
    let (client, mut events) = mpsc::channel(4);
    let mut streams = Delivery::new(Duration::ZERO, PATIENCE);
    streams.insert(RequestId(1), pool.start(1, client));
    // The worker's report of it is still on its way.
    let token = Event::Delta { id: RequestId(1), delta: Delta { text: "a".into(), tokens: 1, logprobs: Vec::new() } };
    streams.send(token.clone(), Instant::now());
    pool.pass_deadlines();
    assert_eq!(events.try_recv(), Ok(token));
    assert!(events.try_recv().is_err(), "the deadline was kept");
    assert!(pool.received.try_recv().is_err(), "and it goes on");
}

#[test]
fn regression_the_first_token_of_one_choice_keeps_the_deadline_of_all() {
    let mut pool = StillPool::new();
    let (one, mut events_of_one) = mpsc::channel(4);
    let (other, mut events_of_other) = mpsc::channel(4);
    let first_reply = FirstReply::default();
    let mut submit = |id, client| {
        let PoolMessage::Submit(mut submission) = submission(id, client) else { panic!("a submission") };
        submission.shared.first_reply = first_reply.clone();
        pool.thread.take(PoolMessage::Submit(submission));
    };
    submit(1, one);
    submit(2, other);
    pool.thread.schedule();
    let Ok(WorkerMessage::Start { stream, .. }) = pool.received.try_recv() else { panic!("one choice begins") };
    let mut streams = Delivery::new(Duration::ZERO, PATIENCE);
    streams.insert(RequestId(1), stream);
    let delta = Delta { text: "a".into(), tokens: 1, logprobs: Vec::new() };
    streams.send(Event::Delta { id: RequestId(1), delta }, Instant::now());
    pool.pass_deadlines();
    assert!(matches!(events_of_one.try_recv(), Ok(Event::Delta { .. })));
    assert!(events_of_one.try_recv().is_err() && events_of_other.try_recv().is_err(), "no choice has failed");
}

#[test]
fn regression_a_client_whose_deadline_has_passed_reads_nothing_after_that() {
    let mut pool = StillPool::new();
    let (client, mut events) = mpsc::channel(4);
    let mut streams = Delivery::new(Duration::ZERO, PATIENCE);
    streams.insert(RequestId(1), pool.start(1, client));
    pool.pass_deadlines();
    let delta = Delta { text: "a".into(), tokens: 1, logprobs: Vec::new() };
    streams.send(Event::Delta { id: RequestId(1), delta }, Instant::now());
    let (reason, usage) = (FinishReason::Length, Default::default());
    streams.send(Event::Finished { id: RequestId(1), reason, usage }, Instant::now());
    assert_eq!(events.try_recv(), Ok(Event::Failed { id: RequestId(1), error: WorkerError::DeadlineExceeded }));
    assert_eq!(events.try_recv(), Err(mpsc::error::TryRecvError::Disconnected), "the stream is over");
    let told = pool.received.try_recv();
    assert!(matches!(told, Ok(WorkerMessage::Command(Command::Cancel { id: RequestId(1) }))), "{told:?}");
}

#[test]
fn regression_a_last_event_waits_for_a_client_that_does_not_read_but_not_for_ever() {
    for (patience, waits) in [(PATIENCE, true), (Duration::ZERO, false)] {
        let mut pool = StillPool::new();
        pool.thread.clients = Clients::new(patience);
        let (client, mut events) = mpsc::channel(1);
        drop(pool.start(1, client.clone()));
        client.try_send(Event::Queued { id: RequestId(1), position: 1 }).unwrap();
        drop(client);
        pool.thread.clients.fail(RequestId(1), WorkerError::WorkerLost);
        pool.thread.flush();
        assert_eq!(pool.thread.clients.farewells(), usize::from(waits));
        assert!(matches!(events.try_recv(), Ok(Event::Queued { .. })));
        pool.thread.flush();
        let lost = Event::Failed { id: RequestId(1), error: WorkerError::WorkerLost };
        assert_eq!(events.try_recv().ok(), waits.then_some(lost));
        assert_eq!(pool.thread.clients.farewells(), 0);
    }
}

#[test]
fn bounds_that_change_reach_the_pool_and_workers_also_those_that_come_up_later() {
    let supervisor = Supervisor::new();
    let (tuning, (_submit, submissions), (report, reports)) = (tuning(), bounded(8), bounded(8));
    let bounds = watch::Sender::new(ModelBounds::of(&ModelConfig::default()));
    let setup = PoolSetup { bounds: bounds.subscribe(), ..setup(None, submissions, reports, tuning.subscribe()) };
    spawn(&supervisor, setup, "fake").unwrap();
    let up = || {
        let (messages, received) = bounded(8);
        report.send(WorkerReport::Up(ID, Handle { limits: LIMITS, messages: Box::new(messages) })).unwrap();
        received
    };
    let first = up();
    bounds.send_replace(ModelBounds::of(&ModelConfig {
        max_sequences: Some(3),
        max_step_tokens: Some(9),
        ..ModelConfig::default()
    }));
    let is_told = |received: &Receiver<WorkerMessage>| match received.recv_timeout(PATIENCE).unwrap() {
        WorkerMessage::Command(Command::Bounds(bounds)) => (bounds.sequences, bounds.step_tokens),
        other => panic!("{other:?}"),
    };
    assert_eq!(is_told(&first), (Some(3), Some(9)));
    report.send(WorkerReport::Down(ID)).unwrap();
    assert_eq!(is_told(&up()), (Some(3), Some(9)));
    assert!(supervisor.end(PATIENCE));
}
