//! The bodies of OpenAI's and Anthropic's endpoints, and of the own ones beside them, as types: `/openapi.json` is made of them,
//! and they say which fields there are. Requests are read by [`crate::wire::fields`] and [`crate::wire::taken`]; tests hold the
//! readers and the answers to these types.
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod errors;
pub(crate) mod generate;
pub(crate) mod generation;
pub(crate) mod known;
pub(crate) mod messages;
pub(crate) mod models;
pub(crate) mod ranking;
pub(crate) mod refused;
pub(crate) mod response_events;
pub(crate) mod responses;
pub(crate) mod tokens;
