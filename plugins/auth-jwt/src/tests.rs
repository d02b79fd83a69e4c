//! Tokens that are taken, and all that are not.
use std::sync::LazyLock;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use camshaft_plugin::Priority;
use camshaft_plugin::auth::{Head, testing};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{self, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RsaKeyPair, RsaPublicKeyComponents};
use serde_json::{Value, json};

use super::*;

/// Made for the tests, and used nowhere else.
const RSA_KEY: &[u8] = include_bytes!("../../../tests/keys/rsa-2048.pk8");
const SECRET: &[u8] = b"a secret of at least 32 bytes, no more";
const NOW: f64 = 1_000_000.0;

struct Pairs {
    rsa: RsaKeyPair,
    p256: EcdsaKeyPair,
    ed25519: Ed25519KeyPair,
}

static PAIRS: LazyLock<Pairs> = LazyLock::new(|| {
    let (random, curve) = (SystemRandom::new(), &signature::ECDSA_P256_SHA256_FIXED_SIGNING);
    let p256 = EcdsaKeyPair::generate_pkcs8(curve, &random).unwrap();
    Pairs {
        rsa: RsaKeyPair::from_pkcs8(RSA_KEY).unwrap(),
        p256: EcdsaKeyPair::from_pkcs8(curve, p256.as_ref(), &random).unwrap(),
        ed25519: Ed25519KeyPair::from_pkcs8(Ed25519KeyPair::generate_pkcs8(&random).unwrap().as_ref()).unwrap(),
    }
});

/// What the host does.
fn natively(key: &Key, signed: &[u8], signature: &[u8]) -> Result<bool, String> {
    let verify = |algorithm: &'static dyn signature::VerificationAlgorithm, key: &[u8]| {
        signature::UnparsedPublicKey::new(algorithm, key).verify(signed, signature).is_ok()
    };
    Ok(match key {
        Key::Secret(key) => hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, key), signed, signature).is_ok(),
        Key::Rsa { n, e } => {
            RsaPublicKeyComponents { n, e }.verify(&signature::RSA_PKCS1_2048_8192_SHA256, signed, signature).is_ok()
        }
        Key::P256 { x, y } => verify(&signature::ECDSA_P256_SHA256_FIXED, &[&[4], x.as_slice(), y].concat()),
        Key::Ed25519(key) => verify(&signature::ED25519, key),
    })
}

fn jwks() -> Value {
    let Pairs { rsa, p256, ed25519 } = &*PAIRS;
    let public: RsaPublicKeyComponents<Vec<u8>> = rsa.public().into();
    let (x, y) = p256.public_key().as_ref()[1..].split_at(32);
    json!({"keys": [
        {"kty": "RSA", "kid": "r", "use": "sig", "alg": "RS256", "n": BASE64.encode(public.n), "e": BASE64.encode(public.e)},
        {"kty": "EC", "kid": "e", "crv": "P-256", "x": BASE64.encode(x), "y": BASE64.encode(y), "key_ops": ["verify"]},
        {"kty": "OKP", "kid": "o", "crv": "Ed25519", "x": BASE64.encode(ed25519.public_key().as_ref())},
        {"kty": "oct", "kid": "s", "k": BASE64.encode("public to all who can read the set")},
        {"kty": "unheard of", "kid": "u"},
    ]})
}

fn settings() -> Value {
    json!({
        "jwks": "jwks", "secret": "key", "issuers": ["idp"], "audiences": ["camshaft", "other"],
        "claims": {"priority": "tier", "models": "models", "requests-per-minute": "/limits/rpm"},
        "priorities": {"gold": "high", "free": "low"},
        "limits": {"requests-per-minute": 60, "concurrent-requests": 4},
        "admin": {"claim": "/realm/roles", "value": "root", "tenant": "operators"},
    })
}

fn policy(settings: Value) -> Jwt {
    let settings: Settings = serde_json::from_value(settings).unwrap();
    settings.check().unwrap();
    let keys = keys::of_set(jwks().to_string().as_bytes()).unwrap();
    let secret = settings.secret.is_some().then(|| secret_key(SECRET.to_vec()).unwrap());
    Jwt { settings, keys, version: Some(1), secret }
}

fn claims() -> Value {
    json!({"sub": "ann", "tenant": "blue", "iss": "idp", "aud": ["x", "camshaft"], "exp": NOW + 100.0})
}

