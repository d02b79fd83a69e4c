//! The configuration in two halves: what a reload puts in force, and what takes a restart.
//!
//! Each key stands in one struct, which gives its type, default, bounds and description; the schema, the check for
//! unknown keys, the list of keys in force and the report of a reload are derived from these.
mod auto;
mod choices;
mod environment;
mod error;
mod family;
mod fixed;
mod keys;
mod listen;
mod live;
mod load;
mod lost;
mod model;
mod origins;
mod overrides;
mod quantity;
mod registry;
mod sampling;
mod telling;
#[cfg(test)]
mod tests;
mod tree;
mod validate;
mod whole;

pub use auto::Auto;
pub use choices::{BackendKey, FlashKey, IsolationKey, KindKey, KvTypeKey, LoadKey, SwapKey};
pub use error::{ConfigError, Refused};
pub use family::FamilyKey;
pub use fixed::{DiskConfig, Fixed, LogFormat, TlsFiles};
pub use keys::Wrong;
pub(crate) use keys::{changed, schema};
pub use listen::Listen;
pub use live::{CacheMemory, Live};
pub(crate) use load::model_of;
pub(crate) use load::read_file;
pub use load::{ConfigSnapshot, Effective, Sources};
pub use lost::Lost;
pub use model::{AdapterConfig, Format, ModelConfig, ModelSource};
pub use origins::{Origin, Origins};
pub use overrides::Overrides;
pub(crate) use quantity::DurationValue;
pub use registry::Models;
pub use sampling::SamplingConfig;
pub use telling::BadLevel;
pub(crate) use telling::level_is_good;
pub use tree::{MisplacedKey, Source, Syntax};
pub(crate) use validate::beside;
pub use whole::Config;
