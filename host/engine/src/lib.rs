//! Implements core's [`camshaft_core::engine::Engine`] and [`camshaft_core::embed::Embedder`] with llama.cpp.
//!
//! All hand-written `unsafe` is here, but for one block in `camshaft-policy` and what tests compare with. Each block says why it is sound.
#![deny(unsafe_op_in_unsafe_fn)]
#![warn(clippy::undocumented_unsafe_blocks)]

mod adapter;
mod adapter_file;
mod attention;
mod backend;
mod buffers;
mod context;
mod custom;
mod defaults;
mod devices;
pub mod disk;
mod embedder;
mod encoder;
mod error;
mod finite;
mod footprint;
#[doc(hidden)]
pub mod fuzz;
mod gelu;
mod gguf;
mod graph;
mod instructions;
mod kernels;
mod kind;
mod llama;
mod load;
mod log;
mod matmul;
mod model;
mod parts;
mod regular;
mod state;
mod streams;
mod tokenizer;
mod vocab;

pub use adapter::LoadedAdapter;
pub use backend::{Numa, system_info, use_numa};
pub use camshaft_core::sizes::KvLayout;
pub use context::LLAMA_CPP;
pub use context::{EngineOptions, FlashAttention, LlamaEngine};
pub use devices::{Device, Offload, devices};
pub use embedder::LlamaEmbedder;
pub use error::EngineLoadError;
pub use footprint::{KvType, ModelMark, ModelOutline};
pub use kernels::kernels;
pub use kind::WrongKind;
pub use load::{AdapterOptions, LoadOptions, LoadProgress, LoadedModel, Placement};
pub use matmul::products;
pub use model::NotLoaded;
pub use parts::parts_of;
pub use regular::open as open_regular;
