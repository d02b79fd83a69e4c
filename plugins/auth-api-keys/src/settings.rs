//! The settings file of the policy.
use serde::Deserialize;

/// `[settings]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Settings {
    pub keys: Vec<KeySettings>,
    pub anonymous_loopback: bool,
}

/// One `[[settings.keys]]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct KeySettings {
    pub name: String,
    pub sha256: String,
    pub tenant: String,
    #[serde(default)]
    pub priority: PriorityClass,
    #[serde(default = "usual_weight")]
    pub weight: f64,
    pub allowed_models: Option<Vec<String>>,
    pub requests_per_minute: Option<u32>,
    pub tokens_per_minute: Option<u32>,
    pub concurrent_requests: Option<u32>,
    pub queue_share: Option<f64>,
    pub cache_namespace: Option<String>,
}

/// A priority class by name.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PriorityClass {
    High,
    #[default]
    Normal,
    Low,
}

fn usual_weight() -> f64 {
    1.0
}
