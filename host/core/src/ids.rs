//! Newtypes for everything that has an identity.
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self::new(text)
            }
        }
    };
}

number_id! {
    /// One token of a model's vocabulary: an index below the vocabulary's size.
    Token(u32)
}
number_id! {
    /// One generation (one choice of an HTTP request), unique in the process.
    RequestId(u64)
}
number_id! {
    /// A sequence of a worker's KV cache, below the worker's sequence limit.
    SeqId(u32)
}
number_id! {
    /// A worker of a model's pool.
    WorkerId(u32)
}
number_id! {
    /// A published set of policies. Grows with every swap.
    Generation(u64)
}

macro_rules! digest_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name([u8; 32]);

        impl $name {
            pub const fn new(sha256: [u8; 32]) -> Self {
                Self(sha256)
            }

            pub const fn bytes(&self) -> &[u8; 32] {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl From<$name> for String {
            fn from(digest: $name) -> Self {
                digest.to_string()
            }
        }

        impl TryFrom<String> for $name {
            type Error = NotADigest;

            fn try_from(text: String) -> Result<Self, NotADigest> {
                digest_of(&text).map(Self).ok_or(NotADigest(text))
            }
        }
    };
}

digest_id! {
    /// SHA-256 of a chain of policies: each component's bytes, settings and position. Equal digests mean equal chains in
    /// any process. Written as 64 lower-case hexadecimal digits.
    PolicyDigest
}
digest_id! {
    /// SHA-256 of a LoRA adapter's file. Equal digests mean equal adapters, whatever they are called.
    AdapterDigest
}
digest_id! {
    /// SHA-256 of what a client asked a text to look like. Equal digests mean equal grammars.
    GrammarDigest
}

impl PolicyDigest {
    /// The chain without policies: the native one.
    pub const NATIVE: Self = Self([0; 32]);
}

/// The text is not 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a digest of 64 hexadecimal digits")]
pub struct NotADigest(String);

fn digest_of(text: &str) -> Option<[u8; 32]> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let bytes: Option<Vec<u8>> =
        text.as_bytes().chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?)).collect();
    bytes.and_then(|bytes| bytes.try_into().ok())
}

text_id! {
    /// A policy's name: the part of the file name between `NN-` and `.wasm`.
    PolicyName
}
text_id! {
    /// The tenant that a request is accounted to.
    TenantId
}
text_id! {
    /// A conversation whose prefix a client pins. Unique within its namespace.
    SessionId
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_read_as_it_is_written() {
        let digest = PolicyDigest::new(std::array::from_fn(|i| u8::try_from(i * 8 + 7).unwrap()));
        assert!(digest.to_string().starts_with("070f17"));
        assert_eq!(PolicyDigest::try_from(digest.to_string()), Ok(digest));
        for text in ["", "07", &"0".repeat(63), &"0".repeat(65), &"g".repeat(64), &"é".repeat(32)] {
            assert!(PolicyDigest::try_from(text.to_owned()).is_err(), "{text:?}");
        }
    }
}
