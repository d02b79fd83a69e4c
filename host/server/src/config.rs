//! The validated configuration, made of the parts' own configurations.
mod load;
mod quantity;
mod raw;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use camshaft_core::limits;
use camshaft_core::pool::Watermarks;
use camshaft_core::reserve::Reserve;
use camshaft_engine::{AdapterOptions, EngineOptions, KvLayout, KvType};

use crate::error::ServerError;

pub use load::{Effective, Overrides, Sources};

/// Everything the server needs to know, checked.
#[derive(Debug, Clone)]
pub struct Config {
    pub listen: SocketAddr,
    /// `None`: no admin listener.
    pub admin_listen: Option<SocketAddr>,
    pub models: Vec<ModelConfig>,
    pub queue: QueueConfig,
    pub cache: CacheConfig,
    pub policy: PolicyDirConfig,
    pub limits: LimitsConfig,
    pub tls: Option<TlsFiles>,
    /// Web pages of these origins may call; empty: none.
    pub cors_origins: Vec<String>,
    /// Also exports the main gauges under the names that vLLM gives them.
    pub vllm_aliases: bool,
    pub log: LogConfig,
    /// Where spans go; `None`: nowhere.
    pub otlp_endpoint: Option<String>,
    /// How long the listeners stay open after SIGTERM at least.
    pub grace: Duration,
    /// How long streams may go on after SIGTERM.
    pub drain: Duration,
    /// Serve everybody on any address when no auth policy is in force.
    pub allow_anonymous: bool,
}

/// Where a model's weights are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// The demo model in the binary.
    Demo,
    File(PathBuf),
}

/// One model and its workers.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    pub id: String,
    pub source: ModelSource,
    /// Lower-case hexadecimal digest that the file must have.
    pub sha256: Option<String>,
    pub workers: u32,
    /// Sequences of one worker.
    pub sequences: u32,
    /// KV cache of one worker, in tokens.
    pub context_tokens: u32,
    /// Tokens of one step.
    pub batch_tokens: u32,
    /// Threads that compute; 0: one for each core.
    pub threads: u32,
    pub kv_type: KvType,
    /// How the sequences of a worker divide its KV cache.
    pub kv_layout: KvLayout,
    /// How much of the KV cache a request is admitted with beside its prompt.
    pub kv_reserve: Reserve,
    /// The longest a step shall take while prompts are prefilled beside streams.
    pub step_target: Duration,
    /// Serves embeddings instead of generating.
    pub embeddings: bool,
    /// Shorter vectors that the model was trained to give.
    pub dimensions: Vec<u32>,
    pub lora: Option<AdapterOptions>,
    /// Tokens guessed ahead for a sequence in one step; 0: none.
    pub draft_tokens: u32,
    /// A smaller model that guesses; `None`: what stands in the text already.
    pub draft_model: Option<PathBuf>,
}

impl ModelConfig {
    /// The most tokens that one request can come to, as far as the KV cache goes.
    pub fn sequence_tokens(&self) -> u32 {
        match self.kv_layout {
            KvLayout::Pooled => self.context_tokens,
            KvLayout::PerSequence => self.context_tokens / self.sequences,
        }
    }

    /// What one worker's context is made with.
    pub fn engine_options(&self) -> EngineOptions {
        EngineOptions {
            sequences: self.sequences,
            kv_tokens: self.context_tokens,
            kv_layout: self.kv_layout,
            batch_tokens: self.batch_tokens,
            threads: self.threads,
            kv_type: self.kv_type,
        }
    }
}

#[derive(Debug, Clone)]
pub struct QueueConfig {
    pub watermarks: Watermarks,
    /// From arrival to the first token, for a request that does not say.
    pub timeout: Duration,
    /// The longest that a request may ask for.
    pub max_timeout: Duration,
}

