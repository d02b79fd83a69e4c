//! What the policies of a request cost before its first token: auth, validator, a sampler's start, a scheduling point.
#![allow(clippy::print_stdout)]
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use camshaft_core::answering::wait;
use camshaft_core::ids::{RequestId, TenantId, Token, WorkerId};
use camshaft_core::policy::{
    Action, Arrival, AuthOutcome, AuthRequest, EmptyBooks, Ending, Endpoint, Policies, Priority, SamplerHook,
    SamplingRequest, SchedulerEvent, SchedulingPoint, ValidateOutcome, ValidateRequest, WorkerFacts,
};
use camshaft_core::sampling::SamplingParams;
use camshaft_core::vocabulary::Vocabulary;
use camshaft_policy::{PolicyConfig, PolicyHost};
use sha2::{Digest, Sha256};

const CALLS: usize = 2000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let target = std::env::var("CAMSHAFT_TARGET").unwrap_or_else(|_| "target".to_owned());
    let dir = tempfile::tempdir()?;
    for (hook, plugin) in
        [("auth", "auth-api-keys"), ("validator", "validator-limits"), ("sampler", "sampler-standard")]
    {
        let component = format!("{target}/plugins/{plugin}.wasm");
        std::fs::create_dir(dir.path().join(hook))?;
        std::fs::copy(&component, dir.path().join(hook).join("10-x.wasm")).map_err(|e| format!("{component}: {e}"))?;
    }
    std::fs::write(dir.path().join("auth/10-x.toml"), "[settings]\nanonymous-loopback = true")?;
    let host = start(dir.path())?;
    let set = host.current();
    let (head, body, sampling) = (Arc::new(auth_request()), Arc::new(validate_request()), sampling_request());
    println!("| call | median, us |\n|---|---|");
    println!("| auth-api-keys, from loopback without a key | {:.1} |", median(|| drop(wait(set.authenticate(&head)))));
    for keys in [10, 100, 1000, 1024] {
        let host = with_keys(&target, keys)?;
        let (set, right, wrong) = (host.current(), with_key("key-7"), with_key("no such key"));
        let allowed = matches!(wait(set.authenticate(&right)).outcome, AuthOutcome::Allow(_));
        let refused = matches!(wait(set.authenticate(&wrong)).outcome, AuthOutcome::Refuse(_));
        if !(allowed && refused) {
            return Err("the keys are not told apart".into());
        }
        let (right, wrong) =
            (median(|| drop(wait(set.authenticate(&right)))), median(|| drop(wait(set.authenticate(&wrong)))));
        println!("| auth-api-keys, {keys} keys, a right one | {right:.1} |");
        println!("| auth-api-keys, {keys} keys, a wrong one | {wrong:.1} |");
        host.stop();
    }
    println!("| validator-limits | {:.1} |", median(|| drop(wait(set.validate(0, &body)))));
    println!(
        "| sampler-standard, start | {:.1} |",
        median(|| drop(SamplerHook::open(&*host, set.sampler_chain(), &sampling)))
    );
    host.stop();
    languages(&target)?;
    println!("\n| scheduler | waiting | p50, us | p99, us |\n|---|---|---|---|");
    for plugin in ["scheduler-fcfs", "scheduler-fair"] {
        let host = with_scheduler(&target, plugin)?;
        for waiting in [128, 1000, 10_000] {
            let times = steps(&host, waiting)?;
            let at = |share: f64| times[(times.len() as f64 * share) as usize];
            println!("| {plugin} | {waiting} | {:.1} | {:.1} |", at(0.5), at(0.99));
        }
        host.stop();
    }
    Ok(())
}

