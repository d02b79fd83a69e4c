//! Orders and what the file says, with models that compute nothing.
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use camshaft_api::{AdminAccess, ApiOptions, Control, LocalQuotas, OperationState, Readiness, Reloaded};
use camshaft_core::promised::Promised;
use camshaft_policy::PolicyHost;
use http::Request;
use http_body_util::BodyExt;
use prometheus::Registry;
use serde_json::json;
use tower::ServiceExt;

use super::*;
use crate::cache_plan::CachePlan;
use crate::config::{Config, Overrides};
use crate::cores::Cores;
use crate::devices::Devices;
use crate::engines;
use crate::logging::LogHandle;
use crate::metrics::ServerMetrics;
use crate::sizing::{self, Room};
use crate::supervisor::Supervisor;
use crate::thread_budget::ThreadBudget;
use crate::{policies, reload};

const MEMORY: u64 = 1 << 33;
/// Looks until something has happened that always does.
const LOOKS: usize = 6000;
/// Operations that may run at once, as docs/limits.md has it.
const MOST_RUNNING: usize = 16;

#[derive(Debug)]
struct NoControl;

impl Control for NoControl {
    fn reload(&self) -> Reloaded {
        Reloaded::default()
    }

    fn config(&self) -> Value {
        Value::Null
    }
}

/// A server whose models compute nothing.
struct Bench {
    life: Arc<ModelLife>,
    api: Arc<Api>,
    /// Threads of operations that were started.
    begun: Arc<AtomicUsize>,
    /// None is started any more.
    no_threads: Arc<AtomicBool>,
    supervisor: Arc<Supervisor>,
    policies: Arc<PolicyHost>,
    _tuning: watch::Sender<Tuning>,
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.supervisor.end(Duration::from_secs(60));
        self.policies.stop();
    }
}

/// The models of a configuration file.
fn models(file: &str) -> Vec<ModelConfig> {
    let overrides = Overrides { set: vec![format!("model=[{file}]")], ..Overrides::default() };
    Config::load(None, std::iter::empty(), &overrides).unwrap().live.model
}

fn settings(settings: Value) -> Map<String, Value> {
    let Value::Object(settings) = settings else { panic!("no object") };
    settings
}

