//! A policy directory of its own and a host that serves from it.
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use camshaft_core::answering::wait;
use camshaft_core::ids::{Generation, PolicyDigest, RequestId, TenantId, Token, WorkerId};
use camshaft_core::policy::{
    Arrival, AuthOutcome, AuthRequest, EmptyBooks, Endpoint, Fault, FaultKind, NoSampler, Policies, PolicyStatus,
    Priority, SamplerHook, SamplingRequest, SchedulerEvent, SchedulingPoint, TokenSampler, ValidateOutcome,
    ValidateRequest, WorkerFacts,
};
use camshaft_core::sampling::{Row, SamplingParams};
use camshaft_core::vocabulary::Vocabulary;
use camshaft_policy::{PolicyConfig, PolicyHost};
use prometheus::{Registry, TextEncoder};
use tempfile::TempDir;

/// A poll so slow that only events (or `reload`) make the host look.
pub(crate) const NEVER: Duration = Duration::from_secs(3600);
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Rig {
    pub(crate) dir: TempDir,
    pub(crate) host: Arc<PolicyHost>,
    pub(crate) metrics: Registry,
}

/// The bytes of a built component: `plugins/auth-api-keys`, `guests/misbehave-auth`.
pub(crate) fn component(name: &str) -> Vec<u8> {
    // The target directory may be anywhere; this test runs from `<target>/<profile>/deps`.
    let test = std::env::current_exe().unwrap();
    let target = test.ancestors().nth(3).unwrap();
    let path = target.join(format!("{name}.wasm"));
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}; run cargo xtask plugins", path.display()))
}

/// The settings file that makes a guest misbehave.
pub(crate) fn behave(how: &str, policy: &str) -> String {
    format!("[policy]\n{policy}\n[settings]\nbehave = \"{how}\"\n")
}

/// Starts a host over the files given as (path, content).
pub(crate) fn rig(files: &[(&str, &[u8])]) -> Rig {
    rig_polling(files, NEVER)
}

pub(crate) fn rig_polling(files: &[(&str, &[u8])], poll: Duration) -> Rig {
    let dir = tempfile::tempdir().unwrap();
    for (file, content) in files {
        put(dir.path(), file, content);
    }
    let metrics = Registry::new();
    let cache_dir = Some(Path::new(env!("CARGO_TARGET_TMPDIR")).join("policy-cache"));
    let config = PolicyConfig {
        dir: Some(dir.path().to_path_buf()),
        allow_empty: true,
        compiler: None,
        poll,
        cache_dir,
        allow_anonymous: false,
        grants: camshaft_policy::Grants::default(),
    };
    let host = PolicyHost::start(config, &metrics).unwrap();
    Rig { dir, host, metrics }
}

/// Replaces a file as careful writers do: written beside it and renamed over it.
pub(crate) fn put(dir: &Path, file: &str, content: &[u8]) {
    let path = dir.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let beside = path.with_extension("new");
    fs::write(&beside, content).unwrap();
    fs::rename(&beside, &path).unwrap();
}

impl Rig {
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    /// Puts a file there and lets the host look.
    pub(crate) fn put(&self, file: &str, content: impl AsRef<[u8]>) {
        put(self.dir.path(), file, content.as_ref());
        self.host.reload().unwrap();
    }

    pub(crate) fn remove(&self, file: &str) {
        fs::remove_file(self.path(file)).unwrap();
        self.host.reload().unwrap();
    }

    pub(crate) fn generation(&self) -> Generation {
        self.host.current().generation()
    }

    /// The sampler chain in force.
    pub(crate) fn chain(&self) -> PolicyDigest {
        self.host.current().sampler_chain()
    }

    pub(crate) fn status(&self, file: &str) -> PolicyStatus {
        let path = self.path(file).display().to_string();
        let found = self.host.status().into_iter().find(|status| status.file == path);
        found.unwrap_or_else(|| panic!("no status of {path} in {:?}", self.host.status()))
    }

    pub(crate) fn error(&self, file: &str) -> String {
        self.status(file).error.unwrap_or_else(|| panic!("{file} has no error"))
    }

