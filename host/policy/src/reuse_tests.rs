use camshaft_core::policy::{Refusal, Reply};

use super::*;

fn call(key: &str) -> AuthRequest {
    AuthRequest {
        method: "POST".to_owned(),
        path: "/v1/chat/completions".to_owned(),
        query: "a=1".to_owned(),
        headers: vec![("authorization".to_owned(), key.as_bytes().to_vec()), ("x-b".to_owned(), b"2".to_vec())],
        remote_address: "192.0.2.7".to_owned(),
        ..AuthRequest::default()
    }
}

fn allow(tenant: &str) -> Authentication {
    AuthOutcome::Allow(Principal { tenant: tenant.into(), ..Principal::anonymous() }).into()
}

fn refuse() -> Authentication {
    let (code, message) = ("no".to_owned(), "no".to_owned());
    AuthOutcome::Refuse(Refusal { status: 401, code, message, param: None }).into()
}

fn reuse(ms: u64, headers: &[&str]) -> Reuse {
    Reuse::new(ms, headers.iter().map(|name| (*name).to_owned()).collect()).unwrap()
}

fn tenant(found: Option<Authentication>) -> Option<String> {
    match found?.outcome {
        AuthOutcome::Allow(principal) => Some(principal.tenant.to_string()),
        _ => None,
    }
}

fn keep(verdicts: &Verdicts, call: &AuthRequest, reuse: &Reuse, verdict: &Authentication, now: Instant) {
    verdicts.keep(call, (reuse, verdict), now, || true);
}

#[test]
fn a_verdict_is_used_again_for_an_equal_call_until_its_time_is_over() {
    let (verdicts, now) = (Verdicts::default(), Instant::now());
    keep(&verdicts, &call("k"), &reuse(100, &["x-b"]), &allow("t"), now);
    let again = AuthRequest { id: "another".to_owned(), ..call("k") };
    assert_eq!(tenant(verdicts.find(&again, now + Duration::from_millis(99))), Some("t".to_owned()));
    assert!(verdicts.find(&again, now + Duration::from_millis(100)).is_none());
    verdicts.clear();
    assert!(verdicts.find(&again, now).is_none());
}

#[test]
fn a_call_that_differs_in_anything_is_another() {
    let (verdicts, now) = (Verdicts::default(), Instant::now());
    keep(&verdicts, &call("k"), &reuse(100, &["x-b"]), &allow("t"), now);
    let header = |name: &str, value: &[u8]| {
        let mut call = call("k");
        call.headers.push((name.to_owned(), value.to_vec()));
        call
    };
    let with = |change: fn(&mut AuthRequest)| {
        let mut call = call("k");
        change(&mut call);
        call
    };
    for other in [
        call("l"),
        with(|call| call.method = "GET".to_owned()),
        with(|call| call.path.push('x')),
        with(|call| call.route.push('x')),
        with(|call| call.query = "a=2".to_owned()),
        with(|call| call.remote_address = "192.0.2.8".to_owned()),
        with(|call| call.loopback = true),
        with(|call| call.peer_certificates = Arc::new(vec![vec![1]])),
        with(|call| call.peer_certificates = Arc::new(vec![Vec::new()])),
        with(|call| drop(call.headers.pop())),
        header("x-b", b"3"),
        header("authorization", b"k"),
        // The bytes of two parts stay apart.
        with(|call| (call.path, call.query) = ("/v1/chat/completionsa".to_owned(), "=1".to_owned())),
    ] {
        assert!(verdicts.find(&other, now).is_none(), "{other:?}");
    }
    assert!(verdicts.find(&header("x-c", b"1"), now).is_some(), "the policy did not name it");
}

#[test]
fn regression_credentials_count_whether_or_not_the_policy_names_them() {
    let (verdicts, now) = (Verdicts::default(), Instant::now());
    for name in CREDENTIALS {
        let call = |value: &str| AuthRequest {
            headers: vec![(name.to_owned(), value.as_bytes().to_vec())],
            ..AuthRequest::default()
        };
        keep(&verdicts, &call("mine"), &reuse(1000, &[]), &allow("mine"), now);
        assert_eq!(tenant(verdicts.find(&call("mine"), now)), Some("mine".to_owned()));
        assert!(verdicts.find(&call("theirs"), now).is_none(), "{name}");
        assert!(verdicts.find(&AuthRequest::default(), now).is_none(), "{name}");
    }
}

#[test]
fn the_last_verdict_on_a_call_is_the_one_that_counts() {
    let (verdicts, now) = (Verdicts::default(), Instant::now());
    keep(&verdicts, &call("k"), &reuse(1000, &[]), &allow("t"), now);
    keep(&verdicts, &call("k"), &reuse(1000, &[]), &refuse(), now);
    assert!(matches!(verdicts.find(&call("k"), now).unwrap().outcome, AuthOutcome::Refuse(_)));
    keep(&verdicts, &call("k"), &reuse(1000, &[]), &allow("u"), now);
    assert_eq!(tenant(verdicts.find(&call("k"), now)), Some("u".to_owned()));
    let fault = camshaft_core::policy::Fault {
        plugin: "p".into(),
        kind: camshaft_core::policy::FaultKind::Trap,
        detail: String::new(),
    };
    keep(&verdicts, &call("f"), &reuse(1000, &[]), &AuthOutcome::Fault(fault).into(), now);
    assert!(verdicts.find(&call("f"), now).is_none());
}

