//! The model registry: where models come from, how they are downloaded, and a cache of them that processes share.
//!
//! [`Registry`] is the door. A [`Source`] names a model, [`Registry::pull`] brings it into the cache, and an [`InUse`] keeps it
//! there while somebody serves it. Everything blocks; nothing here needs an async runtime.
#![forbid(unsafe_code)]

mod address;
mod client;
mod commit;
mod copy;
mod digest;
mod entry;
mod error;
mod file_name;
mod hf;
mod limits;
mod list;
mod lock;
mod ollama;
mod partial;
mod plain;
mod progress;
mod proxies;
mod pull;
mod registry;
mod remote;
mod remove;
mod retry;
mod room;
mod settings;
mod shards;
mod source;
mod store;
mod text;
mod transfer;
mod verify;

pub use digest::Digest;
pub use error::{Class, RegistryError};
pub use list::{Listed, ListedFile, ListedPartial, Listing};
pub use progress::{Event, Moved, Progress, Silent};
pub use proxies::Proxies;
pub use pull::{Outcome, Pulled, Request};
pub use registry::Registry;
pub use remove::Removed;
pub use settings::{Environment, Settings, Times, Token};
pub use source::Source;
pub use store::InUse;
pub use verify::Verified;
