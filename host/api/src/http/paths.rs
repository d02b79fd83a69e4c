//! Routes with more than one path, and what they are called.
use axum::http::Method;
use camshaft_core::policy::guarded::{CHAT, EMBEDDINGS, MODEL, PREDICT};

pub(crate) const CHAT_ALIAS: &str = "/chat";
pub(crate) const EMBEDDINGS_ALIAS: &str = "/embeddings";
/// What follows a model's name in the path of its predictions.
pub(crate) const PREDICT_SUFFIX: &str = "/predict";

/// The path by which policies know a route: whatever holds for one path of it holds for all.
pub(crate) fn canonical<'a>(method: &Method, route: &'a str) -> &'a str {
    match route {
        CHAT_ALIAS => CHAT,
        EMBEDDINGS_ALIAS => EMBEDDINGS,
        // Predictions of a model that the path names.
        MODEL if *method == Method::POST => PREDICT,
        route => route,
    }
}
