//! `[match]`: policies are asked about the requests that they match, and about no others.
use std::sync::Arc;
use std::time::Duration;

use camshaft_core::filter::{FilterHook, FilteringRequest};
use camshaft_core::ids::{RequestId, TenantId};
use camshaft_core::policy::{
    Action, AuthOutcome, AuthRequest, Endpoint, Policies, PolicyState, RequestContext, SamplingRequest, Target,
    ValidateOutcome, ValidateRequest,
};

use crate::rig::{Rig, arrival, caller, component, generation_request, point, rig, row, sampling_request};

/// A call of a route by its table path, from anywhere.
fn call(path: &str, route: &str) -> Arc<AuthRequest> {
    Arc::new(AuthRequest { path: path.to_owned(), route: route.to_owned(), ..(*caller(false, None)).clone() })
}

fn status(outcome: AuthOutcome) -> u16 {
    match outcome {
        AuthOutcome::Allow(_) => 200,
        AuthOutcome::Refuse(refusal) => refusal.status,
        AuthOutcome::Fault(_) => 500,
    }
}

#[test]
fn a_route_that_no_auth_policy_is_asked_about_is_closed() {
    // A policy that lets in everybody, on one route.
    let rig = rig(&[
        ("auth/10-open.wasm", &component("guests/misbehave-auth")),
        ("auth/10-open.toml", b"[match]\nendpoints = [\"/v1/models\"]"),
    ]);
    for (path, route, expected) in [
        ("/v1/models", "/v1/models", 200),
        ("/v1/models", "", 200),
        ("/v1/models/x", "/v1/models/{*id}", 401),
        ("/v1/chat/completions", "/v1/chat/completions", 401),
        ("/chat", "/v1/chat/completions", 401),
        // However the path is spelled, the route counts.
        ("/v1/models", "/v1/chat/completions", 401),
        ("/v1/models/", "", 401),
        ("/V1/MODELS", "", 401),
        ("/v1/%6dodels", "", 401),
        ("//v1/models", "", 401),
    ] {
        assert_eq!(status(rig.authenticate(&call(path, route))), expected, "{path} {route}");
    }
    let local = AuthRequest { path: "/metrics".to_owned(), loopback: true, ..(*caller(true, None)).clone() };
    assert_eq!(status(rig.authenticate(&Arc::new(local))), 401, "also for this machine");
    assert!(rig.host.current().has_auth());
    assert_eq!(rig.calls("auth", "open", "allow"), 2.0, "it was not asked about the others");
    // Another one that matches may allow.
    rig.put("auth/20-rest.toml", "[match]\nendpoints = [\"/v1/chat*\"]");
    rig.put("auth/20-rest.wasm", component("guests/misbehave-auth"));
    assert_eq!(status(rig.authenticate(&call("/chat", "/v1/chat/completions"))), 200);
    assert_eq!(status(rig.authenticate(&call("/v1/models/x", "/v1/models/{*id}"))), 401);
}

#[test]
fn a_guard_that_cannot_be_loaded_refuses_what_it_would_have_been_asked_about() {
    let broken = [
        ("auth/10-open.wasm", component("guests/misbehave-auth")),
        ("auth/20-bad.wasm", b"nonsense".to_vec()),
        ("auth/20-bad.toml", b"[match]\nendpoints = [\"/metrics\"]".to_vec()),
        ("auth/10-open.toml", b"[match]\nendpoints = [\"/v1/*\"]".to_vec()),
    ];
    let files: Vec<(&str, &[u8])> = broken.iter().map(|(file, content)| (*file, content.as_slice())).collect();
    let rig = rig(&files);
    assert_eq!(status(rig.authenticate(&call("/v1/models", "/v1/models"))), 200);
    assert_eq!(status(rig.authenticate(&call("/metrics", "/metrics"))), 500);
    assert_eq!(status(rig.authenticate(&call("/server/stats", "/server/stats"))), 401);
}

/// The request with another tenant, model or endpoint.
fn other(tenant: &str, model: &str, endpoint: Endpoint) -> Arc<ValidateRequest> {
    let request = (*generation_request(101)).clone();
    Arc::new(ValidateRequest { tenant: TenantId::from(tenant), model: model.to_owned(), endpoint, ..request })
}

