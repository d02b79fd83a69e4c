//! The standard policies through their hooks, and the native defaults where there is none.
use std::sync::Arc;
use std::time::Duration;

use camshaft_core::answering::wait;
use camshaft_core::ids::{RequestId, Token, WorkerId};
use camshaft_core::policy::{Action, AuthOutcome, FaultKind, Mode, Policies, PolicyState, Rejection, ValidateOutcome};
use camshaft_core::sampling::{LogitBias, Row, SamplingParams, StandardChain};
use camshaft_policy::{PolicyConfig, PolicyHost};
use sha2::{Digest, Sha256};

use crate::rig::{
    NEVER, arrival, behave, caller, component, drawn, generation_request, point, rig, row, sampling_request,
};

fn keys(names: &[(&str, &str)]) -> String {
    let entry = |(name, key): &(&str, &str)| {
        let digest: String = Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect();
        format!(
            "[[settings.keys]]\nname = \"{name}\"\nsha256 = \"{digest}\"\ntenant = \"t-{name}\"\npriority = \"high\"\n"
        )
    };
    names.iter().map(entry).collect()
}

fn refused(outcome: AuthOutcome) -> Option<(u16, String)> {
    match outcome {
        AuthOutcome::Refuse(refusal) => Some((refusal.status, refusal.code)),
        _ => None,
    }
}

#[test]
fn without_policies_only_loopback_peers_may_call() {
    let rig = rig(&[]);
    assert!(!rig.host.current().has_auth());
    assert!(matches!(rig.authenticate(&caller(true, None)), AuthOutcome::Allow(p) if p.name == "anonymous"));
    assert_eq!(refused(rig.authenticate(&caller(false, None))), Some((401, "invalid_api_key".to_owned())));
    assert!(matches!(rig.validate(&generation_request(1)), ValidateOutcome::Accept));
    assert!(rig.host.scheduler("demo").open(Duration::ZERO).unwrap().is_none());
    let mut sampler = rig.sampler(&sampling_request()).unwrap();
    assert_eq!(drawn(&mut *sampler, &mut row()).unwrap(), Token(2));
}

#[test]
fn contexts_tell_what_they_say_they_do() {
    let tell = behave("tell", "");
    let rig = rig(&[
        ("auth/10-a.wasm", &component("guests/misbehave-auth")),
        ("auth/10-a.toml", tell.as_bytes()),
        ("validator/10-v.wasm", &component("guests/misbehave-validator")),
        ("validator/10-v.toml", tell.as_bytes()),
        ("scheduler/10-s.wasm", &component("guests/misbehave-scheduler")),
        ("scheduler/10-s.toml", tell.as_bytes()),
    ]);
    let mut call = Arc::unwrap_or_clone(caller(false, None));
    call.query = "a=%20".to_owned();
    call.headers =
        [("x-a", &b"1"[..]), ("x-b", b"2"), ("x-a", b"\xff")].map(|(n, v)| (n.to_owned(), v.to_vec())).to_vec();
    let AuthOutcome::Refuse(told) = rig.authenticate(&Arc::new(call)) else { panic!("it tells") };
    let version = env!("CARGO_PKG_VERSION");
    let expected =
        format!("auth/a on {version} None; r a=%20 [[49], [255]] [\"x-a\", \"x-b\"] Err(\"a limit of the name ");
    assert!(told.message.starts_with(&expected), "{}", told.message);
    let ValidateOutcome::Refuse(told) = rig.validate(&generation_request(7)) else { panic!("it tells") };
    assert_eq!(told.message, "t/ann None 12 64 {\"max_tokens\":7} [Some(\"7\"), None]");
    let (_, mut scheduler) = rig.host.scheduler("demo").open(Duration::ZERO).unwrap().unwrap();
    let told = scheduler.schedule(&point(vec![arrival(1, 5), arrival(2, 5)])).unwrap();
    let message = |id| Action::Reject { id: RequestId(id), rejection: Rejection::new("demo 0 t") };
    assert_eq!(told, [message(1), message(2)]);
}

#[test]
fn without_a_directory_anonymous_use_is_the_operators_choice() {
    for allow_anonymous in [false, true] {
        let config = PolicyConfig {
            dir: None,
            allow_empty: true,
            compiler: None,
            poll: NEVER,
            cache_dir: None,
            allow_anonymous,
            grants: camshaft_policy::Grants::default(),
        };
        let host = PolicyHost::start(config, &prometheus::Registry::new()).unwrap();
        let outcome = wait(host.current().authenticate(&caller(false, None))).outcome;
        assert_eq!(matches!(outcome, AuthOutcome::Allow(_)), allow_anonymous);
        host.reload().unwrap();
        assert!(host.status().is_empty());
    }
}

