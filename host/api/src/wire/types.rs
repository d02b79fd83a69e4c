//! The bodies of OpenAI's endpoints and the own ones beside them as types: `/openapi.json` is made of them, and they say which
//! fields there are. Requests are read by [`crate::wire::fields`]; tests hold the readers and the answers to these types.
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod errors;
pub(crate) mod generation;
pub(crate) mod known;
pub(crate) mod models;
pub(crate) mod tokens;
