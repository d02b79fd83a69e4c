//! Implements core's [`camshaft_core::engine::Engine`] and [`camshaft_core::embed::Embedder`] with llama.cpp.
//!
//! All hand-written `unsafe` is here, but for one block in `camshaft-policy`. Each block says why it is sound.
#![deny(unsafe_op_in_unsafe_fn)]
#![warn(clippy::undocumented_unsafe_blocks)]

mod backend;
mod context;
pub mod disk;
mod embedder;
mod encoder;
mod error;
mod footprint;
#[doc(hidden)]
pub mod fuzz;
mod gelu;
mod gguf;
mod kernels;
mod kind;
mod load;
mod mapped;
mod parts;
mod regular;
mod state;
mod streams;
mod tokenizer;

pub use backend::system_info;
pub use camshaft_core::sizes::KvLayout;
pub use context::LLAMA_CPP;
pub use context::{EngineOptions, KvType, LlamaEngine};
pub use embedder::LlamaEmbedder;
pub use error::EngineLoadError;
pub use kernels::kernels;
pub use kind::WrongKind;
pub use load::{AdapterOptions, LoadOptions, LoadProgress, LoadedModel};
pub use mapped::{FileDamage, MappedFile};
pub use parts::parts_of;