/// Which of these requests a policy is concerned with that matches `acme` or `team-*`, `demo*` and chats.
const CASES: [(&str, &str, Endpoint, bool); 6] = [
    ("acme", "demo", Endpoint::Chat, true),
    ("team-1", "demo-2", Endpoint::Chat, true),
    ("acme2", "demo", Endpoint::Chat, false),
    ("acme", "other", Endpoint::Chat, false),
    ("acme", "demo", Endpoint::Completion, false),
    ("acme", "demo", Endpoint::Embedding, false),
];
const MATCH: &str = "[match]\ntenants = [\"acme\", \"team-*\"]\nmodels = [\"demo*\"]\nendpoints = [\"chat\"]\n";

#[test]
fn a_validator_is_asked_about_its_tenants_models_and_endpoints() {
    let settings = format!("{MATCH}[settings]\nmax-tokens = 100");
    let rig = rig(&[
        ("validator/10-limits.wasm", &component("plugins/validator-limits")),
        ("validator/10-limits.toml", settings.as_bytes()),
    ]);
    for (tenant, model, endpoint, concerned) in CASES {
        let request = other(tenant, model, endpoint);
        assert_eq!(rig.host.current().validates(0, request.target()), concerned, "{tenant} {model} {endpoint:?}");
        let refused = matches!(rig.validate(&request), ValidateOutcome::Refuse(_));
        assert_eq!(refused, concerned, "{tenant} {model} {endpoint:?}");
    }
    assert_eq!((rig.calls("validator", "limits", "refuse"), rig.calls("validator", "limits", "accept")), (2.0, 0.0));
    assert!(!rig.host.current().validates(1, other("acme", "demo", Endpoint::Chat).target()));
}

fn sampled(rig: &Rig, request: &SamplingRequest) {
    rig.sampler(request).unwrap().sample(&mut row()).unwrap();
}

#[test]
fn a_sampler_shapes_the_rows_of_what_it_matches_also_when_it_is_required() {
    for required in [false, true] {
        let settings = format!("[policy]\nrequired = {required}\n{MATCH}");
        let rig = rig(&[
            ("sampler/10-a.wasm", &component("guests/misbehave-sampler")),
            ("sampler/10-a.toml", settings.as_bytes()),
            ("sampler/20-b.wasm", &component("guests/misbehave-sampler")),
        ]);
        let mut asked = 0.0;
        for (tenant, model, endpoint, concerned) in CASES {
            let tenant = TenantId::from(tenant);
            let mut request =
                SamplingRequest { tenant: tenant.clone(), model: model.to_owned(), endpoint, ..sampling_request() };
            if required {
                request.samplers = Some(vec!["b".to_owned()]);
            }
            sampled(&rig, &request);
            asked += if concerned { 1.0 } else { 0.0 };
            assert_eq!(rig.calls("sampler", "a", "shaped"), asked, "{tenant} {model} {endpoint:?}");
            let names = rig.host.current().samplers(Target { tenant: &tenant, model, endpoint });
            assert_eq!(names.iter().any(|name| name.as_str() == "a"), concerned, "a request names only what is for it");
            request.samplers = Some(vec!["a".to_owned()]);
            assert_eq!(rig.sampler(&request).is_ok(), concerned);
        }
        assert_eq!(rig.calls("sampler", "b", "shaped"), CASES.len() as f64);
    }
}

#[test]
fn a_filter_sees_the_text_of_what_it_matches() {
    let rig =
        rig(&[("filter/10-a.wasm", &component("guests/misbehave-filter")), ("filter/10-a.toml", MATCH.as_bytes())]);
    let chain = rig.host.current().filter_chain();
    for (tenant, model, endpoint, concerned) in CASES {
        let (tenant, model) = (TenantId::from(tenant), model.to_owned());
        let request = FilteringRequest {
            request: RequestId(1),
            model,
            tenant,
            endpoint,
            choice: 0,
            context: RequestContext::default(),
        };
        let opened = FilterHook::open(&*rig.host, chain, &request).unwrap();
        assert_eq!(opened.len(), usize::from(concerned), "{request:?}");
    }
}

