//! The policy on requests, and bad settings.
use super::*;
use camshaft_plugin::Priority;
use camshaft_plugin::auth::{Head, testing};

const ALICE: &str = "2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90"; // sha256("alice")
const BOB: &str = "81b637d8fcd2c6da6359e6963113a1170de795e4b725b84d1e0b4cfd9ec58ce9"; // sha256("bob")

fn policy(settings: serde_json::Value) -> Result<ApiKeys, String> {
    ApiKeys::new(serde_json::from_value(settings).map_err(|error| error.to_string())?)
}

fn two_keys(anonymous_loopback: bool) -> ApiKeys {
    policy(serde_json::json!({
        "anonymous-loopback": anonymous_loopback,
        "keys": [
            {"name": "a", "sha256": ALICE, "tenant": "red", "priority": "high", "weight": 2.5,
             "allowed-models": ["demo"], "requests-per-minute": 60, "cache-namespace": "shared"},
            {"name": "b", "sha256": BOB.to_uppercase(), "tenant": "blue"},
        ],
    }))
    .unwrap()
}

fn request(headers: &[(&str, &str)], loopback: bool) -> Request<'static> {
    let head = Head {
        method: "POST".to_owned(),
        path: "/v1/chat/completions".to_owned(),
        remote_address: if loopback { "127.0.0.1" } else { "192.0.2.1" }.to_owned(),
        loopback,
    };
    testing::request(head, headers)
}

fn tenant(headers: &[(&str, &str)]) -> Result<String, u16> {
    match two_keys(true).authenticate(&request(headers, true)) {
        Ok(Verdict::Allow(principal)) => Ok(principal.tenant),
        Ok(Verdict::Next) => Ok("next".to_owned()),
        Err(refusal) => {
            assert_eq!(refusal.code, "invalid_api_key");
            Err(refusal.status)
        }
    }
}

#[test]
fn knows_a_key_by_its_digest_in_either_header() {
    assert_eq!(tenant(&[("authorization", "Bearer alice")]), Ok("red".to_owned()));
    assert_eq!(tenant(&[("authorization", "bEARER  bob ")]), Ok("blue".to_owned()));
    assert_eq!(tenant(&[("x-api-key", "bob")]), Ok("blue".to_owned()));
}

#[test]
fn carries_every_setting_of_the_key_to_the_principal() {
    let request = request(&[("x-api-key", "alice")], false);
    let verdict = two_keys(false).authenticate(&request).unwrap();
    let Verdict::Allow(principal) = verdict else { panic!("not allowed: {verdict:?}") };
    assert_eq!(principal.name, "a");
    assert_eq!(principal.priority, Priority::HIGH);
    assert_eq!(principal.weight, 2.5);
    assert_eq!(principal.allowed_models, Some(vec!["demo".to_owned()]));
    assert_eq!(request.limits(), [("requests-per-minute".to_owned(), 60.0)]);
    assert_eq!(principal.cache_namespace.as_deref(), Some("shared"));
}

#[test]
fn refuses_a_wrong_or_malformed_credential_even_on_loopback() {
    for headers in [
        [("authorization", "Bearer mallory")],
        [("authorization", "alice")],
        [("authorization", "Basic alice")],
        [("authorization", "Bearer ")],
        [("authorization", "")],
        [("x-api-key", "mallory")],
        [("x-api-key", "")],
    ] {
        assert_eq!(tenant(&headers), Err(401), "{headers:?}");
    }
}

#[test]
fn refuses_two_values_of_one_credential_header() {
    assert_eq!(tenant(&[("authorization", "Bearer alice"), ("authorization", "Bearer bob")]), Err(401));
}

#[test]
fn a_wrong_authorization_is_not_made_good_by_a_right_x_api_key() {
    assert_eq!(tenant(&[("x-api-key", "alice"), ("authorization", "Bearer mallory")]), Err(401));
}

