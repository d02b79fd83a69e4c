//! Routes with more than one path, and what they are called.
use camshaft_core::policy::guarded::{CHAT, EMBEDDINGS};

pub(crate) const CHAT_ALIAS: &str = "/chat";
pub(crate) const EMBEDDINGS_ALIAS: &str = "/embeddings";

/// The path by which policies know a route: whatever holds for one path of it holds for all.
pub(crate) fn canonical(route: &str) -> &str {
    match route {
        CHAT_ALIAS => CHAT,
        EMBEDDINGS_ALIAS => EMBEDDINGS,
        route => route,
    }
}