/// The claims with these instead; `null` removes one.
#[allow(clippy::needless_pass_by_value, reason = "claims are written where they are passed")]
fn with(changes: Value) -> Value {
    let mut claims = claims();
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(claims.as_object_mut().unwrap().remove(name)),
            value => claims[name] = value.clone(),
        }
    }
    claims
}

fn sign(alg: &str, signed: &[u8]) -> Vec<u8> {
    let Pairs { rsa, p256, ed25519 } = &*PAIRS;
    match alg {
        "RS256" => {
            let mut made = vec![0; rsa.public().modulus_len()];
            rsa.sign(&signature::RSA_PKCS1_SHA256, &SystemRandom::new(), signed, &mut made).unwrap();
            made
        }
        "ES256" => p256.sign(&SystemRandom::new(), signed).unwrap().as_ref().to_vec(),
        "EdDSA" => ed25519.sign(signed).as_ref().to_vec(),
        _ => hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, SECRET), signed).as_ref().to_vec(),
    }
}

fn token_of(header: &Value, payload: &[u8], sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let signed = format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(payload));
    let made = sign(signed.as_bytes());
    format!("{signed}.{}", BASE64.encode(made))
}

fn token(alg: &str, kid: Option<&str>, claims: &Value) -> String {
    let mut header = json!({"alg": alg, "typ": "JWT"});
    if let Some(kid) = kid {
        header["kid"] = kid.into();
    }
    token_of(&header, claims.to_string().as_bytes(), |signed| sign(alg, signed))
}

fn request(headers: &[(&str, &str)]) -> Request<'static> {
    let (method, path) = ("POST".to_owned(), "/v1/chat/completions".to_owned());
    testing::request(Head { method, path, remote_address: "192.0.2.1".to_owned(), loopback: false }, headers)
}

fn decided(policy: &Jwt, token: &str) -> Result<Option<(Principal, Limits)>, Reason> {
    policy.decide(&request(&[("authorization", &format!("Bearer {token}"))]), NOW, natively)
}

fn tenant(policy: &Jwt, token: &str) -> Result<String, Reason> {
    decided(policy, token).map(|found| found.map_or_else(|| "next".to_owned(), |(principal, _)| principal.tenant))
}

const KEYS: [(&str, Option<&str>); 7] = [
    ("RS256", Some("r")),
    ("ES256", Some("e")),
    ("EdDSA", Some("o")),
    ("RS256", None),
    ("HS256", None),
    ("HS256", Some("any")),
    ("EdDSA", None),
];

#[test]
fn takes_tokens_of_each_algorithm() {
    let policy = policy(settings());
    for (alg, kid) in KEYS {
        assert_eq!(tenant(&policy, &token(alg, kid, &claims())).as_deref(), Ok("blue"), "{alg} {kid:?}");
    }
}

#[test]
fn maps_claims_to_the_caller() {
    let policy = policy(settings());
    let of = |changes: Value| decided(&policy, &token("HS256", None, &with(changes))).unwrap().unwrap();
    let (principal, limits) = of(json!({"tier": "gold", "models": ["demo"], "limits": {"rpm": 7}}));
    assert_eq!((principal.name.as_str(), principal.priority, principal.weight), ("ann", Priority::HIGH, 1.0));
    assert_eq!(principal.allowed_models, Some(vec!["demo".to_owned()]));
    assert_eq!((limits.requests_per_minute, limits.concurrent_requests), (Some(7), Some(4)));
    let (principal, limits) = of(json!({"tier": "unheard of"}));
    assert_eq!((principal.priority, principal.allowed_models), (Priority::NORMAL, None));
    assert_eq!(limits.requests_per_minute, Some(60));
    for roles in [json!("root"), json!(["a", "root"])] {
        assert_eq!(of(json!({"realm": {"roles": roles}})).0.tenant, "operators");
    }
    for roles in [json!("roots"), json!([["root"]]), json!({"root": true})] {
        assert_eq!(of(json!({"realm": {"roles": roles}})).0.tenant, "blue");
    }
}

