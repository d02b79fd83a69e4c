//! The half of the configuration that takes a restart to change.
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::values::{ByteSize, DurationValue, Listen};

/// Read once, at the start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct Fixed {
    /// Address and port of the public listener. An address that is not loopback needs an auth policy, or `allow-anonymous`.
    pub listen: Listen,
    /// Serve everybody on any address when no auth policy is in force.
    pub allow_anonymous: bool,
    pub admin: Admin,
    pub models: Models,
    pub cache: CacheDisk,
    pub limits: ConnectionLimits,
    pub tls: Tls,
    pub cors: Cors,
    pub metrics: Metrics,
    pub log: LogOutput,
    pub telemetry: Telemetry,
}

impl Default for Fixed {
    fn default() -> Self {
        Self {
            listen: Listen::loopback(8080),
            allow_anonymous: false,
            admin: Admin::default(),
            models: Models::default(),
            cache: CacheDisk::default(),
            limits: ConnectionLimits::default(),
            tls: Tls::default(),
            cors: Cors::default(),
            metrics: Metrics::default(),
            log: LogOutput::default(),
            telemetry: Telemetry::default(),
        }
    }
}

/// The listener for operators.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct Admin {
    /// Address and port of the admin listener; empty: none. One that is not loopback needs `allow-remote` and `token-file`.
    pub listen: Listen,
    /// Listen on an address that others reach.
    pub allow_remote: bool,
    /// A file with the token that the admin listener asks for (`authorization: Bearer TOKEN`). Unset: it asks for none.
    #[schemars(extend("format" = "path"))]
    pub token_file: Option<PathBuf>,
}

impl Default for Admin {
    fn default() -> Self {
        Self { listen: Listen::loopback(9090), allow_remote: false, token_file: None }
    }
}

impl Admin {
    pub fn token_file(&self) -> Option<&PathBuf> {
        self.token_file.as_ref().filter(|path| !path.as_os_str().is_empty())
    }
}

/// The cache of models that are pulled, and where they come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct Models {
    /// Directory of the cache. Unset: camshaft/models below XDG_CACHE_HOME or ~/.cache.
    #[schemars(extend("format" = "path"))]
    pub cache_dir: Option<PathBuf>,
    /// What the cache holds at most, once a pull is done: models that were not used for longest go, never one in use. 0: all
    /// that the disk has room for.
    pub cache_size: ByteSize,
    /// Base address of "hf:" sources. Unset: HF_ENDPOINT, or "https://huggingface.co".
    pub hf_endpoint: Option<String>,
    /// Base address of "ollama:" sources.
    pub ollama_registry: String,
    /// Ask other machines over http, which nothing protects but the digest.
    pub allow_http: bool,
}

impl Default for Models {
    fn default() -> Self {
        Self {
            cache_dir: None,
            cache_size: ByteSize::gib(256),
            hf_endpoint: None,
            ollama_registry: "https://registry.ollama.ai".to_owned(),
            allow_http: false,
        }
    }
}

impl Models {
    /// `None`: where the environment says.
    pub fn dir(&self) -> Option<PathBuf> {
        self.cache_dir.clone().filter(|dir| !dir.as_os_str().is_empty())
    }
}

/// Prefixes of ended requests that outlive the process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct CacheDisk {
    /// Directory for the prefixes that are kept on disk; needs `disk`. Unset or empty: none are.
    #[schemars(extend("format" = "path"))]
    pub disk_dir: Option<PathBuf>,
    /// Disk space for the prefixes of all workers together, and for what earlier models and settings left; needs `disk-dir`.
    pub disk: ByteSize,
}

/// What prefixes may take on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskConfig {
    pub dir: PathBuf,
    /// For the prefixes of all workers together.
    pub bytes: u64,
}

impl CacheDisk {
    pub(super) fn dir(&self) -> Option<&PathBuf> {
        self.disk_dir.as_ref().filter(|dir| !dir.as_os_str().is_empty())
    }

    /// `None`: nothing outlives the process.
    pub fn tier(&self) -> Option<DiskConfig> {
        let dir = self.dir().filter(|_| self.disk.0 > 0)?;
        Some(DiskConfig { dir: dir.clone(), bytes: self.disk.0 })
    }
}

