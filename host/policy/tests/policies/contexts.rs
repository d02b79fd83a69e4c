//! What policies say beside their verdicts, and what they may ask: attributes, headers, digests, verdicts that are used again.
use std::sync::Arc;

use camshaft_core::answering::wait;
use camshaft_core::filter::{FilterHook, FilteringRequest, Piece, TextWindow};
use camshaft_core::ids::RequestId;
use camshaft_core::policy::Endpoint;
use camshaft_core::policy::{
    Attributes, AuthOutcome, AuthRequest, Authentication, Marks, Policies, Priority, RequestContext, ValidateOutcome,
    ValidateRequest,
};

use crate::rig::{Rig, behave, caller, component, generation_request, rig, sampling_request};

const WELL: &str = "[settings]\nbehave = \"well\"\n";

fn auth(settings: &str) -> Rig {
    rig(&[("auth/10-a.wasm", &component("guests/misbehave-auth")), ("auth/10-a.toml", settings.as_bytes())])
}

/// A call from elsewhere with these headers.
fn call(headers: &[(&str, &str)]) -> AuthRequest {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect();
    AuthRequest { headers, ..Arc::unwrap_or_clone(caller(false, None)) }
}

fn ask(rig: &Rig, call: AuthRequest) -> Authentication {
    wait(rig.host.current().authenticate(&Arc::new(call)))
}

fn tenant(answer: &Authentication) -> &str {
    match &answer.outcome {
        AuthOutcome::Allow(principal) => principal.tenant.as_str(),
        outcome => panic!("{outcome:?}"),
    }
}

fn attributes(pairs: &[(&str, &str)]) -> Arc<Attributes> {
    let mut attributes = Attributes::default();
    pairs.iter().for_each(|(name, value)| attributes.set(name, (*value).to_owned()).unwrap());
    Arc::new(attributes)
}

#[test]
fn what_auth_notes_reaches_the_validators_and_what_they_note_comes_out() {
    let rig = rig(&[
        ("auth/10-a.wasm", &component("guests/misbehave-auth")),
        ("auth/10-a.toml", WELL.as_bytes()),
        ("validator/10-v.wasm", &component("guests/misbehave-validator")),
        ("validator/10-v.toml", WELL.as_bytes()),
    ]);
    let AuthOutcome::Allow(principal) = ask(&rig, call(&[("x-attribute", "tier=gold")])).outcome else { panic!() };
    assert_eq!(principal.attributes, attributes(&[("tier", "gold")]));
    let request = ValidateRequest { marks: principal.marks(), ..Arc::unwrap_or_clone(generation_request(5)) };
    let validation = wait(rig.host.current().validate(0, &Arc::new(request)));
    assert!(matches!(validation.outcome, ValidateOutcome::Accept));
    // It notes what it saw, and makes such requests less urgent.
    let wanted = Marks { attributes: attributes(&[("tier", "gold"), ("seen", "gold")]), priority: Priority::Low };
    assert_eq!(validation.marks, Some(wanted));
    let validation = wait(rig.host.current().validate(0, &generation_request(5)));
    assert_eq!(validation.marks, None, "it has set nothing");
}

#[test]
fn attributes_out_of_bounds_are_told_to_the_policy() {
    let rig = auth(WELL);
    for (header, word) in [
        (format!("tier={}", "x".repeat(257)), "over 256"),
        ("Tier=gold".to_owned(), "a-z"),
        (format!("{}=gold", "x".repeat(65)), "a-z"),
    ] {
        match ask(&rig, call(&[("x-attribute", &header)])).outcome {
            AuthOutcome::Refuse(refusal) => assert!(refusal.message.contains(word), "{}", refusal.message),
            outcome => panic!("{outcome:?}"),
        }
    }
}

#[test]
fn a_policy_says_something_of_the_response() {
    let rig = auth(WELL);
    let answer = ask(&rig, call(&[("x-reply", "x-tier=gold")]));
    assert_eq!(answer.reply.headers(), [("x-tier".to_owned(), "gold".to_owned())]);
    let answer = ask(&rig, call(&[("x-reply", "deprecation=true"), ("x-refuse-ms", "1001")]));
    assert!(matches!(&answer.outcome, AuthOutcome::Refuse(refusal) if refusal.status == 429));
    assert_eq!((answer.reply.headers().len(), answer.reply.retry_seconds()), (1, Some(2)));
}

#[test]
fn a_digest_is_for_policies_whose_settings_ask_for_it() {
    let rig = auth(WELL);
    let with_digest = || AuthRequest { body_sha256: Some([7; 32]), ..call(&[("x-digest", "1")]) };
    assert!(!rig.host.current().wants_body_digest());
    assert!(matches!(ask(&rig, with_digest()).outcome, AuthOutcome::Refuse(_)));
    rig.put("auth/10-a.toml", format!("[policy]\nbody-digest = true\n{WELL}"));
    assert!(rig.host.current().wants_body_digest());
    assert_eq!(ask(&rig, with_digest()).reply.headers()[0].1, "07".repeat(32));
}