#[derive(Debug, Clone)]
pub struct CacheConfig {
    /// For the prefixes of all workers together; 0: none are kept.
    pub ram_bytes: u64,
    /// How long a session that is not used keeps its prefix from being evicted.
    pub session_ttl: Duration,
    /// For what shall outlive the process.
    pub disk: Option<DiskConfig>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskConfig {
    pub dir: PathBuf,
    /// For the segments of all workers together.
    pub bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyDirConfig {
    pub dir: PathBuf,
    pub poll: Duration,
}

#[derive(Debug, Clone)]
pub struct LimitsConfig {
    pub body_bytes: usize,
    pub max_tokens: u32,
    pub connections: usize,
    /// How long a reader may be behind, and a write may make no progress.
    pub slow_reader: Duration,
    /// Text of a stream that comes sooner after the last shares a frame with what follows.
    pub frame_interval: Duration,
}

/// For HTTPS on the public listener, as PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and those that it was signed with.
    pub cert: PathBuf,
    pub key: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Auto,
    Text,
    Json,
}

#[derive(Debug, Clone)]
pub struct LogConfig {
    /// A level, or directives of `tracing` (`info,llama.cpp=debug`).
    pub level: String,
    pub format: LogFormat,
}

/// A value as TOML would say it.
pub(crate) fn shown(value: &figment::value::Value) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| format!("{value:?}"))
}

/// JSON schema (2020-12) of the configuration file.
pub(crate) fn schema() -> schemars::Schema {
    schemars::schema_for!(raw::Raw)
}

/// A reader that is behind for less is not even held.
const SHORTEST_STALL: Duration = Duration::from_secs(2);
/// From one frame of text to the next.
const LONGEST_FRAME: Duration = Duration::from_secs(1);
/// Between two looks at the policy directory.
const SHORTEST_POLL: Duration = Duration::from_millis(100);
/// Guessed by a draft model unless a number is set.
const DRAFT_TOKENS: u64 = 4;

impl Config {
    /// Keys in which `other` differs and that take effect only at a start.
    pub fn needs_restart(&self, other: &Self) -> Vec<&'static str> {
        let differs = [
            ("listen", self.listen != other.listen),
            ("admin.listen", self.admin_listen != other.admin_listen),
            ("allow-anonymous", self.allow_anonymous != other.allow_anonymous),
            ("model", self.models != other.models),
            ("cache.disk", self.cache.disk != other.cache.disk),
            ("limits.slow-reader", self.limits.slow_reader != other.limits.slow_reader),
            ("limits.frame-interval", self.limits.frame_interval != other.limits.frame_interval),
            ("tls", self.tls != other.tls),
            ("cors", self.cors_origins != other.cors_origins),
            ("metrics", self.vllm_aliases != other.vllm_aliases),
            ("limits.connections", self.limits.connections != other.limits.connections),
            ("log.format", self.log.format != other.log.format),
            ("telemetry.otlp-endpoint", self.otlp_endpoint != other.otlp_endpoint),
        ];
        differs.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
    }
}

/// Refuses `value` outside `min..=max`, naming key, value and bounds.
fn within(key: &str, value: u64, min: u64, max: u64) -> Result<(), ServerError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(ServerError::Config(format!("{key} must be between {min} and {max}, got {value}")))
    }
}

fn address(key: &str, text: &str) -> Result<SocketAddr, ServerError> {
    text.parse().map_err(|_| ServerError::Config(format!("{key} must be an IP address and port, got {text:?}")))
}

