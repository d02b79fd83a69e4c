//! JSON Web Tokens: signed here, checked by the plugin, with keys that change while the server runs.
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use camshaft_tests::{Server, Setup, eventually};
use ring::rand::SystemRandom;
use ring::signature::{self, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RsaKeyPair, RsaPublicKeyComponents};
use ring::{hmac, signature::EcdsaSigningAlgorithm};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::errors::error_of;

/// Made for the tests, and used nowhere else.
const RSA_KEY: &[u8] = include_bytes!("../keys/rsa-2048.pk8");
const SECRET: &str = "a secret of at least 32 bytes, no more";
const P256: &EcdsaSigningAlgorithm = &signature::ECDSA_P256_SHA256_FIXED_SIGNING;

enum Signer {
    Rsa(RsaKeyPair),
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
    Secret(&'static str),
}

impl Signer {
    fn p256() -> Self {
        let made = EcdsaKeyPair::generate_pkcs8(P256, &SystemRandom::new()).unwrap();
        Signer::P256(EcdsaKeyPair::from_pkcs8(P256, made.as_ref(), &SystemRandom::new()).unwrap())
    }

    fn jwk(&self, kid: &str) -> Value {
        match self {
            Signer::Rsa(pair) => {
                let RsaPublicKeyComponents { n, e }: RsaPublicKeyComponents<Vec<u8>> = pair.public().into();
                json!({"kty": "RSA", "kid": kid, "n": BASE64.encode(n), "e": BASE64.encode(e)})
            }
            Signer::P256(pair) => {
                let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
                json!({"kty": "EC", "crv": "P-256", "kid": kid, "x": BASE64.encode(x), "y": BASE64.encode(y)})
            }
            Signer::Ed25519(pair) => {
                json!({"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": BASE64.encode(pair.public_key().as_ref())})
            }
            Signer::Secret(_) => json!({"kty": "oct", "kid": kid}),
        }
    }

    fn token(&self, kid: &str, claims: &Value) -> String {
        let alg = match self {
            Signer::Rsa(_) => "RS256",
            Signer::P256(_) => "ES256",
            Signer::Ed25519(_) => "EdDSA",
            Signer::Secret(_) => "HS256",
        };
        let header = json!({"alg": alg, "kid": kid}).to_string();
        let signed = format!("{}.{}", BASE64.encode(header), BASE64.encode(claims.to_string()));
        let bytes = signed.as_bytes();
        let made = match self {
            Signer::Rsa(pair) => {
                let mut made = vec![0; pair.public().modulus_len()];
                pair.sign(&signature::RSA_PKCS1_SHA256, &SystemRandom::new(), bytes, &mut made).unwrap();
                made
            }
            Signer::P256(pair) => pair.sign(&SystemRandom::new(), bytes).unwrap().as_ref().to_vec(),
            Signer::Ed25519(pair) => pair.sign(bytes).as_ref().to_vec(),
            Signer::Secret(key) => {
                hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes()), bytes).as_ref().to_vec()
            }
        };
        format!("{signed}.{}", BASE64.encode(made))
    }
}

fn signers() -> [(&'static str, Signer); 4] {
    let ed25519 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    [
        ("r", Signer::Rsa(RsaKeyPair::from_pkcs8(RSA_KEY).unwrap())),
        ("e", Signer::p256()),
        ("o", Signer::Ed25519(Ed25519KeyPair::from_pkcs8(ed25519.as_ref()).unwrap())),
        ("s", Signer::Secret(SECRET)),
    ]
}

fn claims() -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    json!({"sub": "ann", "team": "blue", "iss": "idp", "aud": "camshaft", "iat": now, "exp": now + 3600})
}

fn put(dir: &Path, file: &str, content: &str) {
    let beside = dir.join("beside");
    fs::write(&beside, content).unwrap();
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o600)).unwrap();
    fs::rename(beside, dir.join(file)).unwrap();
}

fn put_keys(dir: &Path, keys: &[(&str, Signer)]) {
    let keys: Vec<Value> = keys.iter().map(|(kid, signer)| signer.jwk(kid)).collect();
    put(dir, "jwks.json", &json!({ "keys": keys }).to_string());
}

