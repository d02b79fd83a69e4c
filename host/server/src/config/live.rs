//! The half of the configuration that a reload puts in force while the server runs.
use std::path::PathBuf;

use camshaft_core::pool::Watermarks;
use camshaft_core::sizes::{self, Machine};
use camshaft_engine::Numa;
use camshaft_policy::{GrantEntry, Grants, WrongGrant};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::model::ModelConfig;
use super::values::{Auto, ByteSize, DurationValue};

/// Takes effect at a reload, without touching a running stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct Live {
    /// The models to serve. Without any: the one in the binary.
    pub model: Vec<ModelConfig>,
    pub queue: Queue,
    pub cache: CacheMemory,
    pub policy: Policy,
    pub limits: RequestLimits,
    pub log: LogLevel,
    pub shutdown: Shutdown,
}

impl Default for Live {
    fn default() -> Self {
        Self {
            model: vec![ModelConfig::default()],
            queue: Queue::default(),
            cache: CacheMemory::default(),
            policy: Policy::default(),
            limits: RequestLimits::default(),
            log: LogLevel::default(),
            shutdown: Shutdown::default(),
        }
    }
}

impl Live {
    /// The same for all models.
    pub fn numa(&self) -> Numa {
        self.model.first().map(|model| model.numa.wanted()).unwrap_or_default()
    }
}

/// Requests that wait.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct Queue {
    /// Waiting requests of one model at which it refuses further ones (429).
    #[schemars(range(min = 1, max = 1_000_000))]
    pub high_watermark: u32,
    /// Waiting requests at which it accepts again. Unset: three quarters of the high watermark.
    pub low_watermark: Option<u32>,
    /// From a request's arrival to its first token; then 504. A request may ask for another.
    #[schemars(extend("x-minimum" = "1ms"))]
    pub timeout: DurationValue,
    /// The longest timeout that a request may ask for.
    pub max_timeout: DurationValue,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            high_watermark: 256,
            low_watermark: None,
            timeout: DurationValue::secs(60),
            max_timeout: DurationValue::secs(600),
        }
    }
}

impl Queue {
    /// Both bounds.
    pub fn watermarks(&self) -> Watermarks {
        Watermarks { high: self.high_watermark as usize, low: self.low_watermark() as usize }
    }

    pub(super) fn low_watermark(&self) -> u32 {
        // Widened, since the high one may be anything here.
        self.low_watermark.unwrap_or((u64::from(self.high_watermark) * 3 / 4) as u32)
    }
}

/// Prefixes of ended requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct CacheMemory {
    /// RAM for the prefixes of all workers together; 0: none are kept. "auto": a quarter of what the models leave, at most
    /// 8 GiB.
    pub ram: Auto<ByteSize>,
    /// How long an unused session's prefix is protected from eviction.
    pub session_ttl: DurationValue,
}

impl Default for CacheMemory {
    fn default() -> Self {
        Self { ram: Auto::Auto, session_ttl: DurationValue::secs(600) }
    }
}

/// Where policies come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct Policy {
    /// Directory of the policies; a folder for each hook.
    #[schemars(extend("format" = "path"))]
    pub dir: PathBuf,
    /// Start with no policies at all if the directory is missing or empty; the native defaults then serve, and let in
    /// everybody on this machine.
    pub allow_empty: bool,
    /// How often the directory is scanned, for file systems that report no changes.
    #[schemars(extend("x-minimum" = "100ms"))]
    pub poll: DurationValue,
    /// What policies may have of what can be withheld, unless a `grant` names them.
    pub default_grants: DefaultGrants,
    /// What single policies may have: at most 256. What an entry does not name is withheld.
    pub grant: Vec<PolicyGrant>,
}

impl Default for Policy {
    fn default() -> Self {
        let (default_grants, grant) = (DefaultGrants::All, Vec::new());
        Self { dir: "policy.d".into(), allow_empty: false, poll: DurationValue::secs(10), default_grants, grant }
    }
}

impl Policy {
    /// What each policy may have.
    ///
    /// # Errors
    /// The first wrong entry.
    pub fn grants(&self) -> Result<Grants, WrongGrant> {
        let entries: Vec<GrantEntry> = self.grant.iter().map(PolicyGrant::entry).collect();
        Grants::new(self.default_grants == DefaultGrants::All, &entries)
    }
}

/// What policies have without an entry.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(inline)]
pub enum DefaultGrants {
    #[default]
    All,
    None,
}

/// What one policy may have, and no more. Patterns are exact, but for a `*` at their ends.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct PolicyGrant {
    /// Hook and name, such as "auth/jwt", without the number of the file.
    pub policy: String,
    /// Headers that an auth policy reads as they came, in lower case; of the others it reads `<redacted>`.
    pub headers: Vec<String>,
    /// Absolute paths and URLs that its settings may name as documents.
    pub documents: Vec<String>,
    /// Absolute paths and $VARIABLES that its settings may name as secrets.
    pub secrets: Vec<String>,
    /// Whether it has a store.
    pub state: bool,
    /// Whether a validator reads the body of requests.
    pub body: bool,
}

impl PolicyGrant {
    fn entry(&self) -> GrantEntry {
        let Self { policy, headers, documents, secrets, state, body } = self.clone();
        GrantEntry { policy, headers, documents, secrets, state, body }
    }
}

/// What requests are held to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct RequestLimits {
    /// The largest request body; a larger one is refused with 413.
    #[schemars(extend("x-minimum" = "1KiB", "x-maximum" = "1GiB"))]
    pub body: ByteSize,
    /// Memory of all requests in flight together: bodies, what is parsed from them, and responses that are not streamed.
    /// A tenant may hold as much as it leaves free; past it, 503. Counts as at least 32 times `body`. "auto": a thirty-second
    /// of the memory that was free at the start, at most 256 MiB, or 32 times `body`, at most a quarter of that memory.
    #[schemars(extend("x-minimum" = "1MiB", "x-maximum" = "1TiB"))]
    pub bodies: Auto<ByteSize>,
    /// The most tokens that a request may ask for.
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_tokens: u32,
    /// The longest time from a request's arrival to the end of its generation, which then ends with what it has. Unset: none, and
    /// a request may set up to a day (`max_duration`).
    #[schemars(extend("x-minimum" = "1s", "x-maximum" = "24h"))]
    pub max_duration: Option<DurationValue>,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self { body: ByteSize::mib(2), bodies: Auto::Auto, max_tokens: 4096, max_duration: None }
    }
}

impl RequestLimits {
    /// The memory for all requests, in which a tenant's half has room for the largest body and everything made of it, unless
    /// that is left to be chosen and would be more than a quarter of the memory.
    pub fn bodies_bytes(&self, machine: Machine) -> u64 {
        let least = self.body.0.saturating_mul(32);
        match self.bodies.set() {
            Some(bodies) => bodies.0.max(least),
            None => sizes::bodies(machine.memory, least),
        }
    }
}

/// How much is logged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct LogLevel {
    /// "off", "error", "warn", "info", "debug" or "trace", with exceptions for modules: "info,llama.cpp=debug".
    pub level: String,
}

impl Default for LogLevel {
    fn default() -> Self {
        Self { level: "info".to_owned() }
    }
}

/// What happens after SIGTERM.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct Shutdown {
    /// How long the listeners stay open while /readyz answers 503, so that load balancers notice.
    #[schemars(extend("x-maximum" = "1h"))]
    pub grace: DurationValue,
    /// How long running streams may go on; then they are cut.
    pub drain: DurationValue,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self { grace: DurationValue::secs(0), drain: DurationValue::secs(30) }
    }
}