/// Policies of interpreters, with an instance for each call, before a snapshot is taken and after it, and with an instance that is
/// used again, where the tests have built them.
fn languages(target: &str) -> Result<(), Box<dyn std::error::Error>> {
    let digest: String = Sha256::digest("key-7").iter().map(|byte| format!("{byte:02x}")).collect();
    let keys = format!("[[settings.keys]]\nname = \"a\"\ntenant = \"a\"\nsha256 = \"{digest}\"\n");
    let (request, body) = (with_key("key-7"), Arc::new(validate_request()));
    println!("\n| policy of an interpreter | instance | median, us | CPU, us |\n|---|---|---|---|");
    for (hook, source, settings) in
        [("validator", "validator.py", "words = [\"submarine\"]\n"), ("auth", "auth.js", keys.as_str())]
    {
        let component = Path::new(target).join(format!("e2e/languages/{source}.wasm"));
        if !component.exists() {
            println!("| {source} | not measured: `cargo xtask test` builds it | | |");
            continue;
        }
        for (reuse, instance) in [(false, "of its own"), (true, "used again")] {
            let dir = tempfile::tempdir()?;
            std::fs::create_dir(dir.path().join(hook))?;
            std::fs::copy(&component, dir.path().join(hook).join("10-x.wasm"))?;
            let policy = "[policy]\ndeadline = \"5s\"\nmemory = \"64MiB\"\nsnapshot = \"share-random\"\n[settings]\n";
            let sidecar = format!("{policy}reuse = {reuse}\n{settings}");
            std::fs::write(dir.path().join(hook).join("10-x.toml"), sidecar)?;
            let host = start(dir.path())?;
            let set = host.current();
            let call = || match hook {
                "auth" => matches!(wait(set.authenticate(&request)).outcome, AuthOutcome::Allow(_)),
                _ => matches!(wait(set.validate(0, &body)).outcome, ValidateOutcome::Accept),
            };
            if !call() {
                return Err(format!("{source} refuses what it should not").into());
            }
            row((source, instance), || _ = call());
            if !reuse && await_snapshot(&host)? {
                row((source, "of its own, from a snapshot"), || _ = call());
            }
            host.stop();
        }
    }
    Ok(())
}

fn row((source, instance): (&str, &str), call: impl FnMut()) {
    let begun = cpu();
    let median = median(call);
    println!("| {source} | {instance} | {median:.1} | {:.1} |", (cpu() - begun).as_secs_f64() * 1e6 / CALLS as f64);
}