impl Config {
    fn from_raw(raw: raw::Raw) -> Result<Self, ServerError> {
        within("queue.high-watermark", raw.queue.high_watermark, 1, 1_000_000)?;
        let low_watermark = raw.queue.low_watermark.unwrap_or(raw.queue.high_watermark * 3 / 4);
        within("queue.low-watermark", low_watermark, 0, raw.queue.high_watermark - 1)?;
        if raw.queue.max_timeout.0 < raw.queue.timeout.0 {
            let (most, timeout) = (raw.queue.max_timeout.0, raw.queue.timeout.0);
            return Err(ServerError::Config(format!(
                "queue.max-timeout must be at least queue.timeout ({timeout:?}), got {most:?}"
            )));
        }
        within("limits.max-tokens", raw.limits.max_tokens, 1, 1 << 24)?;
        within("limits.connections", raw.limits.connections, 1, 1_000_000)?;
        within("limits.body (bytes)", raw.limits.body.0, 1 << 10, 1 << 30)?;
        let dir = raw.cache.disk_dir.filter(|dir| !dir.original().as_os_str().is_empty());
        let bytes = raw.cache.disk.0;
        let disk = dir.filter(|_| bytes > 0).map(|dir| DiskConfig { dir: dir.relative(), bytes });
        if raw.limits.slow_reader.0 < SHORTEST_STALL {
            return Err(ServerError::Config(format!(
                "limits.slow-reader must be at least {SHORTEST_STALL:?}, got {:?}",
                raw.limits.slow_reader.0
            )));
        }
        if raw.policy.poll.0 < SHORTEST_POLL {
            return Err(ServerError::Config(format!(
                "policy.poll must be at least {SHORTEST_POLL:?}, got {:?}",
                raw.policy.poll.0
            )));
        }
        if raw.limits.frame_interval.0 > LONGEST_FRAME {
            return Err(ServerError::Config(format!(
                "limits.frame-interval must be at most {LONGEST_FRAME:?}, got {:?}",
                raw.limits.frame_interval.0
            )));
        }
        for origin in &raw.cors.origins {
            let good = origin == "*" || origin.starts_with("http://") || origin.starts_with("https://");
            if !good || origin.bytes().any(|b| !b.is_ascii_graphic()) {
                let message = format!("cors.origins: {origin:?} is no origin such as https://example.org, and not *");
                return Err(ServerError::Config(message));
            }
        }
        let tls = match (raw.tls.cert, raw.tls.key) {
            (Some(cert), Some(key)) => Some(TlsFiles { cert: cert.relative(), key: key.relative() }),
            (None, None) => None,
            _ => return Err(ServerError::Config("tls.cert and tls.key go together".to_owned())),
        };
        let admin = Some(raw.admin.listen.as_str()).filter(|text| !text.is_empty());
        Ok(Self {
            listen: address("listen", &raw.listen)?,
            admin_listen: admin.map(|text| address("admin.listen", text)).transpose()?,
            models: models(raw.model)?,
            queue: QueueConfig {
                watermarks: Watermarks { high: raw.queue.high_watermark as usize, low: low_watermark as usize },
                timeout: raw.queue.timeout.0,
                max_timeout: raw.queue.max_timeout.0,
            },
            cache: CacheConfig { ram_bytes: raw.cache.ram.0, session_ttl: raw.cache.session_ttl.0, disk },
            policy: PolicyDirConfig { dir: raw.policy.dir.relative(), poll: raw.policy.poll.0 },
            limits: LimitsConfig {
                body_bytes: raw.limits.body.0 as usize,
                max_tokens: raw.limits.max_tokens as u32,
                connections: raw.limits.connections as usize,
                slow_reader: raw.limits.slow_reader.0,
                frame_interval: raw.limits.frame_interval.0,
            },
            tls,
            cors_origins: raw.cors.origins,
            vllm_aliases: raw.metrics.vllm_aliases,
            log: LogConfig { level: raw.log.level, format: raw.log.format },
            otlp_endpoint: Some(raw.telemetry.otlp_endpoint).filter(|endpoint| !endpoint.is_empty()),
            grace: raw.shutdown.grace.0,
            drain: raw.shutdown.drain.0,
            allow_anonymous: raw.allow_anonymous,
        })
    }
}

fn models(raw: Vec<raw::RawModel>) -> Result<Vec<ModelConfig>, ServerError> {
    let mut models: Vec<ModelConfig> = Vec::new();
    for entry in raw {
        let model = model(entry)?;
        if models.iter().any(|other| other.id == model.id) {
            return Err(ServerError::Config(format!("model.id = {:?} is given twice", model.id)));
        }
        models.push(model);
    }
    Ok(models)
}