#[test]
fn a_verdict_is_used_again_for_equal_calls_and_not_across_a_swap() {
    let rig = auth(WELL);
    let of = |tenant: &str| call(&[("x-tenant", tenant), ("x-reuse-ms", "600000"), ("x-reply", "x-a=1")]);
    for (asked, reused) in [(1.0, 0.0), (1.0, 1.0), (1.0, 2.0)] {
        let answer = ask(&rig, of("ann"));
        assert_eq!((tenant(&answer), answer.reply.headers().len()), ("ann", 1));
        assert_eq!((rig.calls("auth", "a", "allow"), rig.calls("auth", "a", "reused")), (asked, reused));
    }
    assert_eq!(tenant(&ask(&rig, of("bob"))), "bob", "no tenant gets another's");
    let elsewhere = AuthRequest { remote_address: "192.0.2.99".to_owned(), ..of("ann") };
    assert_eq!(tenant(&ask(&rig, elsewhere)), "ann");
    assert_eq!((rig.calls("auth", "a", "allow"), rig.calls("auth", "a", "reused")), (3.0, 2.0));
    // The same file with other settings is another version.
    rig.put("auth/10-a.toml", format!("[policy]\ndeadline = \"6ms\"\n{WELL}"));
    assert_eq!(tenant(&ask(&rig, of("ann"))), "ann");
    assert_eq!((rig.calls("auth", "a", "allow"), rig.calls("auth", "a", "reused")), (4.0, 2.0));
    // And going back to what it was brings nothing back.
    rig.put("auth/10-a.toml", WELL);
    ask(&rig, of("ann"));
    assert_eq!((rig.calls("auth", "a", "allow"), rig.calls("auth", "a", "reused")), (5.0, 2.0));
}

#[test]
fn a_thousand_callers_without_a_place_do_not_take_that_of_one_who_has_it() {
    let rig = auth(WELL);
    let of = |key: &str, more: (&str, &str)| call(&[("authorization", key), ("x-reuse-ms", "600000"), more]);
    ask(&rig, of("ann", ("x-a", "1")));
    for number in 0..1100 {
        ask(&rig, of(&format!("guess-{number}"), ("x-refuse-ms", "1")));
    }
    assert!(rig.calls("auth", "a", "refuse") > 1000.0);
    ask(&rig, of("ann", ("x-a", "1")));
    assert_eq!((rig.calls("auth", "a", "allow"), rig.calls("auth", "a", "reused")), (1.0, 1.0));
}

#[test]
fn a_verdict_on_a_body_is_not_used_for_another() {
    let rig = auth(&format!("[policy]\nbody-digest = true\n{WELL}"));
    for number in 0..3_u8 {
        let call = call(&[("x-digest", "1"), ("x-reuse-ms", "600000")]);
        let answer = ask(&rig, AuthRequest { body_sha256: Some([number; 32]), ..call });
        assert_eq!(answer.reply.headers()[0].1, format!("{number:02x}").repeat(32));
    }
    assert_eq!(rig.calls("auth", "a", "reused"), 0.0);
}

fn context() -> RequestContext {
    RequestContext { attributes: attributes(&[("tier", "gold")]), body: Some(r#"{"max_tokens":6}"#.into()) }
}

#[test]
fn a_filter_may_ask_about_its_request_and_about_its_tokens() {
    let none = rig(&[]);
    assert!(!none.host.current().keeps_bodies());
    let told = behave("tell", "");
    let rig =
        rig(&[("filter/10-f.wasm", &component("guests/misbehave-filter")), ("filter/10-f.toml", told.as_bytes())]);
    let set = rig.host.current();
    assert!(set.keeps_bodies());
    let (model, tenant, context) = ("demo".to_owned(), "t".into(), context());
    let request =
        FilteringRequest { request: RequestId(1), model, tenant, endpoint: Endpoint::Chat, choice: 0, context };
    let mut filters = FilterHook::open(&*rig.host, set.filter_chain(), &request).unwrap();
    assert!(filters[0].reads_logprobs());
    let piece = Piece { start: 6, fresh: 6, last: false, rewinds: 0, goes_on: false };
    let verdict = filters[0].check(piece, &mut TextWindow::default()).unwrap();
    // Of an empty text there are none.
    let camshaft_core::filter::FilterVerdict::Refuse(refusal) = verdict else { panic!("{verdict:?}") };
    assert_eq!(refusal.message, "demo t 0 false Some(\"gold\") Some(\"6\") ");
}

#[test]
fn requests_are_kept_only_for_policies_that_read_them() {
    let settings = behave("tell", "");
    let rig = rig(&[
        ("sampler/10-s.wasm", &component("plugins/sampler-standard")),
        ("filter/10-f.wasm", &component("plugins/filter-mask-secrets")),
    ]);
    assert!(!rig.host.current().keeps_bodies());
    rig.put("sampler/20-t.toml", &settings);
    rig.put("sampler/20-t.wasm", component("guests/misbehave-sampler"));
    assert!(rig.host.current().keeps_bodies());
    let mut request = sampling_request();
    request.context = context();
    assert!(rig.sampler(&request).is_ok());
}