#[test]
fn lets_loopback_in_without_a_credential_only_where_configured() {
    assert_eq!(tenant(&[]), Ok("anonymous".to_owned()));
    assert_eq!(two_keys(true).authenticate(&request(&[], false)), Ok(Verdict::Next));
    assert_eq!(two_keys(false).authenticate(&request(&[], true)), Ok(Verdict::Next));
}

#[test]
fn regression_with_no_key_configured_loopback_callers_pass_with_whatever_key_their_client_sends() {
    let headers: [&[(&str, &str)]; 6] = [
        &[],
        &[("authorization", "Bearer sk-anything")],
        &[("authorization", "Bearer ")],
        &[("authorization", "Basic eDp5")],
        &[("x-api-key", "sk-anything")],
        &[("x-api-key", "")],
    ];
    let ask = |anonymous_loopback: bool, headers, loopback| {
        let settings = serde_json::json!({ "anonymous-loopback": anonymous_loopback });
        policy(settings).unwrap().authenticate(&request(headers, loopback))
    };
    for headers in headers {
        let verdict = ask(true, headers, true);
        let Ok(Verdict::Allow(principal)) = verdict else { panic!("{headers:?}: {verdict:?}") };
        assert_eq!(principal.tenant, "anonymous");
        // From elsewhere, or where loopback is no reason to trust, nothing changes.
        for (anonymous_loopback, loopback) in [(true, false), (false, true)] {
            let verdict = ask(anonymous_loopback, headers, loopback);
            let refused = verdict.is_err_and(|refusal| refusal.status == 401);
            assert_eq!(refused, !headers.is_empty(), "{headers:?}");
        }
    }
}

#[test]
fn bad_settings_are_refused_with_key_and_field() {
    let key = |change: serde_json::Value| {
        let mut entry = serde_json::json!({"name": "a", "sha256": ALICE, "tenant": "red"});
        for (field, value) in change.as_object().unwrap() {
            entry[field] = value.clone();
        }
        policy(serde_json::json!({"keys": [{"name": "b", "sha256": BOB, "tenant": "blue"}, entry]})).unwrap_err()
    };
    let check = |change: serde_json::Value, expected: &[&str]| {
        let error = key(change);
        assert!(expected.iter().all(|part| error.contains(part)), "{error}");
    };
    check(serde_json::json!({"sha256": "12"}), &["\"a\"", "sha256", "64 hexadecimal"]);
    check(serde_json::json!({"sha256": ALICE.replace('2', "g")}), &["\"a\"", "sha256"]);
    check(serde_json::json!({"sha256": format!("+{}", &ALICE[1..])}), &["\"a\"", "sha256"]);
    check(serde_json::json!({"sha256": BOB}), &["\"a\"", "sha256", "\"b\""]);
    check(serde_json::json!({"name": "b"}), &["\"b\"", "twice"]);
    check(serde_json::json!({"name": " "}), &["keys[1].name", "empty"]);
    check(serde_json::json!({"tenant": ""}), &["\"a\"", "tenant", "empty"]);
    check(serde_json::json!({"tenant": "anonymous"}), &["\"a\"", "tenant", "without a key"]);
    check(serde_json::json!({"tenant": "t".repeat(129)}), &["\"a\"", "tenant", "128"]);
    for weight in [0.0, -1.0, 1000.5] {
        check(serde_json::json!({"weight": weight}), &["\"a\"", "weight", "1000"]);
    }
    for share in [0.0, -0.5, 1.001] {
        check(serde_json::json!({"queue-share": share}), &["\"a\"", "queue-share", "at most 1"]);
    }
    check(serde_json::json!({"colour": "red"}), &["unknown field `colour`"]);
}

#[test]
fn bounds_the_number_of_keys() {
    let keys = |n: usize| {
        let entries: Vec<_> = (0..n)
            .map(|i| serde_json::json!({"name": format!("k{i}"), "sha256": format!("{i:064x}"), "tenant": "t"}))
            .collect();
        policy(serde_json::json!({ "keys": entries }))
    };
    assert!(keys(1024).is_ok());
    assert!(keys(1025).unwrap_err().contains("at most 1024"));
}