fn model(raw: raw::RawModel) -> Result<ModelConfig, ServerError> {
    let key = |name: &str| format!("model.{name}");
    within(&key("workers"), raw.workers, 1, 64)?;
    within(&key("sequences"), raw.sequences, 1, u64::from(limits::SEQUENCES))?;
    within(&key("context-tokens"), raw.context_tokens, 16, 1 << 24)?;
    if raw.kv_layout == raw::RawKvLayout::PerSequence {
        // As much as a worker needs at the least, for each of them.
        within(&key("context-tokens"), raw.context_tokens, 16 * raw.sequences, 1 << 24)?;
    }
    within(&key("batch-tokens"), raw.batch_tokens, raw.sequences, 1 << 16)?;
    within(&key("threads"), raw.threads, 0, 1024)?;
    if raw.step_target.0.is_zero() {
        return Err(ServerError::Config("model.step-target must be more than 0s".to_owned()));
    }
    if !raw.dimensions.is_empty() && !raw.embeddings {
        return Err(ServerError::Config("model.dimensions is for models with embeddings = true".to_owned()));
    }
    for &dimensions in &raw.dimensions {
        within(&key("dimensions"), dimensions, 1, 1 << 20)?;
    }
    let lora_scale = raw.lora_scale as f32;
    if !(-100.0..=100.0).contains(&raw.lora_scale) {
        return Err(ServerError::Config(format!(
            "model.lora-scale must be between -100 and 100, got {}",
            raw.lora_scale
        )));
    }
    let lora = raw.lora.map(|path| AdapterOptions { path: path.relative(), scale: lora_scale });
    let draft_model = raw.draft_model.map(|path| path.relative());
    let draft_tokens = raw.draft_tokens.unwrap_or(if draft_model.is_some() { DRAFT_TOKENS } else { 0 });
    within(&key("draft-tokens"), draft_tokens, u64::from(draft_model.is_some()), u64::from(limits::DRAFT_TOKENS))?;
    if raw.embeddings && (lora.is_some() || draft_tokens > 0) {
        return Err(ServerError::Config("model.lora and model.draft-tokens are for models that generate".to_owned()));
    }
    if let Some(digest) = &raw.sha256 {
        let hex = digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit());
        if !hex {
            return Err(ServerError::Config(format!("model.sha256 must be 64 hexadecimal digits, got {digest:?}")));
        }
    }
    let source = match raw.path {
        None => ModelSource::Demo,
        Some(path) if path.original() == std::path::Path::new("demo") => ModelSource::Demo,
        Some(path) => ModelSource::File(path.relative()),
    };
    let id = match (raw.id, &source) {
        (Some(id), _) => id,
        (None, ModelSource::Demo) => "demo".to_owned(),
        (None, ModelSource::File(path)) => path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
    };
    if id.is_empty() || id.len() > 256 {
        return Err(ServerError::Config(format!("model.id must have 1 to 256 characters, got {id:?}")));
    }
    Ok(ModelConfig {
        id,
        source,
        sha256: raw.sha256.map(|digest| digest.to_ascii_lowercase()),
        workers: raw.workers as u32,
        sequences: raw.sequences as u32,
        context_tokens: raw.context_tokens as u32,
        batch_tokens: raw.batch_tokens as u32,
        threads: raw.threads as u32,
        kv_type: raw.kv_type.into(),
        kv_layout: raw.kv_layout.into(),
        kv_reserve: raw.kv_reserve.into(),
        step_target: raw.step_target.0,
        embeddings: raw.embeddings,
        lora,
        draft_tokens: draft_tokens as u32,
        draft_model,
        dimensions: raw.dimensions.iter().map(|&dimensions| dimensions as u32).collect(),
    })
}
