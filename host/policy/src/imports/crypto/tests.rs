//! Signatures that are taken, those that are not, and the bounds of keys and data.
use ring::rand::SystemRandom;
use ring::signature::{EcdsaKeyPair, Ed25519KeyPair, KeyPair, RsaKeyPair};
use sha2::{Digest, Sha256, Sha384, Sha512};

use super::*;

/// Made for the tests, and used nowhere else.
const RSA_KEY: &[u8] = include_bytes!("../../../../../tests/keys/rsa-2048.pk8");
const DATA: &[u8] = b"what is signed";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn hashes_as_the_standards_say() {
    assert_eq!(
        hex(&Crypto.sha256(b"abc".to_vec()).unwrap().unwrap()),
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    );
    assert_eq!(Crypto.sha384(DATA.to_vec()).unwrap().unwrap(), Sha384::digest(DATA).to_vec());
    assert_eq!(Crypto.sha512(DATA.to_vec()).unwrap().unwrap(), Sha512::digest(DATA).to_vec());
    // RFC 4231, test case 2.
    let (key, data) = (b"Jefe".to_vec(), b"what do ya want for nothing?".to_vec());
    assert_eq!(
        hex(&Crypto.hmac_sha256(key.clone(), data.clone()).unwrap().unwrap()),
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    );
    assert!(hex(&Crypto.hmac_sha384(key.clone(), data.clone()).unwrap().unwrap()).starts_with("af45d2e376484031"));
    assert!(hex(&Crypto.hmac_sha512(key, data).unwrap().unwrap()).starts_with("164b7a7bfcf819e2"));
}

#[test]
fn hashes_at_the_bounds_and_refuses_one_past_them() {
    let full = vec![7; DATA_BYTES];
    assert_eq!(Crypto.sha256(full.clone()).unwrap().unwrap(), Sha256::digest(&full).to_vec());
    let over = vec![7; DATA_BYTES + 1];
    assert_eq!(Crypto.sha256(over.clone()).unwrap(), Err("data of 1048577 bytes, over 1048576".to_owned()));
    for (key, is_taken) in [(0, false), (1, true), (HMAC_KEY_BYTES, true), (HMAC_KEY_BYTES + 1, false)] {
        let made = Crypto.hmac_sha256(vec![1; key], DATA.to_vec()).unwrap();
        assert_eq!(made.is_ok(), is_taken, "a key of {key} bytes: {made:?}");
    }
    assert!(Crypto.hmac_sha256(vec![1], over.clone()).unwrap().is_err());
    assert!(Crypto.equal(full.clone(), full).unwrap());
    assert!(Crypto.equal(over, vec![]).is_err());
    for (a, b, same) in [("", "", true), ("a", "a", true), ("a", "b", false), ("a", "ab", false)] {
        assert_eq!(Crypto.equal(a.into(), b.into()).unwrap(), same, "{a:?} {b:?}");
    }
}

/// Checks that a signature is taken, and none that is not quite it.
fn check(verify: impl Fn(&[u8], &[u8]) -> Result<bool, String>, signature: &[u8]) {
    assert_eq!(verify(DATA, signature), Ok(true));
    assert_eq!(verify(b"what was signed", signature), Ok(false));
    for at in [0, signature.len() - 1] {
        let mut wrong = signature.to_vec();
        wrong[at] ^= 1;
        assert_eq!(verify(DATA, &wrong), Ok(false), "byte {at}");
    }
    for wrong in [&[][..], &signature[1..], &[signature, &[0]].concat()] {
        assert_eq!(verify(DATA, wrong), Ok(false), "{} bytes", wrong.len());
    }
    assert!(verify(&vec![0; DATA_BYTES + 1], signature).unwrap_err().contains("over 1048576"));
}

#[test]
fn verifies_rsa_signatures() {
    let pair = RsaKeyPair::from_pkcs8(RSA_KEY).unwrap();
    let key: RsaPublicKeyComponents<Vec<u8>> = pair.public().into();
    let encodings: [(&str, &dyn signature::RsaEncoding); 6] = [
        ("RS256", &signature::RSA_PKCS1_SHA256),
        ("RS384", &signature::RSA_PKCS1_SHA384),
        ("RS512", &signature::RSA_PKCS1_SHA512),
        ("PS256", &signature::RSA_PSS_SHA256),
        ("PS384", &signature::RSA_PSS_SHA384),
        ("PS512", &signature::RSA_PSS_SHA512),
    ];
    for (algorithm, encoding) in encodings {
        let mut signed = vec![0; pair.public().modulus_len()];
        pair.sign(encoding, &SystemRandom::new(), DATA, &mut signed).unwrap();
        let verify = |data: &[u8], signature: &[u8]| {
            // Some write numbers with zeros in front.
            let n = [&[0], key.n.as_slice()].concat();
            RsaSigned { n: &n, e: &key.e, data, signature }.is_genuine(algorithm)
        };
        check(verify, &signed);
        let other = if algorithm == "RS256" { "PS256" } else { "RS256" };
        let mixed = RsaSigned { n: &key.n, e: &key.e, data: DATA, signature: &signed }.is_genuine(other);
        assert_eq!(mixed, Ok(false), "{algorithm} taken for {other}");
    }
}