/// Looks until `look` finds what it looks for.
fn eventually<T>(mut look: impl FnMut() -> Result<T, String>) -> T {
    let mut last = String::new();
    for _ in 0..LOOKS {
        match look() {
            Ok(found) => return found,
            Err(why) => last = why,
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it never happens: {last}");
}

/// For those who listen to workers.
fn runtime() -> tokio::runtime::Handle {
    static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| tokio::runtime::Runtime::new().unwrap()).handle().clone()
}

impl Bench {
    /// With the models of `file`, all in memory.
    fn new(file: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let set = vec!["policy.allow-empty=true".to_owned(), "model=[]".to_owned()];
        let overrides = Overrides { policy_dir: Some(dir.path().to_owned()), set, ..Overrides::default() };
        let config = Config::load(None, std::iter::empty(), &overrides).unwrap();
        let (registry, supervisor) = (Registry::new(), Arc::new(Supervisor::new()));
        let policies = policies::start(&config, &registry).unwrap();
        let (machine, devices) = (Machine { memory: MEMORY, cores: 2 }, Devices::default());
        let sized = sizing::size(&Room::at_start(&config, machine, &devices), &devices, Vec::new());
        let (tuning, tuned) = watch::channel(Tuning::of(&config.live, sized.share()));
        let starter = Starter {
            runtime: runtime(),
            cores: Cores::default(),
            promised: Arc::new(Mutex::new(Promised::of(&sized.budget))),
            tuned,
            cache: CachePlan::of(&config, sized.share()),
            policies: policies.clone(),
            metrics: ServerMetrics::new(&registry).unwrap(),
            supervisor: supervisor.clone(),
            budget: ThreadBudget::new(2),
            slow_reader: Duration::from_secs(60),
            frame_interval: Duration::ZERO,
            log: LogHandle::silent(),
            fakes: Arc::new(engines::fake_parts),
        };
        let (begun, no_threads) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (counted, ended) = (begun.clone(), no_threads.clone());
        let detached = Spawner::detached();
        let spawner = Spawner::new(move |name, body| {
            if ended.load(Ordering::SeqCst) {
                return Err(std::io::Error::other("no more threads"));
            }
            counted.fetch_add(1, Ordering::SeqCst);
            detached.spawn(name, body)
        });
        let life = ModelLife::new(LifeSetup {
            starter,
            engines: Engines::Fake,
            machine,
            process: sized.budget.process,
            share: Mutex::new(sized.share()),
            tuning: tuning.clone(),
            spawner,
            cache: config.fixed.models.clone(),
        });
        let api = Api::new(ApiOptions {
            models: Vec::new(),
            life: life.clone(),
            policies: policies.clone(),
            registry,
            limits: reload::limits(&config.live, machine),
            readiness: Arc::new(Readiness::new()),
            quotas: Arc::new(LocalQuotas::default()),
            control: Arc::new(NoControl),
            vllm_aliases: false,
            operators: Vec::new(),
            kernels: "built-in".to_owned(),
        });
        let api = api.unwrap();
        life.bind(&api);
        let bench = Self { life, api, begun, no_threads, supervisor, policies, _tuning: tuning };
        if !file.is_empty() {
            let models = models(file);
            bench.life.follow(&[], &models);
            models.iter().for_each(|model| bench.becomes(&model.id, "ready"));
        }
        bench
    }

    /// What `GET /admin/models/{id}` answers; `null` for a model that is not there.
    fn model(&self, id: &str) -> Value {
        let router = camshaft_api::admin_router(self.api.clone(), Arc::new(AdminAccess::new(None)));
        let request = Request::get(format!("/admin/models/{id}")).header("host", "localhost");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let response = router.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
            let found = response.status().is_success();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            if found { serde_json::from_slice(&body).unwrap() } else { Value::Null }
        })
    }

    /// Waits until a model is in this state, and nothing changes it.
    fn becomes(&self, id: &str, state: &str) {
        eventually(|| {
            let model = self.model(id);
            let rests = model["operation"].is_null() && model["state"] == state;
            if rests { Ok(()) } else { Err(format!("{id} must become {state}: {model}")) }
        });
    }

    fn last_error(&self, id: &str) -> String {
        self.model(id)["last_error"].as_str().unwrap_or_default().to_owned()
    }

    fn running(&self) -> usize {
        self.life.operations().iter().filter(|operation| !operation.is_over()).count()
    }

    /// Has as many operations run that do nothing. Returns their ids.
    fn fill(&self, count: usize) -> Vec<String> {
        let mut state = self.life.state();
        (0..count).map(|_| state.operations.begin(Change::Load, "filler").id).collect()
    }
}

#[test]
fn regression_a_load_that_is_refused_because_too_much_is_done_leaves_nothing_behind() {
    let bench = Bench::new("");
    bench.fill(MOST_RUNNING - 1);
    for round in 0..40 {
        let (turn, barrier) = (bench.life.turn.lock().unwrap(), Barrier::new(4));
        let ids: Vec<String> = (0..4).map(|number| format!("m{round}-{number}")).collect();
        std::thread::scope(|scope| {
            for id in &ids {
                let (life, barrier) = (&bench.life, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    let begun = life.load(settings(json!({"id": id, "kind": "embed"})));
                    let is_known = life.residence(id).is_some();
                    assert_eq!(begun.is_ok(), is_known, "{id}: {begun:?}");
                });
            }
        });
        let begun: Vec<&String> = ids.iter().filter(|id| bench.life.residence(id).is_some()).collect();
        assert_eq!((begun.len(), bench.running()), (1, MOST_RUNNING));
        drop(turn);
        bench.becomes(begun[0], "ready");
        bench.life.unload(begun[0]).unwrap();
        eventually(|| if bench.running() < MOST_RUNNING { Ok(()) } else { Err("it unloads".to_owned()) });
    }
}

