//! From the engine of a worker that panics to what `/readyz` answers: the way through supervisor, gauges and readiness as
//! the server makes it.
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use camshaft_api::{Api, ApiOptions, Control, FixedModels, LocalQuotas, Readiness, Reloaded};
use camshaft_core::cache::PrefixCache;
use camshaft_core::engine::EngineLimits;
use camshaft_core::fake::FakeEngine;
use camshaft_core::segments::{ColdTier, SegmentId, SegmentInfo, State};
use camshaft_core::sizes::Machine;
use http::{Request, StatusCode};
use http_body_util::BodyExt;
use prometheus::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tower::ServiceExt;

use super::*;
use crate::config::{Config, Overrides};
use crate::devices::Devices;
use crate::policies;
use crate::progress::ProgressSink;
use crate::reload;
use crate::sizing;
use crate::tuning::Tuning;
use crate::weights::Engines;

/// Engines that are made from now on work, panic at their first decode, or cannot be made.
const WORKS: u8 = 0;
const PANICS: u8 = 1;
const IS_MISSING: u8 = 2;
/// Only that of the first worker panics.
const FIRST_PANICS: u8 = 3;
/// Looks until something has happened that always does.
const LOOKS: usize = 6000;

#[derive(Debug)]
struct NoControl;

impl Control for NoControl {
    fn reload(&self) -> Reloaded {
        Reloaded::default()
    }

    fn config(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

/// A model whose engines are as the test says.
struct Bench {
    router: Router,
    engines: Arc<AtomicU8>,
    supervisor: Arc<Supervisor>,
    policies: Arc<PolicyHost>,
    registry: Registry,
    _tuning: watch::Sender<Tuning>,
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.supervisor.end(Duration::from_secs(60));
        self.policies.stop();
    }
}

impl Bench {
    fn new(engines: u8) -> Self {
        Self::with(engines, 1)
    }

    fn with(engines: u8, workers: u32) -> Self {
        Self::caching(engines, workers, |_| PrefixCache::new(0))
    }

    /// `cache`: that of a worker, by what its engine does.
    fn caching(engines: u8, workers: u32, cache: impl Fn(u8) -> PrefixCache + Send + Sync + 'static) -> Self {
        let set = vec!["policy.allow-empty=true".to_owned(), format!("model=[{{id=\"m\", workers={workers}}}]")];
        let dir = tempfile::tempdir().unwrap();
        let overrides = Overrides { policy_dir: Some(dir.path().to_owned()), set, ..Overrides::default() };
        let config = Config::load(None, std::iter::empty(), &overrides).unwrap();
        let (registry, supervisor) = (Registry::new(), Arc::new(Supervisor::new()));
        let policies = policies::start(&config, &registry).unwrap();
        let loaded = config
            .live
            .model
            .iter()
            .map(|model| Engines::Fake.load(model, &LogHandle::silent(), &ProgressSink::default()).unwrap())
            .collect();
        let devices = Devices::default();
        let room = sizing::Room::at_start(&config, Machine { memory: 1 << 33, cores: 2 }, &devices);
        let sized = sizing::size(&room, &devices, loaded);
        let (tuning, tuned) = watch::channel(Tuning::of(&config.live, sized.share()));
        let (metrics, readiness) = (ServerMetrics::new(&registry).unwrap(), Arc::new(Readiness::new()));
        let engines = Arc::new(AtomicU8::new(engines));
        let fakes: Fakes = {
            let engines = engines.clone();
            Arc::new(move |limits: EngineLimits, id: WorkerId, _| {
                let engines = engines.load(Ordering::SeqCst);
                if engines == IS_MISSING {
                    return Err(ServerError::internal("make an engine", anyhow::anyhow!("as the test asked")));
                }
                let mut engine = FakeEngine::new(limits, u64::from(id.0));
                engine.panics = engines == PANICS || (engines == FIRST_PANICS && id == WorkerId(0));
                Ok((engine, cache(engines)))
            })
        };
        let starter = Starter {
            runtime: tokio::runtime::Handle::current(),
            cores: Cores::default(),
            promised: Arc::new(Mutex::new(Promised::of(&sized.budget))),
            tuned,
            cache: CachePlan::of(&config, sized.share()),
            policies: policies.clone(),
            metrics,
            supervisor: supervisor.clone(),
            budget: ThreadBudget::new(2),
            slow_reader: Duration::from_secs(60),
            frame_interval: Duration::ZERO,
            log: LogHandle::silent(),
            fakes,
        };
        let model = starter.start(0, &sized.weights[0], ProgressSink::default()).unwrap().model;
        let api = Api::new(ApiOptions {
            models: vec![model],
            life: Arc::new(FixedModels),
            policies: policies.clone(),
            registry: registry.clone(),
            limits: reload::limits(&config.live, sized.budget.machine),
            readiness: readiness.clone(),
            quotas: Arc::new(LocalQuotas::default()),
            control: Arc::new(NoControl),
            vllm_aliases: false,
            operators: Vec::new(),
            kernels: "built-in".to_owned(),
        });
        let router = camshaft_api::public_router(api.unwrap(), camshaft_api::PublicAccess::default());
        readiness.set_ready();
        Self { router, engines, supervisor, policies, registry, _tuning: tuning }
    }