    /// The value of a series, given as the exposition format writes it; 0 if there is none.
    pub(crate) fn metric(&self, series: &str) -> f64 {
        let text = TextEncoder::new().encode_to_string(&self.metrics.gather()).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(series).and_then(|rest| rest.strip_prefix(' ')));
        line.map_or(0.0, |value| value.parse().unwrap())
    }

    pub(crate) fn swaps(&self, hook: &str, result: &str) -> f64 {
        self.metric(&format!("camshaft_policy_swaps_total{{hook=\"{hook}\",result=\"{result}\"}}"))
    }

    pub(crate) fn calls(&self, hook: &str, plugin: &str, outcome: &str) -> f64 {
        let labels = format!("hook=\"{hook}\",outcome=\"{outcome}\",plugin=\"{plugin}\"");
        self.metric(&format!("camshaft_policy_calls_total{{{labels}}}"))
    }

    /// Differences of a monitored policy of one kind.
    pub(crate) fn differences(&self, hook: &str, plugin: &str, kind: &str) -> f64 {
        let labels = format!("hook=\"{hook}\",kind=\"{kind}\",plugin=\"{plugin}\"");
        self.metric(&format!("camshaft_policy_differences_total{{{labels}}}"))
    }

    pub(crate) fn authenticate(&self, request: &Arc<AuthRequest>) -> AuthOutcome {
        wait(self.host.current().authenticate(request)).outcome
    }

    pub(crate) fn validate(&self, request: &Arc<ValidateRequest>) -> ValidateOutcome {
        wait(self.host.current().validate(0, request)).outcome
    }

    pub(crate) fn sampler(&self, request: &SamplingRequest) -> Result<Box<dyn TokenSampler>, Fault> {
        SamplerHook::open(&*self.host, self.chain(), request).map_err(|why| match why {
            NoSampler::Fault(fault) => fault,
            NoSampler::Refused(refusal) => panic!("{refusal:?}"),
        })
    }

    /// Waits until the watcher has brought something about.
    pub(crate) fn wait(&self, what: &str, mut reached: impl FnMut(&Rig) -> bool) {
        let started = Instant::now();
        while !reached(self) {
            assert!(started.elapsed() < PATIENCE, "waited in vain for: {what}; {:?}", self.host.status());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A request from a peer, with an API key if there is one.
pub(crate) fn caller(loopback: bool, key: Option<&str>) -> Arc<AuthRequest> {
    Arc::new(AuthRequest {
        id: "r".to_owned(),
        query: String::new(),
        method: "POST".to_owned(),
        path: "/v1/chat/completions".to_owned(),
        route: String::new(),
        headers: key
            .map(|key| ("authorization".to_owned(), format!("Bearer {key}").into_bytes()))
            .into_iter()
            .collect(),
        remote_address: if loopback { "127.0.0.1" } else { "192.0.2.7" }.to_owned(),
        loopback,
        ..AuthRequest::default()
    })
}

pub(crate) fn generation_request(max_tokens: u32) -> Arc<ValidateRequest> {
    Arc::new(ValidateRequest {
        endpoint: Endpoint::Chat,
        model: "demo".to_owned(),
        tenant: TenantId::from("t"),
        principal: "ann".to_owned(),
        marks: Default::default(),
        estimated_cost: 5 + u64::from(max_tokens),
        body: format!("{{\"max_tokens\":{max_tokens}}}").into(),
        prompt_tokens: 5,
        max_tokens,
        max_tokens_set: true,
        temperature: 1.0,
        top_p: 1.0,
        n: 1,
        stream: false,
    })
}

/// Words of the vocabulary that samplers are tried on; the last ends a generation.
pub(crate) const WORDS: [&str; 6] = ["red", " green", " blue", " bl", "ue", ""];

pub(crate) fn sampling_request() -> SamplingRequest {
    SamplingRequest {
        request: RequestId(1),
        model: "demo".to_owned(),
        tenant: TenantId::from("t"),
        endpoint: Endpoint::Completion,
        params: SamplingParams::greedy(),
        choice: 0,
        prompt_tokens: 1,
        max_tokens: 10,
        samplers: None,
        context: Default::default(),
        vocabulary: Arc::new(Vocabulary::new(WORDS, vec![Token(5)])),
    }
}

/// A row in which tokens are better the later they come, the end token apart.
pub(crate) fn row() -> Row {
    let mut row = Row::new(&[Token(0)], 7);
    row.load(&[0.0, 1.0, 4.0, 2.0, 3.0, -1.0]).unwrap();
    row
}

/// The token that comes of one call.
pub(crate) fn drawn(sampler: &mut dyn TokenSampler, row: &mut Row) -> Result<Token, Fault> {
    Ok(sampler.sample(row)?.or_else(|| row.draw()).unwrap())
}

pub(crate) fn arrival(id: u64, max_tokens: u32) -> SchedulerEvent {
    SchedulerEvent::Arrived(Arrival {
        id: RequestId(id),
        arrived: Duration::from_millis(id),
        tenant: TenantId::from("t"),
        priority: Priority::Normal,
        weight: 1.0,
        deadline: None,
        prompt_tokens: 10,
        max_tokens,
        need: 10 + max_tokens,
        cached: Vec::new(),
        attributes: Arc::default(),
    })
}

/// The first point of an instance: one worker with room for one sequence.
pub(crate) fn point(events: Vec<SchedulerEvent>) -> SchedulingPoint {
    let worker = WorkerFacts {
        worker: WorkerId(3),
        healthy: true,
        free_sequences: 1,
        running_sequences: 0,
        kv_free: 1000,
        kv_used: 0,
        kv_total: 1000,
        prefilling_tokens: 0,
        tokens_per_second: 0.0,
        can_preempt: false,
    };
    SchedulingPoint {
        now: Duration::from_millis(50),
        replay: true,
        events,
        workers: vec![worker],
        books: Arc::new(EmptyBooks),
    }
}

/// What each way to misbehave when asked must be taken for.
pub(crate) const MISBEHAVIOURS: [(&str, FaultKind); 7] = [
    ("spin", FaultKind::Deadline),
    ("verify", FaultKind::Deadline),
    ("trap", FaultKind::Trap),
    ("allocate", FaultKind::Memory),
    ("recurse", FaultKind::Trap),
    ("nonsense", FaultKind::InvalidOutput),
    ("sleep", FaultKind::Trap),
];