#[test]
fn the_last_scheduler_that_matches_a_model_decides_in_its_pool() {
    let rig = rig(&[
        ("scheduler/10-fcfs.wasm", &component("plugins/scheduler-fcfs")),
        ("scheduler/10-fcfs.toml", b"[match]\nmodels = [\"a*\"]"),
        ("scheduler/20-short.wasm", &component("plugins/scheduler-shortest-first")),
        ("scheduler/20-short.toml", b"[match]\nmodels = [\"ab\"]"),
    ]);
    let decides = |model: &str| {
        let (name, mut scheduler) = rig.host.scheduler(model).open(Duration::ZERO).unwrap()?;
        let actions = scheduler.schedule(&point(vec![arrival(1, 500), arrival(2, 5)])).unwrap();
        let Some(Action::Dispatch { id, .. }) = actions.first() else { panic!("{actions:?}") };
        Some((name.to_string(), id.0))
    };
    let deciders = || ["a", "ab", "b"].map(decides);
    let (fcfs, short) = (Some(("fcfs".to_owned(), 1)), Some(("short".to_owned(), 2)));
    assert_eq!(deciders(), [fcfs.clone(), short.clone(), None], "no scheduler matches b: the native one decides");
    for file in ["scheduler/10-fcfs.wasm", "scheduler/20-short.wasm"] {
        assert_eq!(rig.status(file).state, PolicyState::Active);
    }
    let before = ["a", "ab", "b"].map(|model| rig.host.scheduler(model).generation(Duration::ZERO));
    rig.put("scheduler/20-short.toml", "[match]\nmodels = [\"b\"]");
    assert_eq!(deciders(), [fcfs.clone(), fcfs, short.clone()]);
    let after = ["a", "ab", "b"].map(|model| rig.host.scheduler(model).generation(Duration::ZERO));
    assert_eq!(after[0], before[0], "a pool whose scheduler is the same does not replay");
    assert!(after[1] != before[1] && after[2] != before[2]);
    rig.put("scheduler/20-short.toml", "");
    assert_eq!(deciders(), [short.clone(), short.clone(), short]);
    assert_eq!(rig.status("scheduler/10-fcfs.wasm").state, PolicyState::Standby);
}

#[test]
fn a_pool_monitors_the_last_scheduler_in_that_mode_that_matches_its_model() {
    let rig = rig(&[
        ("scheduler/10-fcfs.wasm", &component("plugins/scheduler-fcfs")),
        ("scheduler/20-old.wasm", &component("plugins/scheduler-fcfs")),
        ("scheduler/20-old.toml", b"[policy]\nmode = \"monitor\"\n[match]\nmodels = [\"a*\"]"),
        ("scheduler/30-short.wasm", &component("plugins/scheduler-shortest-first")),
        ("scheduler/30-short.toml", b"[policy]\nmode = \"monitor\"\n[match]\nmodels = [\"ab\"]"),
    ]);
    let monitored = ["a", "ab", "b"].map(|model| {
        let hook = rig.host.scheduler(model);
        assert_eq!(hook.open(Duration::ZERO).unwrap().unwrap().0.as_str(), "fcfs", "{model}");
        let opened = hook.open_monitored().unwrap().map(|(name, _)| name.to_string());
        assert_eq!(hook.monitored().is_some(), opened.is_some(), "{model}");
        opened
    });
    assert_eq!(monitored, [Some("old".to_owned()), Some("short".to_owned()), None]);
    for file in ["scheduler/10-fcfs.wasm", "scheduler/20-old.wasm", "scheduler/30-short.wasm"] {
        assert_eq!(rig.status(file).state, PolicyState::Active, "{file}");
    }
}

#[test]
fn monitored_policies_are_asked_only_about_what_they_match() {
    let monitor = |rest: &str| format!("[policy]\nmode = \"monitor\"\n{rest}");
    let (auth, filter) = (monitor("[match]\nendpoints = [\"/v1/models\"]"), monitor(MATCH));
    let rig = rig(&[
        ("auth/10-open.wasm", &component("guests/misbehave-auth")),
        ("auth/20-seen.wasm", &component("guests/misbehave-auth")),
        ("auth/20-seen.toml", auth.as_bytes()),
        ("filter/10-a.wasm", &component("guests/misbehave-filter")),
        ("filter/10-a.toml", filter.as_bytes()),
    ]);
    for (path, asked) in [("/v1/models", 1.0), ("/metrics", 1.0), ("/v1/models", 2.0)] {
        assert_eq!(status(rig.authenticate(&call(path, path))), 200);
        assert_eq!(rig.calls("auth", "seen", "allow"), asked, "{path}");
    }
    let chain = rig.host.current().filter_chain();
    for (tenant, model, endpoint, concerned) in CASES {
        let (tenant, model) = (TenantId::from(tenant), model.to_owned());
        let context = Default::default();
        let request = FilteringRequest { request: RequestId(1), model, tenant, endpoint, choice: 0, context };
        let opened = FilterHook::open(&*rig.host, chain, &request).unwrap();
        assert_eq!(opened.len(), usize::from(concerned), "{request:?}");
    }
}
