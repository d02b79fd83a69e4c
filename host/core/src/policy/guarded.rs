//! The routes that auth policies guard, by the paths by which policies know them.

pub const METRICS: &str = "/metrics";
pub const STATS: &str = "/server/stats";
pub const CHAT: &str = "/v1/chat/completions";
pub const COMPLETIONS: &str = "/v1/completions";
pub const EMBEDDINGS: &str = "/v1/embeddings";
pub const PREDICT: &str = "/predict";
pub const MODEL_INFO: &str = "/model/info";
pub const MODELS: &str = "/v1/models";
pub const MODEL: &str = "/v1/models/{*id}";
pub const SESSIONS: &str = "/v1/sessions";
pub const CLOSE_SESSION: &str = "/v1/session/close";
pub const TOKENIZE: &str = "/v1/tokenize";
pub const DETOKENIZE: &str = "/v1/detokenize";

/// All of them, in the order of the table of HTTP routes.
pub const ROUTES: [&str; 13] = [
    METRICS,
    STATS,
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    PREDICT,
    MODEL_INFO,
    MODELS,
    MODEL,
    SESSIONS,
    CLOSE_SESSION,
    TOKENIZE,
    DETOKENIZE,
];