#[test]
fn regression_a_load_for_which_there_is_no_thread_is_told_and_can_be_tried_again() {
    let bench = Bench::new("");
    bench.no_threads.store(true, Ordering::SeqCst);
    let order = || bench.life.load(settings(json!({"id": "ordered", "kind": "embed"})));
    assert_eq!(order(), Err(ModelRefusal::Ending));
    assert_eq!(bench.model("ordered"), Value::Null, "nothing is left of it");
    let file = models(r#"{id="named", kind="embed"}"#);
    bench.life.follow(&[], &file);
    let named = bench.model("named");
    assert_eq!((&named["state"], &named["operation"]), (&json!("failed"), &Value::Null), "{named}");
    assert!(bench.last_error("named").contains("no more threads"), "{named}");
    bench.no_threads.store(false, Ordering::SeqCst);
    order().unwrap();
    bench.life.follow(&file, &file);
    bench.becomes("ordered", "ready");
    bench.becomes("named", "ready");
}

#[test]
fn regression_a_model_that_is_put_back_while_its_last_requests_run_comes_again() {
    let file = r#"{id="m", kind="embed"}"#;
    let bench = Bench::new(file);
    let file = models(file);
    // As a request that has begun.
    let request = bench.api.model("m");
    assert!(request.is_some());
    bench.life.follow(&file, &[]);
    eventually(|| if bench.model("m").is_null() { Ok(()) } else { Err("it is served still".to_owned()) });
    assert_eq!(bench.running(), 1, "it waits for the request");
    bench.life.follow(&[], &file);
    drop(request);
    bench.becomes("m", "ready");
    let done: Vec<_> = bench.life.operations().into_iter().map(|one| (one.change, one.state)).collect();
    let [again, gone, first] = [Change::Load, Change::Unload, Change::Load].map(|one| (one, OperationState::Done));
    assert_eq!(done, [again, gone, first]);
    // Without the file, it stays away.
    let request = bench.api.model("m");
    bench.life.follow(&file, &[]);
    drop(request);
    eventually(|| if bench.life.residence("m").is_none() { Ok(()) } else { Err("it is known".to_owned()) });
    assert!(bench.model("m").is_null());
}

#[test]
fn regression_what_the_file_says_and_cannot_be_done_is_told_and_tried_at_the_next_reading() {
    let bench = Bench::new(r#"{id="m", kind="embed"}, {id="n", kind="embed"}"#);
    let before = models(r#"{id="m", kind="embed"}, {id="n", kind="embed"}"#);
    // Without a swap: of what generates alone.
    let bounded = models(r#"{id="m", kind="embed", max-tenant-sequences=3}, {id="n", kind="embed"}"#);
    bench.life.follow(&before, &bounded);
    assert!(bench.last_error("m").contains("max-tenant-sequences"), "{}", bench.model("m"));
    bench.life.follow(&bounded, &before);
    assert_eq!(bench.last_error("m"), "", "what the file says is so again");
    // With a swap, for which there is no room at first.
    let scratch = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    scratch.as_file().set_len(2 * MEMORY).unwrap();
    let large = models(&format!(r#"{{id="m", kind="embed", path={:?}}}, {{id="n", kind="embed"}}"#, scratch.path()));
    bench.life.follow(&before, &large);
    bench.becomes("m", "ready");
    assert!(bench.last_error("m").contains("for its weights alone"), "{}", bench.model("m"));
    let begun = bench.begun.load(Ordering::SeqCst);
    scratch.as_file().set_len(1).unwrap();
    bench.life.follow(&large, &large);
    bench.becomes("m", "ready");
    let now = bench.model("m");
    assert_eq!((&now["swaps"], &now["last_error"]), (&json!(1), &Value::Null), "{now}");
    bench.life.follow(&large, &large);
    assert_eq!(bench.begun.load(Ordering::SeqCst), begun + 1, "once it is done it is not done again");
}

#[test]
fn what_an_operator_could_not_do_is_not_done_by_the_file() {
    let bench = Bench::new(r#"{id="m", kind="embed"}"#);
    let file = models(r#"{id="m", kind="embed"}"#);
    bench.life.swap("m", settings(json!({"workers": 2}))).unwrap();
    bench.becomes("m", "ready");
    let scratch = tempfile::NamedTempFile::with_suffix(".gguf").unwrap();
    scratch.as_file().set_len(2 * MEMORY).unwrap();
    bench.life.swap("m", settings(json!({"path": scratch.path()}))).unwrap();
    bench.becomes("m", "ready");
    assert!(bench.last_error("m").contains("for its weights alone"));
    bench.life.follow(&file, &file);
    bench.becomes("m", "ready");
    let now = bench.model("m");
    assert_eq!((&now["swaps"], &now["settings"]["workers"]), (&json!(1), &json!(2)), "{now}");
}

#[test]
fn regression_a_file_with_many_models_has_no_more_operations_run_than_may() {
    let bench = Bench::new(r#"{id="old", kind="embed"}"#);
    let old = models(r#"{id="old", kind="embed"}"#);
    let many: Vec<String> = (10..10 + 24).map(|number| format!(r#"{{id="m{number}", kind="embed"}}"#)).collect();
    let many = models(&many.join(", "));
    let begun = bench.begun.load(Ordering::SeqCst);
    let turn = bench.life.turn.lock().unwrap();
    bench.life.follow(&old, &many);
    eventually(|| if bench.model("old").is_null() { Ok(()) } else { Err("what is gone goes first".to_owned()) });
    // And the one that is gone.
    eventually(|| match bench.begun.load(Ordering::SeqCst) - begun {
        begun if begun == MOST_RUNNING + 1 => Ok(()),
        begun => Err(format!("{begun} begun")),
    });
    assert_eq!(bench.running(), MOST_RUNNING);
    for model in &many {
        assert_eq!(bench.model(&model.id)["state"], "loading", "also those that wait");
    }
    let refused = bench.life.load(settings(json!({"id": "more", "kind": "embed"})));
    assert_eq!(refused, Err(ModelRefusal::TooMany { running: MOST_RUNNING, max: MOST_RUNNING }));
    // The file leaves some of those that wait out again.
    assert_eq!(bench.model("m33")["operation"], Value::Null);
    let (kept, dropped) = many.split_at(22);
    bench.life.follow(&many, kept);
    drop(turn);
    kept.iter().for_each(|model| bench.becomes(&model.id, "ready"));
    for model in dropped {
        eventually(|| match bench.life.residence(&model.id) {
            None => Ok(()),
            Some(residence) => Err(format!("{} is there: {residence:?}", model.id)),
        });
    }
    assert_eq!(bench.running(), 0);
}

#[test]
fn regression_a_tensor_model_that_is_being_read_is_promised_its_file() {
    let bench = Bench::new("");
    let file = tempfile::NamedTempFile::with_suffix(".onnx").unwrap();
    let bytes = 2 << 30;
    file.as_file().set_len(bytes).unwrap();
    let promised = || bench.life.promised().beside(usize::MAX);
    let others = MEMORY - promised() - bytes - (1 << 30);
    bench.life.promised().take(others).unwrap();
    let before = promised();
    let turn = bench.life.turn.lock().unwrap();
    let order = |id: &str| bench.life.load(settings(json!({"id": id, "path": file.path()}))).unwrap().id;
    order("first");
    eventually(|| if promised() == before + bytes { Ok(()) } else { Err(format!("{}", promised() - before)) });
    // The other one would have no room beside it, and need not be read.
    let second = order("second");
    let error = eventually(|| bench.life.operation(&second).unwrap().error.ok_or("it has not failed".to_owned()));
    assert_eq!(error, "needs 2048.0 MiB for its weights alone, 1024.0 MiB free");
    drop(turn);
    bench.becomes("first", "ready");
    assert!(promised() < before + bytes, "what it takes is known by then");
}

#[test]
fn regression_room_is_made_however_much_is_done_at_once() {
    let bench = Bench::new(r#"{id="old", kind="embed", keep-alive="1h"}"#);
    let file = tempfile::NamedTempFile::with_suffix(".onnx").unwrap();
    file.as_file().set_len(2 << 30).unwrap();
    {
        let mut state = bench.life.state();
        let old = state.resident("old").unwrap();
        let number = old.held.as_ref().unwrap().number;
        old.came = old.came.checked_sub(Duration::from_secs(60)).unwrap();
        let mut promised = bench.life.promised();
        let left = MEMORY - promised.beside(number);
        promised.promise(number, left);
    }
    bench.fill(MOST_RUNNING - 1);
    bench.life.load(settings(json!({"id": "new", "path": file.path()}))).unwrap();
    bench.becomes("new", "ready");
    assert_eq!(bench.model("old")["state"], "asleep");
    assert_eq!(bench.running(), MOST_RUNNING - 1);
}

#[test]
fn a_model_that_is_unloaded_while_it_is_loaded_is_stopped_and_gone() {
    let bench = Bench::new("");
    let load = |path: &str| bench.life.load(settings(json!({"id": "m", "kind": "embed", "path": path}))).unwrap().id;
    let file = models(r#"{id="m", kind="embed", load="on-demand"}"#);
    for number in 0..4 {
        let turn = bench.life.turn.lock().unwrap();
        // By an order and by a request, a model that is read in its turn and one that is read apart.
        let loading = if number < 2 {
            load(["/m.gguf", "/m.onnx"][number])
        } else {
            bench.life.follow(&[], &file);
            drop(bench.life.wake("m").unwrap());
            bench.life.operations()[0].id.clone()
        };
        if number == 3 {
            bench.life.follow(&file, &[]);
        } else {
            // Whoever asks twice gets the same answer.
            for _ in 0..2 {
                assert_eq!(bench.life.unload("m").unwrap().id, loading);
            }
        }
        drop(turn);
        eventually(|| if bench.running() == 0 { Ok(()) } else { Err("it is loaded".to_owned()) });
        let ended = bench.life.operation(&loading).unwrap();
        assert!(ended.error.is_some_and(|why| why.contains("unloaded before it was in memory")), "{number}");
        assert!(bench.life.residence("m").is_none() && bench.model("m").is_null(), "{number}");
        assert_eq!(bench.life.operations()[0].id, loading, "nothing was left to unload");
    }
    load("/m.gguf");
    bench.becomes("m", "ready");
    assert_eq!(bench.life.unload("m").unwrap().change, Change::Unload);
}

#[test]
fn regression_of_two_weights_that_are_set_at_once_the_one_that_is_kept_is_in_force() {
    let bench = Bench::new(r#"{id="m", kind="embed"}"#);
    let barrier = Barrier::new(2);
    std::thread::scope(|scope| {
        let (bench, barrier) = (&bench, &barrier);
        let set = |weight: f64| {
            scope.spawn(move || {
                for round in 0..200 {
                    barrier.wait();
                    bench.life.set_weight("m", weight + f64::from(round)).unwrap();
                    barrier.wait();
                    let model = bench.model("m");
                    assert_eq!(model["weight"], model["settings"]["weight"], "{model}");
                }
            })
        };
        let both = [set(2.0), set(2.5)];
        both.into_iter().for_each(|thread| thread.join().unwrap());
    });
}