#[test]
fn api_keys_let_in_who_has_one() {
    let sidecar = keys(&[("ann", "sk-ann"), ("bob", "sk-bob")]);
    let rig = rig(&[
        ("auth/10-api-keys.wasm", &component("plugins/auth-api-keys")),
        ("auth/10-api-keys.toml", sidecar.as_bytes()),
    ]);
    match rig.authenticate(&caller(false, Some("sk-bob"))) {
        AuthOutcome::Allow(principal) => {
            assert_eq!((principal.name.as_str(), principal.tenant.as_str()), ("bob", "t-bob"))
        }
        outcome => panic!("{outcome:?}"),
    }
    assert_eq!(refused(rig.authenticate(&caller(false, Some("sk-eve")))).map(|(status, _)| status), Some(401));
    assert_eq!(refused(rig.authenticate(&caller(true, None))).map(|(status, _)| status), Some(401));
    assert_eq!(rig.calls("auth", "api-keys", "allow"), 1.0);
    let count = "camshaft_policy_duration_seconds_count{hook=\"auth\",plugin=\"api-keys\"}";
    assert_eq!(rig.metric(count), 3.0);
}

#[test]
fn a_key_is_revoked_by_editing_the_settings_alone() {
    let rig = rig(&[
        ("auth/10-api-keys.wasm", &component("plugins/auth-api-keys")),
        ("auth/10-api-keys.toml", keys(&[("ann", "sk-ann"), ("bob", "sk-bob")]).as_bytes()),
    ]);
    let (held, before) = (rig.host.current(), rig.status("auth/10-api-keys.wasm"));
    rig.put("auth/10-api-keys.toml", keys(&[("ann", "sk-ann")]));
    let after = rig.status("auth/10-api-keys.wasm");
    assert_eq!((&after.serving, after.generation > before.generation), (&before.serving, true));
    assert_eq!(refused(rig.authenticate(&caller(false, Some("sk-bob")))).map(|(status, _)| status), Some(401));
    assert!(matches!(rig.authenticate(&caller(false, Some("sk-ann"))), AuthOutcome::Allow(_)));
    let kept = wait(held.authenticate(&caller(false, Some("sk-bob")))).outcome;
    assert!(matches!(kept, AuthOutcome::Allow(_)), "a request in flight ends under what it began with");
}

#[test]
fn limits_refuse_or_amend() {
    let rig = rig(&[
        ("validator/10-limits.wasm", &component("plugins/validator-limits")),
        ("validator/10-limits.toml", b"[settings]\nmax-tokens = 100"),
    ]);
    assert!(matches!(rig.validate(&generation_request(100)), ValidateOutcome::Accept));
    match rig.validate(&generation_request(101)) {
        ValidateOutcome::Refuse(refusal) => {
            assert_eq!((refusal.status, refusal.param.as_deref()), (400, Some("max_tokens")));
        }
        outcome => panic!("{outcome:?}"),
    }
    assert_eq!((rig.calls("validator", "limits", "accept"), rig.calls("validator", "limits", "refuse")), (1.0, 1.0));
}

#[test]
fn regression_the_last_scheduler_in_file_order_decides_and_the_others_stand_by() {
    let first = |rig: &crate::rig::Rig| {
        let (name, mut scheduler) = rig.host.scheduler("demo").open(Duration::ZERO).unwrap().unwrap();
        let actions = scheduler.schedule(&point(vec![arrival(1, 500), arrival(2, 5)])).unwrap();
        (name.to_string(), actions)
    };
    let dispatch = |id| vec![Action::Dispatch { id: RequestId(id), worker: WorkerId(3) }];
    let rig = rig(&[("scheduler/10-fcfs.wasm", &component("plugins/scheduler-fcfs"))]);
    let generation = rig.host.scheduler("demo").generation(Duration::ZERO);
    assert_eq!(first(&rig), ("fcfs".to_owned(), dispatch(1)));
    rig.put("scheduler/20-short.wasm", component("plugins/scheduler-shortest-first"));
    assert!(rig.host.scheduler("demo").generation(Duration::ZERO) > generation);
    assert_eq!(first(&rig), ("short".to_owned(), dispatch(2)));
    let state = |file: &str| rig.status(file).state;
    assert_eq!(state("scheduler/10-fcfs.wasm"), PolicyState::Standby, "only the last decides");
    assert_eq!(state("scheduler/20-short.wasm"), PolicyState::Active);
    let generation = rig.host.scheduler("demo").generation(Duration::ZERO);
    rig.put("auth/10-x.wasm", component("guests/misbehave-auth"));
    assert_eq!(
        rig.host.scheduler("demo").generation(Duration::ZERO),
        generation,
        "another hook's swap is not the scheduler's"
    );
    rig.put("scheduler/20-short.toml", "[policy]\nmode = \"off\"");
    assert_ne!(rig.host.scheduler("demo").generation(Duration::ZERO), generation);
    assert_eq!(first(&rig), ("fcfs".to_owned(), dispatch(1)));
    assert_eq!(state("scheduler/20-short.wasm"), PolicyState::Off);
    assert_eq!(state("scheduler/10-fcfs.wasm"), PolicyState::Active);
}