#[test]
fn refuses_tokens_by_the_class_of_the_reason() {
    let policy = policy(settings());
    let signed = |claims: &Value| token("ES256", Some("e"), claims);
    let valid = signed(&claims());
    let (head, signature) = valid.rsplit_once('.').unwrap();
    let other = token("ES256", Some("e"), &with(json!({"sub": "eve"})));
    let (_, of_other) = other.rsplit_once('.').unwrap();
    let mut flipped = BASE64.decode(signature).unwrap();
    flipped[0] ^= 1;
    let flipped = format!("{head}.{}", BASE64.encode(flipped));
    let header = |header: Value| token_of(&header, claims().to_string().as_bytes(), |signed| sign("ES256", signed));
    let payload = |payload: &[u8]| token_of(&json!({"alg": "EdDSA"}), payload, |signed| sign("EdDSA", signed));
    let changed = |changes: Value| signed(&with(changes));
    use Reason::*;
    for (what, token, reason) in [
        ("no signature", format!("{head}."), Signature),
        ("the signature of another", format!("{head}.{of_other}"), Signature),
        ("a flipped bit", flipped, Signature),
        ("another key's name", token("ES256", Some("r"), &claims()), UnknownKey),
        ("an unknown key's name", token("ES256", Some("x"), &claims()), UnknownKey),
        ("alg none", token_of(&json!({"alg": "none"}), b"{}", |_| Vec::new()), Algorithm),
        ("alg none with a signature", header(json!({"alg": "none"})), Algorithm),
        ("alg in other letters", header(json!({"alg": "es256"})), Algorithm),
        ("an algorithm of another size", header(json!({"alg": "RS512"})), Algorithm),
        ("no alg", header(json!({"kid": "e"})), Malformed),
        (
            "alg twice",
            token_of(&json!(0), b"", |_| vec![]).replacen("MA", &BASE64.encode(br#"{"alg":"ES256","alg":"HS256"}"#), 1),
            Malformed,
        ),
        ("extensions", header(json!({"alg": "ES256", "kid": "e", "crit": ["exp"]})), Malformed),
        ("a header that is no JSON", format!("AAAA.{}.{signature}", BASE64.encode("{}")), Malformed),
        ("base64 with padding", format!("{head}=.{signature}"), Malformed),
        ("standard base64", format!("{head}.{}", "+/+/"), Malformed),
        ("claims that are no JSON", payload(b"{"), Malformed),
        ("claims that are no object", payload(b"[]"), Malformed),
        ("nothing but dots", "..".to_owned(), Malformed),
        ("no exp", changed(json!({"exp": null})), MissingClaim),
        ("exp that is text", changed(json!({"exp": "later"})), InvalidClaim),
        ("exp now, past the leeway", changed(json!({"exp": NOW - 60.0})), Expired),
        ("nbf", changed(json!({"nbf": NOW + 61.0})), NotYet),
        ("iat", changed(json!({"iat": NOW + 61.0})), NotYet),
        ("another issuer", changed(json!({"iss": "idp2"})), Issuer),
        ("no issuer", changed(json!({"iss": null})), MissingClaim),
        ("another audience", changed(json!({"aud": ["x"]})), Audience),
        ("no audience", changed(json!({"aud": null})), MissingClaim),
        ("no tenant", changed(json!({"tenant": null})), MissingClaim),
        ("no name", changed(json!({"sub": null})), MissingClaim),
        ("an empty tenant", changed(json!({"tenant": ""})), InvalidClaim),
        ("a long tenant", changed(json!({"tenant": "t".repeat(129)})), InvalidClaim),
        ("a tenant that is a number", changed(json!({"tenant": 5})), InvalidClaim),
        ("the operators' tenant", changed(json!({"tenant": "operators"})), InvalidClaim),
        ("nobody's tenant", changed(json!({"tenant": "anonymous"})), InvalidClaim),
        ("models that are no list", changed(json!({"models": "demo"})), InvalidClaim),
        ("a limit below 0", changed(json!({"limits": {"rpm": -1}})), InvalidClaim),
    ] {
        assert_eq!(tenant(&policy, &token), Err(reason), "{what}: {token}");
    }
    for (what, changes) in [
        ("exp in the leeway", json!({"exp": NOW - 59.0})),
        ("nbf in the leeway", json!({"nbf": NOW + 60.0, "iat": NOW + 60.0})),
        ("one audience", json!({"aud": "other"})),
        ("a tenant at the bound", json!({"tenant": "t".repeat(128)})),
    ] {
        assert!(decided(&policy, &changed(changes)).is_ok(), "{what}");
    }
}

#[test]
fn a_public_key_never_serves_as_a_secret() {
    let public: RsaPublicKeyComponents<Vec<u8>> = PAIRS.rsa.public().into();
    let set = jwks();
    let without = policy(json!({"jwks": "jwks"}));
    let both = policy(settings());
    let forms = [public.n.clone(), set["keys"][0]["n"].as_str().unwrap().into(), set["keys"][0].to_string().into()];
    for form in forms.into_iter().chain([b"public to all who can read the set".to_vec()]) {
        let hmac = |signed: &[u8]| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &form), signed).as_ref().to_vec();
        for kid in ["r", "s"] {
            let forged = token_of(&json!({"alg": "HS256", "kid": kid}), claims().to_string().as_bytes(), hmac);
            assert_eq!(tenant(&without, &forged), Err(Reason::UnknownKey));
            assert_eq!(tenant(&both, &forged), Err(Reason::Signature));
        }
    }
    // The name of a key of one kind does not make it one of another.
    assert_eq!(tenant(&both, &token("RS256", Some("e"), &claims())), Err(Reason::UnknownKey));
}

