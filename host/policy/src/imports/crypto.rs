//! `camshaft:host/crypto`: hashes, and verification of what others signed.
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};
use ring::{digest, hmac};
use subtle::ConstantTimeEq;
use wasmtime::component::{HasData, Linker};

use crate::bindings::host::crypto::{self, Host};
use crate::fault::invalid;
use crate::text::truncated;

/// Bytes that one call hashes or compares: no deadline interrupts it.
const DATA_BYTES: usize = 1 << 20;
const HMAC_KEY_BYTES: usize = 4096;
/// Bits of an RSA modulus.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;
/// Bits of an RSA public exponent: the time of a verification grows with them.
const EXPONENT_BITS: usize = 33;
const ED25519_KEY_BYTES: usize = 32;
/// 2^255 - 19, the number of elements of the curve's field, with its highest byte first.
const PRIME_25519: [u8; ED25519_KEY_BYTES] = field_element(0x7f, 0xff, 0xed);
/// The y of the points whose order divides 8, the curve's cofactor: those of order 1, 2 and 4, and two for order 8.
const SMALL_ORDER_Y: [[u8; ED25519_KEY_BYTES]; 5] = [
    field_element(0, 0, 1),
    field_element(0x7f, 0xff, 0xec),
    field_element(0, 0, 0),
    [
        0x05, 0xfc, 0x53, 0x6d, 0x88, 0x02, 0x38, 0xb1, 0x39, 0x33, 0xc6, 0xd3, 0x05, 0xac, 0xdf, 0xd5, 0xf0, 0x98,
        0xef, 0xf2, 0x89, 0xf4, 0xc3, 0x45, 0xb0, 0x27, 0xb2, 0xc2, 0x8f, 0x95, 0xe8, 0x26,
    ],
    [
        0x7a, 0x03, 0xac, 0x92, 0x77, 0xfd, 0xc7, 0x4e, 0xc6, 0xcc, 0x39, 0x2c, 0xfa, 0x53, 0x20, 0x2a, 0x0f, 0x67,
        0x10, 0x0d, 0x76, 0x0b, 0x3c, 0xba, 0x4f, 0xd8, 0x4d, 0x3d, 0x70, 0x6a, 0x17, 0xc7,
    ],
];
/// Bytes of an algorithm's name that an error repeats.
const NAME_BYTES: usize = 128;

/// The number of this first and last byte, and the same byte between them.
const fn field_element(first: u8, between: u8, last: u8) -> [u8; ED25519_KEY_BYTES] {
    let mut bytes = [between; ED25519_KEY_BYTES];
    bytes[0] = first;
    bytes[ED25519_KEY_BYTES - 1] = last;
    bytes
}

/// Needs no part of a guest's state.
pub(crate) struct Crypto;

impl HasData for Crypto {
    type Data<'a> = Crypto;
}

pub(crate) fn add_to_linker<T: 'static>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    crypto::add_to_linker::<_, Crypto>(linker, |_| Crypto)
}

fn check_data(data: &[u8]) -> Result<(), String> {
    if data.len() <= DATA_BYTES {
        return Ok(());
    }
    Err(format!("data of {} bytes, over {DATA_BYTES}", data.len()))
}

fn hashed(algorithm: &'static digest::Algorithm, data: &[u8]) -> Result<Vec<u8>, String> {
    check_data(data)?;
    Ok(digest::digest(algorithm, data).as_ref().to_vec())
}

fn authenticated(algorithm: hmac::Algorithm, key: &[u8], data: &[u8]) -> Result<Vec<u8>, String> {
    check_data(data)?;
    if key.is_empty() || key.len() > HMAC_KEY_BYTES {
        return Err(format!("a key of {} bytes, which are not 1 to {HMAC_KEY_BYTES}", key.len()));
    }
    Ok(hmac::sign(&hmac::Key::new(algorithm, key), data).as_ref().to_vec())
}

fn unknown(algorithm: &str, known: &str) -> String {
    format!("the algorithm {:?}, which is not one of {known}", truncated(algorithm, NAME_BYTES))
}

/// A number without leading zeros, and how many bits it has.
fn number(bytes: &[u8]) -> (&[u8], usize) {
    let start = bytes.iter().position(|&byte| byte != 0).unwrap_or(bytes.len());
    let significant = &bytes[start..];
    let bits = significant.first().map_or(0, |first| significant.len() * 8 - first.leading_zeros() as usize);
    (significant, bits)
}

/// An RSA key and what it is said to have signed.
struct RsaSigned<'a> {
    n: &'a [u8],
    e: &'a [u8],
    data: &'a [u8],
    signature: &'a [u8],
}