#[test]
fn the_standard_sampler_draws_what_the_native_chain_draws() {
    let rig = rig(&[("sampler/10-standard.wasm", &component("plugins/sampler-standard"))]);
    let bias = vec![LogitBias { token: Token(4), bias: 1.5 }];
    // Without `..`, and each on: a parameter that the guest forgets makes a difference here.
    let tuned = SamplingParams {
        temperature: 0.7,
        top_k: 5,
        top_p: 0.97,
        min_p: 0.02,
        typical_p: 0.98,
        repeat_penalty: 1.3,
        repeat_last_n: 8,
        frequency_penalty: 0.4,
        presence_penalty: 0.2,
        logit_bias: bias,
        seed: 11,
    };
    for params in [SamplingParams::greedy(), SamplingParams::default(), SamplingParams::llama_cpp(), tuned] {
        let mut request = sampling_request();
        request.params = params.clone();
        let mut guest = rig.sampler(&request).unwrap();
        let mut native = StandardChain::new(params.clone());
        let (mut ours, mut theirs) = (Row::new(&[Token(0)], params.seed), Row::new(&[Token(0)], params.seed));
        for step in 0..200 {
            let logits = [0, 1, 2, 3, 4, 5].map(|i| ((i * 7 + step * 3) % 11) as f32 * 0.4 - 2.0);
            ours.load(&logits).unwrap();
            theirs.load(&logits).unwrap();
            let (a, b) = (drawn(&mut native, &mut ours).unwrap(), drawn(&mut *guest, &mut theirs).unwrap());
            assert_eq!(a, b, "step {step} with {params:?}");
            ours.accept(a, b"x");
            theirs.accept(b, b"x");
        }
    }
}

#[test]
fn a_word_to_avoid_does_not_appear_across_tokens() {
    let rig = rig(&[
        ("sampler/10-avoid.wasm", &component("plugins/sampler-avoid-words")),
        ("sampler/10-avoid.toml", b"[settings]\nwords = [\"blue\"]"),
    ]);
    let request = sampling_request();
    let mut sampler = rig.sampler(&request).unwrap();
    let mut text = Vec::new();
    let mut row = row();
    for _ in 0..20 {
        row.load(&[0.0, 1.0, 4.0, 3.5, 3.0, -1.0]).unwrap();
        let token = drawn(&mut *sampler, &mut row).unwrap();
        let bytes = request.vocabulary.token_bytes(token).unwrap();
        row.accept(token, bytes);
        text.extend_from_slice(bytes);
    }
    let text = String::from_utf8(text).unwrap();
    assert!(!text.contains("blue"), "{text:?}");
}

#[test]
fn a_chain_that_leaves_the_choice_open_is_followed_by_the_standard_one() {
    let rig = rig(&[
        ("sampler/10-avoid.wasm", &component("plugins/sampler-avoid-words")),
        ("sampler/10-avoid.toml", b"[settings]\nwords = [\"nothing of this\"]"),
    ]);
    let tuned = SamplingParams { temperature: 0.7, top_k: 2, seed: 5, ..SamplingParams::default() };
    for params in [SamplingParams::greedy(), tuned] {
        let mut request = sampling_request();
        request.params = params.clone();
        let mut sampler = rig.sampler(&request).unwrap();
        let mut native = StandardChain::new(params.clone());
        let (mut ours, mut theirs) = (Row::new(&[Token(0)], params.seed), Row::new(&[Token(0)], params.seed));
        for step in 0..50 {
            let logits = [0, 1, 2, 3, 4, 5].map(|i| ((i * 5 + step * 3) % 7) as f32 * 0.3);
            ours.load(&logits).unwrap();
            theirs.load(&logits).unwrap();
            let (a, b) = (drawn(&mut *sampler, &mut ours).unwrap(), drawn(&mut native, &mut theirs).unwrap());
            assert_eq!(a, b, "step {step} with {params:?}");
        }
    }
}

