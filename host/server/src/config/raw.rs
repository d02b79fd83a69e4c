//! The configuration as it is written: kebab-case keys, unknown ones refused, defaults as documented.
use camshaft_core::reserve::Reserve;
use camshaft_engine::{KvLayout, KvType};
use figment::value::magic::RelativePathBuf;
use schemars::JsonSchema;
use serde::Deserialize;

use super::LogFormat;
use super::quantity::{ByteSize, Span};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Raw {
    pub(super) listen: String,
    pub(super) allow_anonymous: bool,
    pub(super) admin: RawAdmin,
    pub(super) model: Vec<RawModel>,
    pub(super) queue: RawQueue,
    pub(super) cache: RawCache,
    pub(super) policy: RawPolicy,
    pub(super) limits: RawLimits,
    pub(super) tls: RawTls,
    pub(super) cors: RawCors,
    pub(super) metrics: RawMetrics,
    pub(super) log: RawLog,
    pub(super) telemetry: RawTelemetry,
    pub(super) shutdown: RawShutdown,
}

/// What every key is unless something sets it.
pub(super) const DEFAULTS: &str = r#"
listen = "127.0.0.1:8080"
allow-anonymous = false
model = [{}]
[admin]
listen = "127.0.0.1:9090"
[queue]
high-watermark = 256
timeout = "60s"
max-timeout = "10m"
[cache]
ram = "1GiB"
disk = "0"
session-ttl = "10m"
[policy]
dir = "policy.d"
poll = "10s"
[limits]
body = "2MiB"
max-tokens = 4096
connections = 1024
slow-reader = "60s"
frame-interval = "10ms"
[tls]
[cors]
origins = []
[metrics]
vllm-aliases = false
[log]
level = "info"
format = "auto"
[telemetry]
otlp-endpoint = ""
[shutdown]
grace = "0s"
drain = "30s"
"#;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawAdmin {
    pub(super) listen: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawModel {
    pub(super) id: Option<String>,
    #[schemars(with = "Option<String>")]
    pub(super) path: Option<RelativePathBuf>,
    pub(super) sha256: Option<String>,
    #[serde(default = "one")]
    pub(super) workers: u64,
    #[serde(default = "default_sequences")]
    pub(super) sequences: u64,
    #[serde(default = "default_context_tokens")]
    pub(super) context_tokens: u64,
    #[serde(default = "default_batch_tokens")]
    pub(super) batch_tokens: u64,
    #[serde(default)]
    pub(super) threads: u64,
    #[serde(default)]
    pub(super) kv_type: RawKvType,
    #[serde(default)]
    pub(super) kv_layout: RawKvLayout,
    #[serde(default)]
    pub(super) kv_reserve: RawReserve,
    #[serde(default = "default_step_target")]
    pub(super) step_target: Span,
    #[serde(default)]
    pub(super) embeddings: bool,
    #[serde(default)]
    pub(super) dimensions: Vec<u64>,
    #[schemars(with = "Option<String>")]
    pub(super) lora: Option<RelativePathBuf>,
    #[serde(default = "whole")]
    pub(super) lora_scale: f64,
    /// Unset: 0, or with a draft model 4.
    pub(super) draft_tokens: Option<u64>,
    #[schemars(with = "Option<String>")]
    pub(super) draft_model: Option<RelativePathBuf>,
}

fn one() -> u64 {
    1
}

fn whole() -> f64 {
    1.0
}

fn default_sequences() -> u64 {
    32
}

fn default_context_tokens() -> u64 {
    8192
}

fn default_batch_tokens() -> u64 {
    512
}

fn default_step_target() -> Span {
    Span(std::time::Duration::from_millis(25))
}

#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum RawReserve {
    None,
    #[default]
    Expected,
    Full,
}

impl From<RawReserve> for Reserve {
    fn from(raw: RawReserve) -> Self {
        match raw {
            RawReserve::None => Reserve::None,
            RawReserve::Expected => Reserve::Expected,
            RawReserve::Full => Reserve::Full,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RawKvLayout {
    #[default]
    Pooled,
    PerSequence,
}

impl From<RawKvLayout> for KvLayout {
    fn from(raw: RawKvLayout) -> Self {
        match raw {
            RawKvLayout::Pooled => KvLayout::Pooled,
            RawKvLayout::PerSequence => KvLayout::PerSequence,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum RawKvType {
    #[default]
    F16,
    #[serde(rename = "q8_0")]
    Q8_0,
    #[serde(rename = "q4_0")]
    Q4_0,
}

impl From<RawKvType> for KvType {
    fn from(raw: RawKvType) -> Self {
        match raw {
            RawKvType::F16 => KvType::F16,
            RawKvType::Q8_0 => KvType::Q8_0,
            RawKvType::Q4_0 => KvType::Q4_0,
        }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawQueue {
    pub(super) high_watermark: u64,
    /// Unset: three quarters of the high one.
    pub(super) low_watermark: Option<u64>,
    pub(super) timeout: Span,
    pub(super) max_timeout: Span,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawCache {
    pub(super) ram: ByteSize,
    /// Unset or empty: none.
    #[schemars(with = "Option<String>")]
    pub(super) disk_dir: Option<RelativePathBuf>,
    pub(super) disk: ByteSize,
    pub(super) session_ttl: Span,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawPolicy {
    #[schemars(with = "String")]
    pub(super) dir: RelativePathBuf,
    pub(super) poll: Span,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawLimits {
    pub(super) body: ByteSize,
    pub(super) max_tokens: u64,
    pub(super) connections: u64,
    pub(super) slow_reader: Span,
    pub(super) frame_interval: Span,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawTls {
    #[schemars(with = "Option<String>")]
    pub(super) cert: Option<RelativePathBuf>,
    #[schemars(with = "Option<String>")]
    pub(super) key: Option<RelativePathBuf>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawCors {
    pub(super) origins: Vec<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawMetrics {
    pub(super) vllm_aliases: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawLog {
    pub(super) level: String,
    pub(super) format: LogFormat,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawTelemetry {
    pub(super) otlp_endpoint: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RawShutdown {
    pub(super) grace: Span,
    pub(super) drain: Span,
}
