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
text_id! {
    /// A policy's name: what stands between `NN-` and `.wasm`.
    PolicyName
}
text_id! {
    /// Whom a request is accounted to.
    TenantId
}
text_id! {
    /// A conversation whose prefix a client wants kept, within its namespace.
    SessionId
}