#[test]
fn a_request_may_name_its_samplers() {
    let rig = rig(&[
        ("sampler/10-a.wasm", &component("guests/misbehave-sampler")),
        ("sampler/20-b.wasm", &component("plugins/sampler-standard")),
    ]);
    let names: Vec<String> =
        rig.host.current().samplers(sampling_request().target()).iter().map(ToString::to_string).collect();
    assert_eq!(names, ["a", "b"]);
    let mut request = sampling_request();
    request.samplers = Some(vec!["b".to_owned()]);
    rig.sampler(&request).unwrap().sample(&mut row()).unwrap();
    assert_eq!((rig.calls("sampler", "a", "shaped"), rig.calls("sampler", "b", "planned")), (0.0, 1.0));
    request.samplers = Some(vec!["c".to_owned()]);
    let fault = rig.sampler(&request).err().unwrap();
    assert_eq!((fault.kind, fault.plugin.as_str()), (FaultKind::Unavailable, "c"));
}

#[test]
fn monitored_policies_enforce_nothing_and_record_differences() {
    let bad = component("guests/misbehave-auth");
    let limits = b"[policy]\nmode = \"monitor\"\n[settings]\nmax-tokens = 100";
    let rig = rig(&[
        ("auth/10-api-keys.wasm", &component("plugins/auth-api-keys")),
        ("auth/10-api-keys.toml", keys(&[("ann", "sk-ann")]).as_bytes()),
        ("auth/20-open.wasm", &bad),
        ("auth/20-open.toml", b"[policy]\nmode = \"monitor\""),
        ("validator/10-limits.wasm", &component("plugins/validator-limits")),
        ("validator/10-limits.toml", limits),
    ]);
    assert_eq!(refused(rig.authenticate(&caller(false, None))).map(|(status, _)| status), Some(401));
    assert_eq!((rig.calls("auth", "open", "allow"), rig.differences("auth", "open", "allow")), (1.0, 1.0));
    assert!(matches!(rig.validate(&generation_request(100)), ValidateOutcome::Accept));
    assert_eq!(rig.differences("validator", "limits", "refuse"), 0.0);
    assert!(matches!(rig.validate(&generation_request(101)), ValidateOutcome::Accept));
    assert_eq!(rig.differences("validator", "limits", "refuse"), 1.0);
    let status = rig.status("auth/20-open.wasm");
    assert_eq!((status.mode, status.health.unwrap().differences), (Mode::Monitor, [("allow", 1)].into()));
}

#[test]
fn what_a_monitored_auth_policy_would_change_is_counted_by_kind() {
    let guest = component("guests/misbehave-auth");
    let tells = format!("{}\n", behave("tell", "mode = \"monitor\""));
    let rig = rig(&[
        ("auth/10-api-keys.wasm", &component("plugins/auth-api-keys")),
        ("auth/10-api-keys.toml", keys(&[("ann", "sk-ann")]).as_bytes()),
        ("auth/20-open.wasm", &guest),
        ("auth/20-open.toml", b"[policy]\nmode = \"monitor\""),
        ("auth/30-closed.wasm", &guest),
        ("auth/30-closed.toml", tells.as_bytes()),
    ]);
    rig.authenticate(&caller(false, Some("sk-ann")));
    rig.authenticate(&caller(false, Some("sk-eve")));
    let differences = |file: &str| rig.status(file).health.unwrap().differences;
    assert_eq!(differences("auth/10-api-keys.wasm"), [].into());
    assert_eq!(differences("auth/20-open.wasm"), [("allow", 1), ("principal", 1)].into());
    assert_eq!(differences("auth/30-closed.wasm"), [("refuse", 1), ("status", 1)].into());
    rig.remove("auth/30-closed.wasm");
    assert_eq!(rig.differences("auth", "closed", "refuse"), 0.0, "its series are gone");
}

#[test]
fn an_instance_is_used_again_where_its_plugin_allows_it_but_not_after_a_fault() {
    // It panics where it finds what an earlier call has written.
    // Nothing else faults, however busy the machine is.
    let settings =
        |reuse: bool| format!("[policy]\ndeadline = \"5s\"\n[settings]\nbehave = \"remember\"\nreuse = {reuse}\n");
    let rig = rig(&[
        ("auth/10-a.wasm", &component("guests/misbehave-auth")),
        ("auth/10-a.toml", settings(true).as_bytes()),
        ("validator/10-v.wasm", &component("guests/misbehave-validator")),
        ("validator/10-v.toml", settings(true).as_bytes()),
    ]);
    for fresh in [true, false, true, false] {
        assert_eq!(matches!(rig.authenticate(&caller(true, None)), AuthOutcome::Allow(_)), fresh);
        assert_eq!(matches!(rig.validate(&generation_request(1)), ValidateOutcome::Accept), fresh);
    }
    rig.put("auth/10-a.toml", settings(false));
    for _ in 0..3 {
        assert!(
            matches!(rig.authenticate(&caller(true, None)), AuthOutcome::Allow(_)),
            "not allowed: always a fresh one"
        );
    }
}
