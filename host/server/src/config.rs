//! The configuration in two halves: what a reload puts in force, and what takes a restart.
//!
//! Each key stands in one struct, which gives its type, default, bounds and description; the schema, the check for
//! unknown keys, the list of keys in force and the report of a reload are derived from these.
mod choices;
mod environment;
mod error;
mod fixed;
mod keys;
mod live;
mod load;
mod lost;
mod model;
mod overrides;
#[cfg(test)]
mod tests;
mod tree;
mod validate;
mod values;

pub use choices::{BackendKey, FlashKey, IsolationKey, KindKey, KvTypeKey, LoadKey, SwapKey};
pub use error::{ConfigError, Wrong};
pub use fixed::{DiskConfig, Fixed, LogFormat, Models, TlsFiles};
pub(crate) use keys::{changed, schema};
pub use live::{CacheMemory, Live};
pub(crate) use load::model_of;
pub(crate) use load::read_file;
pub use load::{ConfigSnapshot, Effective, Sources};
pub use lost::Lost;
pub use model::{AdapterConfig, FamilyKey, Format, ModelConfig, ModelSource, SamplingConfig};
pub use overrides::Overrides;
pub use tree::{MisplacedKey, Origin, Origins, Source, Syntax};
pub(crate) use validate::beside;
pub(crate) use values::DurationValue;
pub use values::{Auto, Listen};

/// Everything the server needs to know, checked.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Config {
    pub live: Live,
    pub fixed: Fixed,
    /// Who wrote what.
    pub origins: Origins,
}

impl Config {
    /// Fills in what follows from other keys.
    fn complete(&mut self) {
        let low = self.live.queue.low_watermark();
        self.live.queue.low_watermark = Some(low);
        for (number, model) in self.live.model.iter_mut().enumerate() {
            model.complete();
            model.origins = self.origins.below(&format!("model.{number}"));
        }
    }
}
