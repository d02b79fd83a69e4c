//! Routes with more than one path, and what they are called.
use axum::http::Method;
use camshaft_core::policy::guarded::{CHAT, COMPLETIONS, EMBEDDINGS, MODEL, MODELS, PREDICT, TOKENIZE};

pub(crate) const CHAT_ALIAS: &str = "/chat";
pub(crate) const EMBEDDINGS_ALIAS: &str = "/embeddings";
/// Other shapes of chats and completions.
pub(crate) const RESPONSES: &str = "/v1/responses";
pub(crate) const MESSAGES: &str = "/v1/messages";
pub(crate) const GENERATE: &str = "/v1/generate";
pub(crate) const GENERATE_ALIAS: &str = "/generate";
/// What only makes tokens of a prompt.
pub(crate) const COUNT_TOKENS: &str = "/v1/messages/count_tokens";
pub(crate) const COUNT_INPUT: &str = "/v1/responses/input_tokens";
pub(crate) const TEMPLATE: &str = "/v1/chat/template";
/// Other uses of embeddings.
pub(crate) const RERANK: &str = "/v1/rerank";
/// Where clients of Jina's and Cohere's APIs look for it.
pub(crate) const RERANK_ALIAS: &str = "/rerank";
pub(crate) const RERANK_COHERE: &str = "/v2/rerank";
pub(crate) const SCORE: &str = "/v1/score";
/// What follows a model's name in the path of its predictions.
pub(crate) const PREDICT_SUFFIX: &str = "/predict";

/// The Open Inference Protocol's.
pub(crate) const OPEN_SERVER: &str = "/v2";
pub(crate) const OPEN_INDEX: &str = "/v2/repository/index";
pub(crate) const OPEN_MODEL: &str = "/v2/models/{*id}";
pub(crate) const OPEN_LIVE: &str = "/v2/health/live";
pub(crate) const OPEN_READY: &str = "/v2/health/ready";

/// The path by which policies know a route: whatever holds for one path of it holds for all.
pub(crate) fn canonical<'a>(method: &Method, route: &'a str) -> &'a str {
    match route {
        CHAT_ALIAS | RESPONSES | MESSAGES => CHAT,
        GENERATE | GENERATE_ALIAS => COMPLETIONS,
        EMBEDDINGS_ALIAS | RERANK | RERANK_ALIAS | RERANK_COHERE | SCORE => EMBEDDINGS,
        COUNT_TOKENS | COUNT_INPUT | TEMPLATE => TOKENIZE,
        // Predictions of a model that the path names.
        MODEL | OPEN_MODEL if *method == Method::POST => PREDICT,
        OPEN_MODEL => MODEL,
        // What is served here.
        OPEN_SERVER | OPEN_INDEX => MODELS,
        route => route,
    }
}
