//! What paths are called: those of routes with more than one, and of the Open Inference Protocol.
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

const ROOT: &str = "/v2";

/// Whether a path is one of the protocol.
pub(crate) fn is_under(path: &str) -> bool {
    path != RERANK_COHERE && path.strip_prefix(ROOT).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// What the rest of a path under `/v2/models/` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ModelPath<'a> {
    /// May contain slashes.
    pub(crate) name: &'a str,
    pub(crate) version: Option<&'a str>,
    pub(crate) asks: Asks,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asks {
    Metadata,
    Ready,
    Infer,
}

impl<'a> ModelPath<'a> {
    pub(crate) fn read(rest: &'a str) -> Self {
        let ends = [("/infer", Asks::Infer), ("/ready", Asks::Ready)];
        let end = ends.into_iter().find_map(|(end, asks)| rest.strip_suffix(end).map(|rest| (rest, asks)));
        let (rest, asks) = end.unwrap_or((rest, Asks::Metadata));
        match rest.rsplit_once("/versions/") {
            Some((name, version)) if !version.contains('/') => Self { name, version: Some(version), asks },
            _ => Self { name: rest, version: None, asks },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_model_a_version_and_what_is_asked_of_it() {
        let check = |rest: &str, name: &str, version: Option<&str>, asks: Asks| {
            assert_eq!(ModelPath::read(rest), ModelPath { name, version, asks }, "{rest}");
        };
        check("m", "m", None, Asks::Metadata);
        check("m/ready", "m", None, Asks::Ready);
        check("m/infer", "m", None, Asks::Infer);
        check("m/versions/1", "m", Some("1"), Asks::Metadata);
        check("m/versions/1/infer", "m", Some("1"), Asks::Infer);
        check("m/versions/7/ready", "m", Some("7"), Asks::Ready);
        check("org/m/versions/1/infer", "org/m", Some("1"), Asks::Infer);
        check("a/versions/b/c", "a/versions/b/c", None, Asks::Metadata);
        check("a/versions/b/versions/1", "a/versions/b", Some("1"), Asks::Metadata);
        check("m/versions//infer", "m", Some(""), Asks::Infer);
        check("infer", "infer", None, Asks::Metadata);
        check("/infer", "", None, Asks::Infer);
    }

    #[test]
    fn only_paths_of_the_protocol_have_its_errors() {
        for path in ["/v2", "/v2/", "/v2/models/a"] {
            assert!(is_under(path), "{path}");
        }
        for path in ["/v1/models", "/v22", "/", "", "/V2", "/x/v2"] {
            assert!(!is_under(path), "{path}");
        }
    }
}
