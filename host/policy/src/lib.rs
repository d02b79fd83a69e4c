//! WebAssembly policies: loading, hot swap, limits, faults.
//!
//! [`PolicyHost`] watches a policy directory and answers core's five hooks with the components in it. Everything that a
//! guest says is checked; what a guest does wrong is a fault and never more than that. The one `unsafe` block loads compiled
//! code (`code.rs`).
#![deny(unsafe_code)]
#![warn(clippy::undocumented_unsafe_blocks)]

mod addresses;
mod ahead;
mod answers;
mod asking;
mod bindings;
mod canary_metrics;
mod chronicle;
mod code;
mod compiler;
mod digest;
mod documents;
mod dry_run;
mod engine;
mod error;
mod examine;
mod fault;
mod feeds;
mod files;
mod functions;
#[doc(hidden)]
pub mod fuzz;
mod given;
mod grants;
mod health;
mod hooks;
mod host;
mod imports;
mod inspect;
mod journal;
mod kept;
mod lanes;
mod load;
mod loaded;
mod matching;
mod memory;
mod metrics;
mod misplaced;
mod monitoring;
mod pace;
mod pointer;
mod private_dir;
mod process;
mod registry;
mod replica;
mod reuse;
mod runtime;
mod sandbox;
mod scheduling;
mod secrets;
mod set;
mod shares;
mod sidecar;
mod snapshot;
mod spec;
mod store;
mod supplies;
mod surface;
mod take_snapshot;
mod task;
mod tenants;
mod text;
mod times;
mod trust;
mod view;
mod wasi;
mod watch;
mod whole_file;

pub use addresses::{Addresses, is_emulated};
pub use compiler::compile_here;
pub use error::{PolicyError, SettingsError};
pub use grants::{GRANTS_MAX, GrantEntry, Grants, WrongGrant};
pub use host::{PolicyConfig, PolicyHost, check_dir};
pub use inspect::{PluginReport, inspect};
pub use load::Demands;
pub use memory::memory_left;
pub use misplaced::{Misplaced, misplaced};
pub use process::ProcessBounds;
pub use replica::{Noted, PolicyReplica, ReplicaUpdate, Replication};
pub use sandbox::{COMPILE_BOUNDS, CompileProgram};
pub use trust::{Untrusted, check_secret, check_trusted};
pub use watch::PolicyWatch;
pub use whole_file::{FileError, read_whole};