#[test]
fn takes_tokens_at_the_bound_and_none_past_it() {
    let policy = policy(settings());
    let of = |padding: usize| token("HS256", None, &with(json!({"x": "y".repeat(padding)})));
    let fits = (0..20_000).rev().find(|&padding| padding * 4 / 3 + 250 < token::TOKEN_BYTES).unwrap();
    let fitting = (fits..).map(of).take_while(|token| token.len() <= token::TOKEN_BYTES).last().unwrap();
    assert!(decided(&policy, &fitting).is_ok(), "{} bytes", fitting.len());
    let over = of(12_400);
    assert!(over.len() > token::TOKEN_BYTES);
    assert_eq!(decided(&policy, &over), Err(Reason::TooLarge));
    assert_eq!(decided(&policy, &format!("{}..", "a".repeat(64 << 10))), Err(Reason::TooLarge));
}

#[test]
fn leaves_to_the_next_policy_what_is_no_token() {
    let policy = policy(settings());
    let ask = |headers: &[(&str, &str)]| policy.decide(&request(headers), NOW, natively).map(|found| found.is_some());
    let valid = format!("bEaReR  {}", token("HS256", None, &claims()));
    assert_eq!(ask(&[("authorization", &valid)]), Ok(true));
    for other in ["Bearer sk-key", "Bearer a.b", "Bearer a.b.c.d", "Basic YTpi", "Bearer", ""] {
        assert_eq!(ask(&[("authorization", other)]), Ok(false), "{other}");
    }
    assert_eq!(ask(&[("x-api-key", "a.b.c")]), Ok(false));
    assert_eq!(ask(&[]), Ok(false));
    assert_eq!(ask(&[("authorization", &valid), ("authorization", &valid)]), Err(Reason::Malformed));
    let raw = request(&[]).with_value("authorization", b"Bearer \xff.\xff.\xff");
    assert_eq!(policy.decide(&raw, NOW, natively).map(|found| found.is_some()), Err(Reason::Malformed));
}

#[test]
fn reads_key_sets_and_passes_over_what_it_cannot_use() {
    let kids = |set: Value| {
        let keys = keys::of_set(set.to_string().as_bytes())?;
        Ok::<_, String>(keys.into_iter().map(|key| key.kid.unwrap_or_default()).collect::<Vec<_>>())
    };
    assert_eq!(kids(jwks()).unwrap(), ["r", "e", "o"]);
    let one = |change: &dyn Fn(&mut Value)| {
        let mut key = jwks()["keys"][0].clone();
        change(&mut key);
        kids(json!({"keys": [key]})).unwrap().len()
    };
    assert_eq!(one(&|_| {}), 1);
    assert_eq!(one(&|key| key["use"] = "enc".into()), 0);
    assert_eq!(one(&|key| key["alg"] = "RS512".into()), 0);
    assert_eq!(one(&|key| key["key_ops"] = json!(["sign"])), 0);
    assert_eq!(one(&|key| key["n"] = "not base64!".into()), 0);
    assert_eq!(one(&|key| key["x5c"] = json!(["..."])), 1);
    for wrong in [json!([]), json!({}), json!({"keys": 5})] {
        assert!(kids(wrong.clone()).unwrap_err().contains("no JWK set"), "{wrong}");
    }
    let many = |count| kids(json!({"keys": vec![json!({"kty": "x"}); count]}));
    assert!(many(256).is_ok());
    assert!(many(257).unwrap_err().contains("at most 256"));
}