    async fn ask(&self, method: &str, path: &str, body: &str) -> (StatusCode, String) {
        let request = Request::builder().method(method).uri(path).header("host", "localhost");
        let request = request.header("content-type", "application/json");
        let request = request.extension(ConnectInfo(SocketAddr::from(([127, 0, 0, 1], 9))));
        let response = self.router.clone().oneshot(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap();
        let (parts, body) = response.into_parts();
        let text = body.collect().await.unwrap().to_bytes();
        (parts.status, String::from_utf8_lossy(&text).into_owned())
    }

    async fn ready(&self) -> (StatusCode, String) {
        self.ask("GET", "/readyz", "").await
    }

    /// The status of a generation.
    async fn generate(&self) -> StatusCode {
        self.ask("POST", "/v1/completions", r#"{"model": "m", "prompt": "a", "max_tokens": 2}"#).await.0
    }

    /// A figure of the first worker.
    fn figure(&self, name: &str) -> f64 {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == name).expect("it is exported");
        let metric = &family.get_metric()[0];
        metric.get_gauge().get_value() + metric.get_counter().get_value()
    }

    /// Waits until `/readyz` answers so, and returns its words.
    async fn becomes(&self, status: StatusCode) -> String {
        for _ in 0..LOOKS {
            let (now, text) = self.ready().await;
            if now == status {
                return text;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("/readyz never answers {status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn regression_a_worker_that_does_not_come_back_makes_the_server_unready_until_it_does() {
    let bench = Bench::new(PANICS);
    assert_eq!(bench.ready().await.0, StatusCode::OK);
    bench.engines.store(IS_MISSING, Ordering::SeqCst);
    assert!(bench.generate().await.is_server_error(), "its worker panicked");
    let (status, text) = bench.ready().await;
    assert!(status == StatusCode::SERVICE_UNAVAILABLE && text.contains("the model m"), "{status} {text}");
    assert_eq!(bench.generate().await, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!((bench.figure("camshaft_worker_up"), bench.figure("camshaft_worker_restarts_total")), (0.0, 0.0));
    bench.engines.store(WORKS, Ordering::SeqCst);
    bench.becomes(StatusCode::OK).await;
    assert_eq!(bench.generate().await, StatusCode::OK);
    assert_eq!((bench.figure("camshaft_worker_up"), bench.figure("camshaft_worker_restarts_total")), (1.0, 1.0));
}

/// A tier that is closed when the test says: by dropping the sender.
struct Stalled(Receiver<Infallible>);

impl ColdTier for Stalled {
    fn put(&mut self, _: SegmentId, _: &SegmentInfo, _: &State) {}
    fn get(&mut self, _: SegmentId) -> Option<State> {
        None
    }
    fn remove(&mut self, _: SegmentId) {}
    fn lost(&mut self, _: &mut Vec<SegmentId>) {}
}

impl Drop for Stalled {
    fn drop(&mut self) {
        assert!(self.0.recv().is_err());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn regression_a_panicked_worker_is_down_before_its_disk_tier_is_closed() {
    let (release, stalled) = crossbeam_channel::bounded(0);
    let bench = Bench::caching(PANICS, 1, move |engines| match engines {
        PANICS => PrefixCache::new(0).with_cold(Box::new(Stalled(stalled.clone())), Vec::new()),
        _ => PrefixCache::new(0),
    });
    bench.engines.store(WORKS, Ordering::SeqCst);
    assert!(bench.generate().await.is_server_error(), "its client does not wait for the disk");
    assert_eq!(bench.generate().await, StatusCode::SERVICE_UNAVAILABLE, "nor does who comes later");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(bench.figure("camshaft_worker_up"), 0.0, "the directory is still in use");
    drop(release);
    bench.becomes(StatusCode::OK).await;
    assert_eq!(bench.generate().await, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_of_a_lost_worker_reads_over_its_connection_that_it_was_lost_and_when_to_come_again() {
    let bench = Bench::new(PANICS);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = bench.router.clone().into_make_service_with_connect_info::<SocketAddr>();
    let serving = tokio::spawn(async move { axum::serve(listener, service).await });
    let body = r#"{"model": "m", "prompt": "a", "max_tokens": 2}"#;
    let head = format!("content-type: application/json\r\ncontent-length: {}\r\nconnection: close", body.len());
    let request = format!("POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n{head}\r\n\r\n{body}");
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    serving.abort();
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("\r\nretry-after: "), "{answer}");
    assert!(answer.contains(r#""code":"worker_lost""#) && answer.contains(r#""type":"server_error""#), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn regression_a_worker_that_panics_again_and_again_is_up_and_the_server_is_not_ready() {
    let bench = Bench::new(PANICS);
    let mut unready_while_up = false;
    // Each restart is on trial for twice as long as the one before, so that a slow machine sees one of them.
    for round in 1..=6 {
        assert!(bench.generate().await.is_server_error(), "round {round}");
        for _ in 0..LOOKS {
            if bench.figure("camshaft_worker_restarts_total") >= f64::from(round) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(bench.figure("camshaft_worker_up"), 1.0, "round {round}: it is back");
        let (status, text) = bench.ready().await;
        if status == StatusCode::SERVICE_UNAVAILABLE && bench.figure("camshaft_worker_up") == 1.0 {
            assert!(text.contains("the model m"), "{text}");
            unready_while_up = true;
            break;
        }
    }
    assert!(unready_while_up);
    bench.engines.store(WORKS, Ordering::SeqCst);
    assert!(bench.generate().await.is_server_error(), "the last one that panics");
    bench.becomes(StatusCode::OK).await;
    assert_eq!(bench.generate().await, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn work_goes_to_the_other_worker_at_once_where_one_is_lost_and_to_both_when_it_is_back() {
    let bench = Bench::with(FIRST_PANICS, 2);
    bench.engines.store(IS_MISSING, Ordering::SeqCst);
    // The first of two idle workers.
    assert_eq!(bench.generate().await, StatusCode::SERVICE_UNAVAILABLE, "what it had is lost");
    for _ in 0..50 {
        assert_eq!(bench.generate().await, StatusCode::OK, "and nothing else, though it does not come back");
    }
    let together = futures_util::future::join_all((0..32).map(|_| bench.generate())).await;
    assert_eq!(together, [StatusCode::OK; 32]);
    assert_eq!(bench.ready().await.0, StatusCode::OK, "one worker is up");
    assert_eq!(bench.figure("camshaft_worker_up"), 0.0);
    bench.engines.store(WORKS, Ordering::SeqCst);
    for _ in 0..LOOKS {
        if bench.figure("camshaft_worker_up") > 0.0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(bench.figure("camshaft_worker_restarts_total"), 1.0);
    assert_eq!(bench.generate().await, StatusCode::OK);
}
