//! Routes with more than one path, and what they are called.

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const CHAT_ALIAS: &str = "/chat";
pub(crate) const EMBEDDINGS: &str = "/v1/embeddings";
pub(crate) const EMBEDDINGS_ALIAS: &str = "/embeddings";

/// The path by which policies know a route: whatever holds for one path of it holds for all.
pub(crate) fn canonical(route: &str) -> &str {
    match route {
        CHAT_ALIAS => CHAT,
        EMBEDDINGS_ALIAS => EMBEDDINGS,
        route => route,
    }
}