/// What connections are held to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct ConnectionLimits {
    /// Connections of each listener. A further one takes the place of the one that is quiet for longest, or waits.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub connections: u32,
    /// From a connection's beginning (TLS included) to the end of its first request's head; then the connection is closed.
    #[schemars(extend("x-minimum" = "100ms", "x-maximum" = "10m"))]
    pub header_timeout: DurationValue,
    /// From the end of a response to the end of the next request's head; then the connection is closed. Load balancers expect more than a minute.
    #[schemars(extend("x-minimum" = "100ms", "x-maximum" = "1h"))]
    pub idle_timeout: DurationValue,
    /// A stream whose reader is behind for this long is cut, and a connection is closed whose client takes nothing.
    #[schemars(extend("x-minimum" = "2s"))]
    pub slow_reader: DurationValue,
    /// Text that comes sooner than this after a stream's last frame shares the next one; 0: never.
    #[schemars(extend("x-maximum" = "1s"))]
    pub frame_interval: DurationValue,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            connections: 1024,
            header_timeout: DurationValue::secs(30),
            idle_timeout: DurationValue::secs(90),
            slow_reader: DurationValue::secs(60),
            frame_interval: DurationValue::millis(10),
        }
    }
}

/// HTTPS on the public listener, with PEM files; certificate and key, or neither.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct Tls {
    /// The certificate and those that it was signed with.
    #[schemars(extend("format" = "path"))]
    pub cert: Option<PathBuf>,
    /// The certificate's private key.
    #[schemars(extend("format" = "path"))]
    pub key: Option<PathBuf>,
    /// Certificates of those who sign the clients' certificates; needs `client-auth`.
    #[schemars(extend("format" = "path"))]
    pub client_ca: Option<PathBuf>,
    /// Whether clients show a certificate, which auth policies then see.
    pub client_auth: ClientAuth,
}

/// Certificates of TLS clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum ClientAuth {
    // They are not asked for one.
    #[default]
    None,
    // They may show none, but not one that `client-ca` does not vouch for.
    Request,
    // They have to show one that `client-ca` vouches for.
    Require,
}

/// For HTTPS on the public listener, as PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    pub cert: PathBuf,
    pub key: PathBuf,
    /// Who signs the clients' certificates, and whether a client has to have one. `None`: clients are asked for none.
    pub clients: Option<(PathBuf, bool)>,
}

impl Tls {
    /// `None`: plain HTTP.
    pub fn files(&self) -> Option<TlsFiles> {
        let (cert, key) = (self.cert.clone()?, self.key.clone()?);
        let mandatory = self.client_auth == ClientAuth::Require;
        let ca = self.client_ca.clone().filter(|_| self.client_auth != ClientAuth::None);
        Some(TlsFiles { cert, key, clients: ca.map(|ca| (ca, mandatory)) })
    }
}

/// Web pages that may call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct Cors {
    /// Origins of web pages that may call, such as "https://chat.example.org"; "*": all of them.
    pub origins: Vec<String>,
}

/// What is measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct Metrics {
    /// Also export the queue, running and KV gauges under vLLM's names, for gateways that look for those.
    pub vllm_aliases: bool,
    /// Tenants whose keys see all of /metrics and /server/stats on the public listener. Others see only what is their own.
    pub operators: Vec<String>,
}

/// How log lines are written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct LogOutput {
    /// "auto": text on a terminal, else JSON.
    pub format: LogFormat,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum LogFormat {
    #[default]
    Auto,
    Text,
    Json,
}

/// Spans for an OpenTelemetry collector.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct Telemetry {
    /// Where spans of requests go (OTLP over gRPC), such as "http://127.0.0.1:4317"; empty: nowhere.
    pub otlp_endpoint: String,
}

impl Telemetry {
    /// `None`: spans go nowhere.
    pub fn endpoint(&self) -> Option<&str> {
        Some(self.otlp_endpoint.as_str()).filter(|endpoint| !endpoint.is_empty())
    }
}