#[test]
fn refuses_settings_that_cannot_be_meant() {
    let check =
        |settings: Value| serde_json::from_value::<Settings>(settings).map_err(|error| error.to_string())?.check();
    for (wrong, said) in [
        (json!({}), "where the keys are"),
        (json!({"jwks": "j", "leeway": 601}), "at most 600"),
        (json!({"jwks": "j", "algorithms": ["HS256"]}), "settings.secret"),
        (json!({"secret": "s", "algorithms": ["ES256"]}), "settings.jwks"),
        (json!({"jwks": "j", "algorithms": ["none"]}), "none"),
        (json!({"jwks": "j", "tenant": "anonymous"}), "anonymous"),
        (json!({"jwks": "j", "tenant": "a", "admin": {"claim": "c", "value": "v", "tenant": "a"}}), "settings.admin"),
        (json!({"jwks": "j", "issuer": "x"}), "issuer"),
    ] {
        assert!(check(wrong.clone()).unwrap_err().contains(said), "{wrong}");
    }
    assert!(check(json!({"jwks": "j", "leeway": 600})).is_ok());
    assert!(secret_key(vec![1; SECRET_MIN_BYTES]).is_ok());
    assert!(secret_key(vec![1; SECRET_MIN_BYTES - 1]).unwrap_err().contains("31 bytes"));
    let only_rsa = policy(json!({"jwks": "j", "secret": "s", "algorithms": ["RS256"], "tenant": "all"}));
    assert_eq!(tenant(&only_rsa, &token("HS256", None, &claims())), Err(Reason::Algorithm));
    assert_eq!(tenant(&only_rsa, &token("RS256", None, &with(json!({"tenant": null})))).as_deref(), Ok("all"));
}

#[test]
fn regression_one_odd_key_costs_none_of_the_others() {
    let mut set = jwks();
    let keys = set["keys"].as_array_mut().unwrap();
    keys.extend([
        json!({"kty": "RSA", "kid": 5}),
        json!({"kid": "no type"}),
        json!("no key"),
        json!({"kty": "EC", "key_ops": "verify"}),
    ]);
    let found = keys::of_set(set.to_string().as_bytes()).unwrap();
    assert_eq!(found, keys::of_set(jwks().to_string().as_bytes()).unwrap());
}

#[test]
fn regression_the_same_key_twice_is_one_key_and_two_of_a_name_are_none() {
    let mut policy = policy(settings());
    let twice = policy.keys.iter().find(|named| named.kid.as_deref() == Some("o")).unwrap().clone();
    policy.keys.push(twice);
    let signed = token("EdDSA", Some("o"), &claims());
    assert_eq!(tenant(&policy, &signed).as_deref(), Ok("blue"));
    policy.keys.push(NamedKey { kid: Some("o".to_owned()), key: Key::Ed25519(vec![7; 32]) });
    assert_eq!(tenant(&policy, &signed), Err(Reason::UnknownKey), "which one it is would be a guess");
}

#[test]
fn regression_names_of_models_at_the_bound_are_taken_and_one_past_it_refused() {
    let policy = policy(settings());
    let of = |characters: usize| {
        let models = json!(["demo", "é".repeat(characters)]);
        decided(&policy, &token("HS256", None, &with(json!({ "models": models })))).map(drop)
    };
    assert_eq!(of(256), Ok(()));
    assert_eq!(of(257), Err(Reason::InvalidClaim));
}

#[test]
fn regression_settings_that_no_request_could_use_are_refused() {
    let refused = |changes: &[(&str, Value)]| {
        let mut settings = settings();
        for (name, value) in changes {
            settings[*name] = value.clone();
        }
        serde_json::from_value::<Settings>(settings).unwrap().check().err().unwrap_or_default()
    };
    assert_eq!(refused(&[("tenant", json!("t".repeat(128)))]), "");
    assert!(refused(&[("tenant", json!("t".repeat(129)))]).starts_with("settings.tenant has 129 characters, 1 to 128"));
    assert!(refused(&[("tenant", json!(""))]).starts_with("settings.tenant has 0 characters"));
    let admin = |characters: usize| json!({"claim": "c", "value": "v", "tenant": "a".repeat(characters)});
    assert_eq!(refused(&[("admin", admin(128))]), "");
    assert!(refused(&[("admin", admin(129))]).starts_with("settings.admin.tenant has 129 characters"));
    for name in ["issuers", "audiences"] {
        assert!(refused(&[(name, json!([]))]).contains("is empty: leave it out"), "{name}");
    }
}