impl RsaSigned<'_> {
    fn is_genuine(&self, algorithm: &str) -> Result<bool, String> {
        let parameters = match algorithm {
            "RS256" => &signature::RSA_PKCS1_2048_8192_SHA256,
            "RS384" => &signature::RSA_PKCS1_2048_8192_SHA384,
            "RS512" => &signature::RSA_PKCS1_2048_8192_SHA512,
            "PS256" => &signature::RSA_PSS_2048_8192_SHA256,
            "PS384" => &signature::RSA_PSS_2048_8192_SHA384,
            "PS512" => &signature::RSA_PSS_2048_8192_SHA512,
            _ => return Err(unknown(algorithm, "RS256, RS384, RS512, PS256, PS384 and PS512")),
        };
        check_data(self.data)?;
        let ((n, n_bits), (e, e_bits)) = (number(self.n), number(self.e));
        if !RSA_BITS.contains(&n_bits) {
            return Err(format!(
                "a modulus of {n_bits} bits, which are not {} to {}",
                RSA_BITS.start(),
                RSA_BITS.end()
            ));
        }
        if !(2..=EXPONENT_BITS).contains(&e_bits) || e.last().is_none_or(|last| last % 2 == 0) {
            return Err(format!(
                "a public exponent of {e_bits} bits, which is not odd, 3 or more, and of at most {EXPONENT_BITS} bits"
            ));
        }
        Ok(RsaPublicKeyComponents { n, e }.verify(parameters, self.data, self.signature).is_ok())
    }
}

/// A point of an elliptic curve and what its owner is said to have signed.
struct EcdsaSigned<'a> {
    x: &'a [u8],
    y: &'a [u8],
    data: &'a [u8],
    signature: &'a [u8],
}

impl EcdsaSigned<'_> {
    fn is_genuine(&self, algorithm: &str) -> Result<bool, String> {
        let (parameters, bytes) = match algorithm {
            "ES256" => (&signature::ECDSA_P256_SHA256_FIXED, 32),
            "ES384" => (&signature::ECDSA_P384_SHA384_FIXED, 48),
            _ => return Err(unknown(algorithm, "ES256 and ES384")),
        };
        check_data(self.data)?;
        let (x, y) = (self.x, self.y);
        if x.len() != bytes || y.len() != bytes {
            return Err(format!("a point of {} and {} bytes; those of {algorithm} have {bytes}", x.len(), y.len()));
        }
        // Uncompressed (SEC 1, 2.3.3).
        let point = [&[4], x, y].concat();
        Ok(UnparsedPublicKey::new(parameters, point).verify(self.data, self.signature).is_ok())
    }
}

/// Whether a key is a point that signs for everybody, or one that is not written as RFC 8032 says.
fn is_degenerate(key: &[u8]) -> bool {
    // The highest bit of the last byte is the sign of x.
    let mut y: Vec<u8> = key.iter().rev().copied().collect();
    y.iter_mut().take(1).for_each(|highest| *highest &= 0x7f);
    y.as_slice() >= PRIME_25519.as_slice() || SMALL_ORDER_Y.iter().any(|small| y == small)
}

fn is_of_ed25519(key: &[u8], data: &[u8], signature: &[u8]) -> Result<bool, String> {
    check_data(data)?;
    if key.len() != ED25519_KEY_BYTES {
        return Err(format!("a key of {} bytes; those of Ed25519 have {ED25519_KEY_BYTES}", key.len()));
    }
    if is_degenerate(key) {
        return Ok(false);
    }
    Ok(UnparsedPublicKey::new(&signature::ED25519, key).verify(data, signature).is_ok())
}

type Hashed = wasmtime::Result<Result<Vec<u8>, String>>;
type Verified = wasmtime::Result<Result<bool, String>>;

impl Host for Crypto {
    fn sha256(&mut self, data: Vec<u8>) -> Hashed {
        Ok(hashed(&digest::SHA256, &data))
    }

    fn sha384(&mut self, data: Vec<u8>) -> Hashed {
        Ok(hashed(&digest::SHA384, &data))
    }

    fn sha512(&mut self, data: Vec<u8>) -> Hashed {
        Ok(hashed(&digest::SHA512, &data))
    }

    fn hmac_sha256(&mut self, key: Vec<u8>, data: Vec<u8>) -> Hashed {
        Ok(authenticated(hmac::HMAC_SHA256, &key, &data))
    }

    fn hmac_sha384(&mut self, key: Vec<u8>, data: Vec<u8>) -> Hashed {
        Ok(authenticated(hmac::HMAC_SHA384, &key, &data))
    }

    fn hmac_sha512(&mut self, key: Vec<u8>, data: Vec<u8>) -> Hashed {
        Ok(authenticated(hmac::HMAC_SHA512, &key, &data))
    }

    fn equal(&mut self, a: Vec<u8>, b: Vec<u8>) -> wasmtime::Result<bool> {
        if a.len().max(b.len()) > DATA_BYTES {
            return Err(invalid(format!("{} and {} bytes to compare, over {DATA_BYTES}", a.len(), b.len())));
        }
        Ok(a.ct_eq(&b).into())
    }

    fn verify_rsa(&mut self, algorithm: String, n: Vec<u8>, e: Vec<u8>, data: Vec<u8>, signature: Vec<u8>) -> Verified {
        Ok(RsaSigned { n: &n, e: &e, data: &data, signature: &signature }.is_genuine(&algorithm))
    }

    fn verify_ecdsa(
        &mut self,
        algorithm: String,
        x: Vec<u8>,
        y: Vec<u8>,
        data: Vec<u8>,
        signature: Vec<u8>,
    ) -> Verified {
        Ok(EcdsaSigned { x: &x, y: &y, data: &data, signature: &signature }.is_genuine(&algorithm))
    }

    fn verify_ed25519(&mut self, key: Vec<u8>, data: Vec<u8>, signature: Vec<u8>) -> Verified {
        Ok(is_of_ed25519(&key, &data, &signature))
    }
}

#[cfg(test)]
mod tests;