#[test]
fn takes_rsa_keys_at_the_bounds_and_none_past_them() {
    let verify = |bits: usize, e: &[u8]| {
        let mut n = vec![0xff; bits.div_ceil(8)];
        n[0] >>= (8 - bits % 8) % 8;
        RsaSigned { n: &n, e, data: DATA, signature: &vec![1; n.len()] }.is_genuine("RS256")
    };
    const E: &[u8] = &[1, 0, 1];
    for (bits, is_taken) in [(1, false), (2047, false), (2048, true), (8192, true), (8193, false)] {
        let said = verify(bits, E);
        assert_eq!(said.is_ok(), is_taken, "{bits} bits: {said:?}");
        assert_ne!(said, Ok(true));
    }
    for (e, is_taken) in [
        (&[][..], false),
        (&[0][..], false),
        (&[1][..], false),
        (&[2][..], false),
        (&[3][..], true),
        (&[0, 0, 3][..], true),
        (&[1, 0, 0], false),
        (&[1, 0xff, 0xff, 0xff, 0xff], true),
        (&[3, 0, 0, 0, 1], false),
        (&[1; 64], false),
    ] {
        let said = verify(2048, e);
        assert_eq!(said.is_ok(), is_taken, "{e:?}: {said:?}");
        assert_ne!(said, Ok(true));
    }
}

#[test]
fn verifies_signatures_of_curves() {
    let random = SystemRandom::new();
    for (algorithm, signing, bytes) in [
        ("ES256", &signature::ECDSA_P256_SHA256_FIXED_SIGNING, 32),
        ("ES384", &signature::ECDSA_P384_SHA384_FIXED_SIGNING, 48),
    ] {
        let document = EcdsaKeyPair::generate_pkcs8(signing, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(signing, document.as_ref(), &random).unwrap();
        let (x, y) = pair.public_key().as_ref()[1..].split_at(bytes);
        let signed = pair.sign(&random, DATA).unwrap();
        let of = |x, y| EcdsaSigned { x, y, data: DATA, signature: signed.as_ref() };
        check(|data, signature| EcdsaSigned { x, y, data, signature }.is_genuine(algorithm), signed.as_ref());
        assert_eq!(of(y, x).is_genuine(algorithm), Ok(false), "a point that is not on the curve");
        assert!(of(&x[1..], y).is_genuine(algorithm).unwrap_err().contains("have"), "{algorithm}");
        assert!(of(x, &[]).is_genuine(algorithm).is_err());
    }
    let document = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
    let key = pair.public_key().as_ref();
    check(|data, signature| is_of_ed25519(key, data, signature), pair.sign(DATA).as_ref());
    assert!(is_of_ed25519(&key[1..], DATA, &[0; 64]).unwrap_err().contains("31 bytes"));
}

/// Keys of small order, as libsodium and "Taming the many EdDSAs" (2020, table 5) list them, with other writings of each.
const SMALL_ORDER_KEYS: [&str; 14] = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000080",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
];

#[test]
fn regression_keys_that_sign_for_everybody_sign_for_nobody() {
    let bytes = |text: &str| -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    };
    let mut forged = [0; 64];
    forged[0] = 1;
    let taken_by_ring = |key: &[u8], signature: &[u8]| {
        (0..64u8).any(|n| UnparsedPublicKey::new(&signature::ED25519, key).verify(&[n], signature).is_ok())
    };
    assert!(taken_by_ring(&bytes(SMALL_ORDER_KEYS[0]), &forged), "otherwise this tests nothing");
    for text in SMALL_ORDER_KEYS {
        let key = bytes(text);
        assert!(is_degenerate(&key), "{text}");
        for n in 0..64 {
            assert_eq!(is_of_ed25519(&key, &[n], &forged), Ok(false), "{text}");
        }
    }
    // The next ones to them are ordinary.
    for text in ["02", "eb"] {
        let (first, rest) = if text == "02" { (2, 0) } else { (0xeb, 0xff) };
        let mut key = [rest; 32];
        (key[0], key[31]) = (first, rest & 0x7f);
        assert!(!is_degenerate(&key), "{text}");
    }
}

#[test]
fn names_an_algorithm_that_it_does_not_know() {
    let rsa = |algorithm: &str| RsaSigned { n: &[], e: &[], data: &[], signature: &[] }.is_genuine(algorithm);
    let ecdsa = |algorithm: &str| EcdsaSigned { x: &[], y: &[], data: &[], signature: &[] }.is_genuine(algorithm);
    for algorithm in ["none", "", "HS256", "rs256", "ES256K"] {
        assert!(rsa(algorithm).unwrap_err().contains(&format!("{algorithm:?}")), "{algorithm}");
        assert!(ecdsa(algorithm).unwrap_err().contains("ES256 and ES384"), "{algorithm}");
    }
    assert!(rsa(&"x".repeat(10_000)).unwrap_err().len() < 300);
}