/// Waits until the only policy's instances begin from a snapshot. `false`: they do not, which it says.
fn await_snapshot(host: &PolicyHost) -> Result<bool, Box<dyn std::error::Error>> {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(300) {
        let health = host.status().pop().and_then(|policy| policy.health).ok_or("it does not serve")?;
        if let Some(why) = health.snapshot_error {
            println!("no snapshot: {why}");
            return Ok(false);
        }
        if health.snapshot {
            // The calls before it left instances that were made ahead without it.
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Err("no snapshot was taken in time".into())
}

/// CPU time of the process.
fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

fn with_scheduler(target: &str, plugin: &str) -> Result<Arc<PolicyHost>, Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    std::fs::create_dir(dir.path().join("scheduler"))?;
    std::fs::copy(format!("{target}/plugins/{plugin}.wasm"), dir.path().join("scheduler/10-x.wasm"))?;
    start(dir.path())
}

/// Times of scheduling points, sorted, in microseconds: at each a request of one of 16 tenants ends, another takes its place,
/// and one more arrives.
fn steps(host: &PolicyHost, waiting: u64) -> Result<Vec<f64>, Box<dyn std::error::Error>> {
    let (_, mut scheduler) = host.scheduler("demo").open(Duration::ZERO)?.ok_or("no scheduler")?;
    scheduler.schedule(&point(0, 0, (1..=waiting).map(arrival).collect()))?;
    let (mut times, mut events) = (Vec::new(), Vec::new());
    for step in 0..CALLS as u64 {
        events.push(arrival(waiting + 1 + step));
        let point = point(step + 1, 1, std::mem::take(&mut events));
        let begun = Instant::now();
        let actions = scheduler.schedule(&point)?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
        let [Action::Dispatch { id, worker }] = actions[..] else {
            return Err(format!("not one dispatch: {actions:?}").into());
        };
        events.push(SchedulerEvent::Dispatched { id, worker });
        events.push(SchedulerEvent::Finished { id, generated_tokens: 100, ending: Ending::Stop });
    }
    times.sort_by(f64::total_cmp);
    Ok(times)
}

/// A host whose auth policy knows `keys` keys.
fn with_keys(target: &str, keys: usize) -> Result<Arc<PolicyHost>, Box<dyn std::error::Error>> {
    let dir = tempfile::tempdir()?;
    std::fs::create_dir(dir.path().join("auth"))?;
    std::fs::copy(format!("{target}/plugins/auth-api-keys.wasm"), dir.path().join("auth/10-x.wasm"))?;
    let mut settings = "[settings]\n".to_owned();
    for i in 0..keys {
        let digest: String = Sha256::digest(format!("key-{i}")).iter().map(|byte| format!("{byte:02x}")).collect();
        settings.push_str(&format!("[[settings.keys]]\nname = \"key-{i}\"\nsha256 = \"{digest}\"\n"));
        settings.push_str(&format!("tenant = \"tenant-{i}\"\nrequests-per-minute = 600\n"));
    }
    std::fs::write(dir.path().join("auth/10-x.toml"), settings)?;
    start(dir.path())
}

fn start(dir: &Path) -> Result<Arc<PolicyHost>, Box<dyn std::error::Error>> {
    let config = PolicyConfig {
        dir: Some(dir.to_owned()),
        allow_empty: false,
        compiler: None,
        poll: Duration::from_secs(60),
        cache_dir: None,
        allow_anonymous: false,
        grants: camshaft_policy::Grants::default(),
    };
    Ok(PolicyHost::start(config, &prometheus::Registry::new())?)
}

fn with_key(key: &str) -> Arc<AuthRequest> {
    let mut request = auth_request();
    request.headers.push(("authorization".to_owned(), format!("Bearer {key}").into_bytes()));
    Arc::new(request)
}

/// Median time of a call in microseconds.
fn median(mut call: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..CALLS)
        .map(|_| {
            let begun = Instant::now();
            call();
            begun.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn auth_request() -> AuthRequest {
    AuthRequest {
        method: "POST".to_owned(),
        path: "/v1/chat/completions".to_owned(),
        headers: vec![("content-type".to_owned(), b"application/json".to_vec())],
        remote_address: "127.0.0.1".to_owned(),
        loopback: true,
        ..AuthRequest::default()
    }
}

fn validate_request() -> ValidateRequest {
    ValidateRequest {
        endpoint: Endpoint::Chat,
        model: "bench".to_owned(),
        tenant: TenantId::from("bench"),
        principal: String::new(),
        marks: Default::default(),
        estimated_cost: 105,
        body: format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{}\"}}]}}", "x".repeat(4000)).into(),
        prompt_tokens: 1000,
        max_tokens: 100,
        max_tokens_set: true,
        temperature: 1.0,
        top_p: 1.0,
        n: 1,
        stream: true,
    }
}

fn sampling_request() -> SamplingRequest {
    SamplingRequest {
        request: RequestId(1),
        model: "bench".to_owned(),
        tenant: TenantId::from("bench"),
        endpoint: Endpoint::Completion,
        params: SamplingParams::default(),
        choice: 0,
        prompt_tokens: 32,
        max_tokens: 1000,
        samplers: None,
        context: Default::default(),
        vocabulary: Arc::new(Vocabulary::new((0..1024u32).map(u32::to_le_bytes), vec![Token(0)])),
    }
}

fn arrival(id: u64) -> SchedulerEvent {
    SchedulerEvent::Arrived(Arrival {
        id: RequestId(id),
        arrived: Duration::from_millis(id),
        tenant: TenantId::new(format!("tenant-{}", id % 16)),
        priority: Priority::Normal,
        weight: 1.0,
        deadline: None,
        prompt_tokens: 100,
        max_tokens: 100,
        need: 200,
        cached: Vec::new(),
        attributes: Arc::default(),
    })
}

fn point(ms: u64, free_sequences: u32, events: Vec<SchedulerEvent>) -> SchedulingPoint {
    let worker = WorkerFacts {
        worker: WorkerId(0),
        healthy: true,
        free_sequences,
        running_sequences: 32,
        kv_free: 200 * free_sequences,
        kv_used: 0,
        kv_total: 8192,
        prefilling_tokens: 0,
        tokens_per_second: 100.0,
        can_preempt: false,
    };
    SchedulingPoint {
        now: Duration::from_millis(ms),
        replay: ms == 0,
        events,
        workers: vec![worker],
        books: Arc::new(EmptyBooks),
    }
}