#[test]
fn refused_callers_drive_out_none_that_are_allowed() {
    let (verdicts, now) = (Verdicts::default(), Instant::now());
    keep(&verdicts, &call("good"), &reuse(1000, &[]), &allow("t"), now);
    for number in 0..REFUSED.entries + 10 {
        keep(&verdicts, &call(&format!("bad{number}")), &reuse(1000, &[]), &refuse(), now);
    }
    assert!(verdicts.find(&call("good"), now).is_some());
    assert!(verdicts.find(&call("bad9"), now).is_none() && verdicts.find(&call("bad10"), now).is_some());
    let kept = verdicts.kept();
    assert_eq!((kept.refused.entries.len(), kept.refused.order.len()), (REFUSED.entries, REFUSED.entries));
}

#[test]
fn entries_and_their_bytes_are_bounded() {
    let (verdicts, now) = (Verdicts::default(), Instant::now());
    let mut large = Principal::anonymous();
    large.allowed_models = Some(vec!["m".repeat(1000); 60]);
    for number in 0..100 {
        let verdict = AuthOutcome::Allow(large.clone()).into();
        keep(&verdicts, &call(&format!("k{number}")), &reuse(1000, &[]), &verdict, now);
    }
    let kept = verdicts.kept();
    assert!(kept.allowed.bytes <= ALLOWED.bytes && kept.allowed.entries.len() > 50, "{}", kept.allowed.entries.len());
    let held: usize = kept.allowed.entries.values().map(|entry| entry.bytes).sum();
    assert_eq!((held, kept.allowed.order.len()), (kept.allowed.bytes, kept.allowed.entries.len()));
    drop(kept);
    for number in 0..ALLOWED.entries + 1 {
        keep(&verdicts, &call(&format!("s{number}")), &reuse(1000, &[]), &allow("t"), now);
    }
    assert!(verdicts.find(&call("s0"), now).is_none() && verdicts.find(&call("s1"), now).is_some());
    large.allowed_models = Some(vec!["m".repeat(1000); 64]);
    keep(&verdicts, &call("huge"), &reuse(1000, &[]), &AuthOutcome::Allow(large).into(), now);
    assert!(verdicts.find(&call("huge"), now).is_none());
}

#[test]
fn lists_of_headers_are_bounded_and_normal() {
    let (verdicts, now) = (Verdicts::default(), Instant::now());
    for number in 0..=SELECTIONS {
        keep(&verdicts, &call("k"), &reuse(1000, &[&format!("x-{number}")]), &allow(&format!("t{number}")), now);
    }
    assert_eq!(verdicts.kept().selections.len(), SELECTIONS);
    assert_eq!(reuse(1, &["b", "a", "b"]).headers, reuse(1, &["a", "b", "cookie"]).headers);
}

#[test]
fn times_and_names_are_taken_at_their_bounds_and_not_past_them() {
    let new = |ms, headers: Vec<String>| Reuse::new(ms, headers);
    new(600_000, vec!["x".repeat(64); 16]).unwrap();
    assert!(new(600_001, Vec::new()).unwrap_err().contains("600001 ms, over 600000"));
    assert!(new(1, vec!["x".to_owned(); 17]).unwrap_err().contains("17 headers, over 16"));
    for name in [String::new(), "x".repeat(65), "X-A".to_owned(), "x a".to_owned()] {
        assert!(new(1, vec![name]).unwrap_err().contains("lower-case"));
    }
    let (verdicts, now) = (Verdicts::default(), Instant::now());
    keep(&verdicts, &call("k"), &reuse(0, &[]), &allow("t"), now);
    assert!(verdicts.find(&call("k"), now).is_none());
    let mut answer = allow("t");
    answer.reply = Reply::default();
    answer.reply.set("x-a", "1".to_owned()).unwrap();
    keep(&verdicts, &call("k"), &reuse(1, &[]), &answer, now);
    assert_eq!(verdicts.find(&call("k"), now).unwrap().reply.headers().len(), 1, "with all that was said");
}

#[test]
fn regression_a_verdict_made_with_what_holds_no_more_is_not_kept() {
    let (verdicts, now) = (Verdicts::default(), Instant::now());
    verdicts.keep(&call("k"), (&reuse(1000, &[]), &allow("t")), now, || false);
    assert!(verdicts.find(&call("k"), now).is_none());
    keep(&verdicts, &call("k"), &reuse(1000, &[]), &allow("t"), now);
    assert!(verdicts.find(&call("k"), now).is_some());
}