/// A server that takes tokens of these keys.
fn serve(keys: &[(&str, Signer)]) -> (Server, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    put_keys(dir.path(), keys);
    put(dir.path(), "key", SECRET);
    let at = dir.path().display();
    let settings = format!(
        "[policy]\ndeadline = \"5s\"\n[documents.jwks]\npath = \"{at}/jwks.json\"\nrefresh = \"1s\"\n\
         [secrets]\nhs = {{ file = \"{at}/key\" }}\n\
         [settings]\njwks = \"jwks\"\nsecret = \"hs\"\nissuers = [\"idp\"]\naudiences = [\"camshaft\"]\n\
         claims.tenant = \"team\"\nclaims.models = \"models\"\n"
    );
    (Setup::new().plugin("auth", "05-jwt", "auth-jwt", &settings).start(), dir)
}

/// The status of a request with this token, and the error's code.
fn ask(server: &Server, token: &str) -> (u16, Value) {
    let response = server.client.with_key(token).get("/v1/models");
    let code = if response.status == 200 { Value::Null } else { error_of(&response)["code"].clone() };
    (response.status, code)
}

#[test]
fn tokens_of_each_algorithm_are_taken_and_forged_ones_refused() {
    let keys = signers();
    let (server, _dir) = serve(&keys);
    check_all(&server, &keys);
    let log = server.settled_log();
    assert!(!log.contains(SECRET), "a secret is in the log");
}

fn check_all(server: &Server, keys: &[(&str, Signer)]) {
    for (kid, signer) in keys {
        let token = signer.token(kid, &claims());
        assert_eq!(ask(server, &token), (200, Value::Null), "{kid}");
        let mut other = claims();
        other["team"] = "operators".into();
        let (head, _) = token.rsplit_once('.').unwrap();
        let forged = format!("{head}.{}", signer.token(kid, &other).rsplit_once('.').unwrap().1);
        assert_eq!(ask(server, &forged), (401, "token_signature_invalid".into()), "{kid}");
        let mut old = claims();
        old["exp"] = 1.into();
        assert_eq!(ask(server, &signer.token(kid, &old)), (401, "token_expired".into()), "{kid}");
        let mut elsewhere = claims();
        elsewhere["aud"] = "elsewhere".into();
        assert_eq!(ask(server, &signer.token(kid, &elsewhere)), (401, "token_audience_not_allowed".into()), "{kid}");
    }
    let none = BASE64.encode(json!({"alg": "none"}).to_string());
    let none = format!("{none}.{}.", BASE64.encode(claims().to_string()));
    assert_eq!(ask(server, &none), (401, "token_algorithm_not_allowed".into()));
    let (_, rsa) = &keys[0];
    assert_eq!(ask(server, &rsa.token("x", &claims())), (401, "token_key_unknown".into()));
    let long = format!("{}.{}.{}", "a".repeat(30_000), "b".repeat(1000), "c".repeat(100));
    let (status, _) = ask(server, &long);
    assert!(status == 401 || status == 431, "{status}");
    assert_eq!(server.client.get("/v1/models").status, 401, "no token");
    assert_eq!(ask(server, "sk-key").0, 401, "no token, but a key that nobody knows");
    let mut few = claims();
    few["models"] = json!(["other"]);
    let response = server.client.with_key(&rsa.token("r", &few)).get("/v1/models");
    assert_eq!(response.json()["data"], json!([]), "the caller sees the models that its token names");
}

#[test]
fn keys_that_change_while_the_server_runs_count_from_their_next_read() {
    let (old, new) = (Signer::p256(), Signer::p256());
    let old_token = old.token("1", &claims());
    let new_token = new.token("2", &claims());
    let (server, dir) = serve(&[("1", old)]);
    assert_eq!(ask(&server, &old_token), (200, Value::Null));
    assert_eq!(ask(&server, &new_token), (401, "token_key_unknown".into()));
    put_keys(dir.path(), &[("2", new)]);
    eventually("the new key counts", || match ask(&server, &new_token) {
        (200, _) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert_eq!(ask(&server, &old_token), (401, "token_key_unknown".into()), "the old one is gone");
    fs::remove_file(dir.path().join("jwks.json")).unwrap();
    server.wait_for_log("a document has no good new version: the last one stays");
    assert_eq!(ask(&server, &new_token), (200, Value::Null), "the last good keys stay");
    // Another secret counts after a reload.
    let other = "another secret of at least 32 bytes, no less";
    put(dir.path(), "key", other);
    let signed = Signer::Secret(other).token("", &claims());
    assert_eq!(ask(&server, &signed), (401, "token_signature_invalid".into()));
    assert_eq!(server.admin.post("/admin/reload", &json!({})).status, 200);
    assert_eq!(ask(&server, &signed), (200, Value::Null));
}
